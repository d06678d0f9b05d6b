"""Who asks, and whether they may: the dependencies that every handler names (hip-62, Authentication and Authorization).

A handler asks for the permission that its endpoint needs; whether that holds for the very job is asked again on the state
that the change is decided on, so that a job which went to another owner meanwhile is not changed.

Who may see what became of a job, whether or not it is still registered: its last definition says.
"""

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Annotated, Final, Protocol, TypeAlias, cast

import structlog
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from .... import subjects
from ....domain.access import Permission, Principal, Role
from ....domain.definition import JobDefinition
from ....domain.events import Actor, Defined
from ....domain.ledger import JobNotFound
from ....ports import Clock, EventLog
from ....services.jobs import Check, Job
from ..api.problems import Problem
from ..middleware.rate_limit import RateLimit
from .authentication import ProviderUnavailable
from .tokens import InvalidToken

REMEMBERED: Final = 2.0
"""Seconds for which a job's viewers are believed, when many facts or rows are looked at."""
_CAPACITY: Final = 10_000


class LastDefinition:
    """What a job's newest `defined` fact says of whose it is. Implements `access.Owned`."""

    def __init__(self, fact: Defined) -> None:
        """Of a fact."""
        self.definition: JobDefinition = fact.definition
        is_first = fact.created_at is None
        self.created_by = fact.by.identity if is_first and fact.by else fact.created_by


class Visibility:
    """Tells whether somebody may see what became of a job."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        """Reads the log."""
        self._log = log
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, LastDefinition | None]] = OrderedDict()

    async def may_see(self, caller: Principal, job: str) -> bool:
        """Whether they may; a job that was never defined hides nothing."""
        if caller.may(Permission.ADMINISTER):
            return True
        found = await self._definition(job)
        return caller.may(Permission.READ) if found is None else caller.may_see(found)

    async def permits(self, caller: Principal, permission: Permission, job: str) -> bool:
        """Whether they may do something with the executions of a job."""
        if caller.may(Permission.ADMINISTER):
            return True
        found = await self._definition(job)
        return caller.may(permission) if found is None else caller.may_with(permission, found)

    async def _definition(self, job: str) -> LastDefinition | None:
        now = self._clock.monotonic()
        read_at, found = self._known.get(job, (-REMEMBERED, None))
        if now - read_at < REMEMBERED:
            return found
        recorded = await self._log.last(subjects.definition(job))
        fact = recorded.message if recorded else None
        found = LastDefinition(fact) if isinstance(fact, Defined) else None
        self._known[job] = now, found
        if len(self._known) > _CAPACITY:
            self._known.popitem(last=False)
        return found


ANONYMOUS: Final = "anonymous"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

_log = structlog.get_logger("tocsin.http")
_bearer = HTTPBearer(
    auto_error=False, description="A JSON Web Token of the identity provider, or a token of this installation."
)


class Authenticator(Protocol):
    """Says who somebody is by their token."""

    async def is_required(self) -> bool:
        """Whether anybody is asked at all. If not, whoever reaches the API is an administrator."""
        ...

    async def authenticate(self, token: str) -> tuple[str, frozenset[Role]]:
        """The identity and its roles.

        Raises:
            InvalidToken: not a token of ours, or no longer one.
            ProviderUnavailable: nobody can say.
        """
        ...


async def principal(request: Request) -> Principal:
    """Who asks, once for each request, and as often as they may.

    Raises:
        Problem: nobody knows them, or they ask too often.
    """
    known: Principal | None = getattr(request.state, "principal", None)
    if known is None:
        known = request.state.principal = await _authenticated(request)
        await _take(request, f"identity:{known.identity}")
    return known


async def _take(request: Request, who: str) -> None:
    wait = await cast("RateLimit", request.app.state.rate).take(who)
    if wait:
        headers = {"Retry-After": str(math.ceil(wait))}
        raise Problem(
            429, "too-many-requests", "you ask too often: wait as long as `Retry-After` says", headers=headers
        )


async def _authenticated(request: Request) -> Principal:
    authenticator = cast("Authenticator", request.app.state.authenticator)
    source = request.client.host if request.client else None
    # Whoever shows a token is who it says, also where nobody would have asked.
    if "Authorization" not in request.headers and not await authenticator.is_required():
        _refuse_other_sites(request)
        return Principal(ANONYMOUS, frozenset({Role.ADMIN}), source)
    try:
        return await _by_token(request, authenticator, source)
    except Problem:
        await _take(request, f"refused:{source}")  # whoever tries tokens is slowed down by where they are
        raise


async def _by_token(request: Request, authenticator: Authenticator, source: str | None) -> Principal:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise unauthenticated("a bearer token is needed: `Authorization: Bearer <token>`")
    try:
        identity, roles = await authenticator.authenticate(token.strip())
    except InvalidToken as error:
        _log.info("a token was refused", action="token-refused", reason=str(error), source=source)
        raise unauthenticated(f"the token is not accepted: {error}", error="invalid_token") from None
    except ProviderUnavailable as error:
        raise Problem(503, "unavailable", str(error), headers={"Retry-After": "10"}) from None
    return Principal(identity, roles, source)


def unauthenticated(detail: str, *, error: str | None = None) -> Problem:
    """The answer to somebody who is not known."""
    challenge = 'Bearer realm="tocsin"' + (f', error="{error}"' if error else "")
    return Problem(401, "unauthenticated", detail, headers={"WWW-Authenticate": challenge})


def forbidden(caller: Principal, permission: Permission) -> Problem:
    """The answer to somebody whose roles do not permit it."""
    roles = ", ".join(sorted(caller.roles)) or "none"
    return Problem(403, "forbidden", f"this needs the permission `{permission}`; the roles of this token are: {roles}")


def _refuse_other_sites(request: Request) -> None:
    """Without tokens a browser on this machine must not be made to call by a page from elsewhere (nor by a rebound name)."""
    origin = request.headers.get("Origin")
    host = request.url.hostname
    if host not in _LOOPBACK or (origin is not None and _host_of(origin) not in _LOOPBACK):
        raise Problem(403, "forbidden", "without authentication only this machine may call, by its loopback address")


def _host_of(origin: str) -> str:
    rest = origin.partition("://")[2]
    return rest[1:].partition("]")[0] if rest.startswith("[") else rest.partition(":")[0]


async def permitted_to(request: Request, *permissions: Permission) -> Principal:
    """Who asks, if they may do one of some things.

    Raises:
        Problem: nobody knows them, or they may not, or they ask too often.
    """
    caller = await principal(request)
    if not any(caller.may(permission) for permission in permissions):
        raise forbidden(caller, permissions[0])
    return caller


def _may(*permissions: Permission) -> Callable[..., Awaitable[Principal]]:
    async def permitted(request: Request, _: Annotated[object, Security(_bearer)]) -> Principal:
        return await permitted_to(request, *permissions)

    return permitted


TRIGGERS: Final = (Permission.TRIGGER, Permission.REGISTER)
"""Either lets somebody ask for runs, and carry them out."""

Reader: TypeAlias = Annotated[Principal, Depends(_may(Permission.READ))]
Triggerer: TypeAlias = Annotated[Principal, Depends(_may(*TRIGGERS))]
Canceller: TypeAlias = Annotated[Principal, Depends(_may(Permission.CANCEL, Permission.REGISTER))]
Replayer: TypeAlias = Annotated[Principal, Depends(_may(Permission.REPLAY, Permission.REGISTER))]
Author: TypeAlias = Annotated[Principal, Depends(_may(Permission.REGISTER))]


def actor(caller: Principal) -> Actor:
    """The caller, as facts name them."""
    return Actor(identity=caller.identity, source=caller.source)


def visible(caller: Principal, job: Job) -> Job:
    """The job, if the caller may know of it.

    Raises:
        JobNotFound: they may not: what is hidden is not told from what is not there.
    """
    if not caller.may_see(job):
        raise JobNotFound(job.name)
    return job


def permitted(caller: Principal, permission: Permission) -> Check:
    """A check that the caller may do something with the job at hand; one that is not there yet may be registered."""

    def check(job: Job | None) -> None:
        if job is None or caller.may_with(permission, job):
            return
        if not caller.may_see(job):
            raise JobNotFound(job.name)
        raise Problem(
            403, "forbidden", f"{job.name!r} is not yours: it needs the role `{Role.ADMIN}`, its creator or its owner"
        )

    return check
