"""`/v1/tokens`, the tokens, for administrators; and `/v1/me`, the caller.

Answers to a creation are not kept for repeated requests, because they hold the token.
"""

from datetime import timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field, StringConstraints

from ....domain import duration
from ....domain.access import NO_TASKS, WORKER_QUEUE, Binding, Permission, Role
from ....domain.identity import IdentityKind
from ....domain.namespaces import NamespaceName, is_within
from ....services.namespaces import Namespaces
from ....services.operations.errors import NotFound
from ..auth.security import Administrator, Caller, actor
from ..auth.tokens import Token, Tokens
from .dependencies import Components, Here, shown_as
from .problems import documented, invalid

MAX_NAMES: Final = 1_000
"""Queues or functions of a token."""

router = APIRouter(prefix="/v1", tags=["tokens"])

_Name = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]


class TokenRequest(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """A token to create."""

    identity: _Name
    """The identity that events record when the token is used."""
    roles: list[Role] = Field(min_length=1, max_length=len(Role))
    lifetime: str | float | None = None
    """Seconds, or text such as `90d`; null: no end."""
    queues: list[_Name] = Field(default=[], max_length=MAX_NAMES)
    """The queues from which a `scheduler-worker` may fetch tasks."""
    functions: list[_Name] = Field(default=[], max_length=MAX_NAMES)
    """The functions whose tasks it may fetch, such as `mail/*`; empty: all functions of its queues."""
    namespaces: Annotated[list[NamespaceName], Field(min_length=1, max_length=MAX_NAMES)] | None = None
    """The namespaces to which the token is bound; null: the whole installation."""


class CreatedToken(Token):
    """A new token with its secret."""

    token: str
    """Send it as `Authorization: Bearer`. It is not shown again."""


class TokenList(BaseModel):
    """Tokens without their secrets, oldest first."""

    tokens: list[Token]


class TokenRevoked(BaseModel):
    """The answer to a revocation."""

    id: str
    revoked: bool = True


@router.get("/tokens", operation_id="listTokens")
async def list_tokens(here: Here, _: Administrator) -> TokenList:
    """List the tokens without their secrets."""
    return TokenList(tokens=[Token(**dict(stored)) for stored in await _tokens(here).list()])


@router.post("/tokens", status_code=201, operation_id="createToken")
async def create_token(here: Here, caller: Administrator, body: TokenRequest, response: Response) -> CreatedToken:
    """Create a token. The answer shows it, once; only its hash is stored."""
    response.headers["Cache-Control"] = "no-store"
    binding, lifetime = _binding(body), _lifetime(body.lifetime)
    declared = (await Namespaces(here.log).newest()).names
    for name in body.namespaces or ():
        if name not in declared:
            raise invalid("namespaces", name, "must be a declared namespace: `PUT /v1/namespaces` declares them")
    token, stored = await _tokens(here).create(
        body.identity, body.roles, binding=binding, namespaces=body.namespaces, lifetime=lifetime, by=actor(caller)
    )
    return CreatedToken(**dict(stored), token=token)


@router.delete("/tokens/{id}", operation_id="revokeToken", responses=documented(404))
async def revoke_token(
    here: Here, _: Administrator, id: Annotated[str, Path(description="The id of the token.")]
) -> TokenRevoked:
    """Revoke a token. Every copy of the API rejects it within seconds."""
    if not await _tokens(here).revoke(id):
        raise NotFound(f"no token has the id {id!r}")
    return TokenRevoked(id=id)


class Me(BaseModel, use_attribute_docstrings=True):
    """The identity of the caller."""

    identity: str
    """The name, unique within its kind. Events record both."""
    kind: IdentityKind
    roles: list[Role]
    namespaces: list[str] | None
    """The namespaces to which the identity is bound; null: the whole installation."""
    permissions: list[Permission]
    """What the roles permit for some job at least. A job that names an owner or viewers may permit less, and the caller's own more."""


@router.get("/me", operation_id="getMe")
async def get_me(caller: Caller) -> Me:
    """Show the identity of the caller, its roles and its permissions.

    Without authentication, every caller is an administrator.
    """
    namespaces = None if caller.namespaces is None else sorted(caller.namespaces)
    sorted_ = {"roles": sorted(caller.roles), "permissions": sorted(caller.permissions), "namespaces": namespaces}
    return shown_as(Me, caller, **sorted_)


def _tokens(here: Components) -> Tokens:
    return Tokens(here.projections, here.clock)


def _binding(body: TokenRequest) -> Binding:
    if Role.WORKER not in body.roles:
        for field, names in (("queues", body.queues), ("functions", body.functions)):
            if names:
                raise invalid(field, names, f"must be empty, because only the role `{Role.WORKER}` is limited to some")
        return NO_TASKS
    if not body.queues:
        raise invalid("queues", body.queues, f"must name each queue that a token of the role `{Role.WORKER}` serves")
    for name in body.queues:
        if not WORKER_QUEUE.fullmatch(name):
            raise invalid(
                "queues", name, "must be lower-case letters, digits, `-` and `.`, and begin with a letter or a digit"
            )
    for name in body.queues:
        if body.namespaces is not None and not is_within(name, body.namespaces):
            raise invalid(
                "queues", name, f"must be in a namespace of the token, such as `{body.namespaces[0]}.default`"
            )
    return Binding(tuple(dict.fromkeys(body.queues)), tuple(dict.fromkeys(body.functions)) or ("*",))


def _lifetime(written: str | float | None) -> timedelta | None:
    if written is None:
        return None
    try:
        seconds = duration.parse(written)
    except duration.DurationError as error:
        raise invalid("lifetime", written, str(error)) from None
    if seconds <= 0:
        raise invalid("lifetime", written, "must be more than 0 seconds, such as `90d`")
    return timedelta(seconds=seconds)
