"""The caller of a request and the permissions of the caller (hip-62, Authentication and Authorization).

A handler's dependency checks the permission of its endpoint. The permission for the particular job is checked again on the
state on which the change is decided, because the job may have another owner by then. `visibility` has the rules for executions.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Final, TypeAlias, cast

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from .... import telemetry
from ....domain.access import Permission, Principal, Role
from ....domain.definition import JobDefinition, runs_code
from ....domain.events import Actor
from ....domain.ledger import JobNotFound
from ....ports import LogUnavailable
from ....services.jobs import Check, Job
from ..api.problems import Problem, check_query
from ..middleware.rate_limit import RateLimit
from . import session
from .authentication import Authentication, ProviderUnavailable
from .tokens import InvalidToken

ANONYMOUS: Final = "anonymous"
OVER_NATS: Final = "nats"
"""The source of requests that came over NATS."""
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

_log = telemetry.get_logger("tocsin.http")
_bearer = HTTPBearer(
    auto_error=False, description="A JSON Web Token of the identity provider, or a token of this installation."
)


async def principal(request: Request) -> Principal:
    """Authenticate the caller once per request, and count the request against its rate."""
    known: Principal | None = getattr(request.state, "principal", None)
    if known is None:
        known = request.state.principal = await counted(request, _authenticated(request))
    return known


async def counted(request: Request, authenticating: Awaitable[Principal]) -> Principal:
    """Return the caller, and count the request against its rate.

    A refused request counts against the address, which slows down a client that guesses tokens.
    """
    try:
        caller = await authenticating
    except Problem:
        await count_request(request, f"refused:{source_of(request)}")
        raise
    await count_request(request, f"identity:{caller.account}")
    return caller


async def count_request(request: Request, key: str) -> None:
    """Count a request against the rate of a key, or refuse it."""
    rate: RateLimit | None = request.app.state.rate
    if rate is None:
        return
    allowance = request.state.allowance = await rate.take(key)
    if allowance.wait:
        detail = "the caller exceeds its request rate. Wait as long as `Retry-After` says"
        raise Problem(429, "too-many-requests", detail, headers={"Retry-After": str(math.ceil(allowance.wait))})


async def _authenticated(request: Request) -> Principal:
    authenticator = cast("Authentication", request.app.state.authenticator)
    source = source_of(request)
    # A token or a session is checked even if none is required.
    if "Authorization" in request.headers:
        return await _by_header(request)
    if source != OVER_NATS and session.is_presented(request):
        return await by_session(request)
    if await authenticator.is_required():
        return await _by_header(request)
    _reject_other_sites(request)
    return Principal(ANONYMOUS, frozenset({Role.ADMIN}), "nats" if source == OVER_NATS else "local", source)


async def still_permitted(request: Request, caller: Principal, permission: Permission) -> Principal | None:
    """Authenticate the caller of a long answer again; None: it is no longer permitted.

    A caller that cannot be authenticated now stays what it was: while the provider or the log fails, no stream ends.
    """
    try:
        current = await _authenticated(request)
    except LogUnavailable:
        return caller
    except Problem as problem:
        return caller if problem.kind == "unavailable" else None
    return current if current.may(permission) else None


def source_of(request: Request) -> str | None:
    return request.client.host if request.client else None


async def _by_header(request: Request) -> Principal:
    given = request.headers.getlist("Authorization")
    if len(given) > 1:  # a proxy may have checked another entry than this server would
        raise unauthenticated(f"the request has {len(given)} headers `Authorization`. Send one")
    scheme, _, token = "".join(given).partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise unauthenticated("a bearer token is required. Send `Authorization: Bearer <token>`")
    return await by_token(request, token.strip())


async def by_session(request: Request) -> Principal:
    """Return the caller of a request with a session cookie."""
    try:
        token = session.session_token(request)
    except InvalidToken as error:
        raise unauthenticated(f"the session is not accepted: {error}. Sign in again") from None
    caller = await by_token(request, token)
    session.require_csrf_token(request, token)
    return caller


async def by_token(request: Request, token: str) -> Principal:
    """Return the caller with a token."""
    source = source_of(request)
    try:
        caller = await cast("Authentication", request.app.state.authenticator).authenticate(token)
    except InvalidToken as error:
        _log.info("token rejected", action="token-refused", reason=str(error), source=source)
        raise unauthenticated(f"the token is not accepted: {error}", error="invalid_token") from None
    except ProviderUnavailable as error:
        raise Problem(503, "unavailable", str(error), headers={"Retry-After": "10"}) from None
    return replace(caller, source=source)


def unauthenticated(detail: str, *, error: str | None = None) -> Problem:
    """Return the answer to a caller that is not authenticated."""
    challenge = 'Bearer realm="tocsin"' + (f', error="{error}"' if error else "")
    return Problem(401, "unauthenticated", detail, headers={"WWW-Authenticate": challenge})


def refusal(detail: str, kind: str = "forbidden") -> Problem:
    """Return the answer to a caller that may not do what it requests."""
    return Problem(403, kind, detail)


def forbidden(caller: Principal, permission: Permission) -> Problem:
    """Return the answer to a caller without a permission."""
    roles = ", ".join(sorted(caller.roles)) or "none"
    return refusal(f"the request requires the permission `{permission}`; the roles of this token are: {roles}")


def outside_namespaces(caller: Principal, what: str, name: str) -> Problem:
    """Return the answer to a name outside the namespaces of the caller."""
    known = sorted(caller.namespaces or ())
    right = f"begin the name with {' or '.join(f'`{namespace}.`' for namespace in known)}" if known else "use another"
    detail = f"{what} {name!r} is outside the namespaces of this token: {right}, or use another token"
    return refusal(detail, "outside-namespace")


def require_within(caller: Principal, definition: JobDefinition) -> None:
    """Check that a caller reaches a job, its queues and its channels."""
    if not caller.is_bound:
        return
    if not caller.reaches(definition.name):
        raise outside_namespaces(caller, "job", definition.name)
    for what, names in (("queue", definition.step_queues()), ("channel", definition.channels)):
        for name in names:
            if not caller.reaches(name):
                raise outside_namespaces(caller, what, name)


def _reject_other_sites(request: Request) -> None:
    """Reject requests that a page of another site sends, also through DNS rebinding."""
    origin = request.headers.get("Origin")
    host = request.url.hostname
    if host not in LOOPBACK_NAMES or (origin is not None and _host_of(origin) not in LOOPBACK_NAMES):
        detail = "without authentication only this machine may call, through its loopback address"
        raise refusal(f"{detail}. Create a token with `tocsin tokens create`")


def _host_of(origin: str) -> str | None:
    """Return the host of an origin (RFC 6454, 6.2); None: the text has another form."""
    parts = session.ORIGIN.fullmatch(origin)
    return parts["host"].strip("[]").lower() if parts else None


async def permitted_to(request: Request, *permissions: Permission) -> Principal:
    """Return the caller if it has one of the permissions, or if none is named."""
    caller = await principal(request)
    if permissions and not any(caller.may(permission) for permission in permissions):
        raise forbidden(caller, permissions[0])
    check_query(request)
    return caller


def _may(*permissions: Permission) -> Callable[..., Awaitable[Principal]]:
    async def permitted(request: Request, _: Annotated[object, Security(_bearer)]) -> Principal:
        return await permitted_to(request, *permissions)

    return permitted


TRIGGERS: Final = (Permission.TRIGGER, Permission.REGISTER)
"""Each of them permits triggering runs."""


async def _installation_reader(caller: Annotated[Principal, Depends(_may(Permission.READ))]) -> Principal:
    if caller.is_bound:
        detail = "the answer is about the whole installation, and this token is bound to namespaces"
        raise refusal(f"{detail}. Use a token without a namespace", "outside-namespace")
    return caller


Caller: TypeAlias = Annotated[Principal, Depends(_may())]
"""Every authenticated caller."""
InstallationReader: TypeAlias = Annotated[Principal, Depends(_installation_reader)]
"""Readers that are not bound to namespaces."""
Reader: TypeAlias = Annotated[Principal, Depends(_may(Permission.READ))]
HistoryReader: TypeAlias = Annotated[Principal, Depends(_may(Permission.HISTORY))]
"""Callers that see executions, of the jobs that they see."""
Triggerer: TypeAlias = Annotated[Principal, Depends(_may(*TRIGGERS))]
TaskWorker: TypeAlias = Annotated[Principal, Depends(_may(Permission.WORK))]
"""Workers and administrators; `Principal.may_run` says which tasks."""
Canceller: TypeAlias = Annotated[Principal, Depends(_may(Permission.CANCEL, Permission.REGISTER))]
Replayer: TypeAlias = Annotated[Principal, Depends(_may(Permission.REPLAY, Permission.REGISTER))]
SharedOperator: TypeAlias = Annotated[Principal, Depends(_may(Permission.CANCEL))]
"""Operators and administrators: agents and queues serve the jobs of many authors."""
Administrator: TypeAlias = Annotated[Principal, Depends(_may(Permission.ADMINISTER))]
Author: TypeAlias = Annotated[Principal, Depends(_may(Permission.REGISTER))]


def actor(caller: Principal) -> Actor:
    return Actor(identity=caller.identity, kind=caller.kind, source=caller.source)


def visible(caller: Principal, job: Job) -> Job:
    """Return a job that the caller may see; a hidden job counts as missing."""
    if not caller.may_see(job):
        raise JobNotFound(job.name)
    return job


def permitted(caller: Principal, permission: Permission) -> Check:
    """Return a check of the caller's permission for a job; a new job passes."""

    def check(job: Job | None) -> None:
        if job is None or caller.may_with(permission, job):
            return
        if not caller.may_see(job):
            raise JobNotFound(job.name)
        action, roles = "changed", f"the role `{Role.ADMIN}`"
        if permission is Permission.TRIGGER:
            action, roles = "run", f"the roles `{Role.OPERATOR}` and `{Role.ADMIN}`"
        raise refusal(f"job {job.name!r} may be {action} only by its creator, its owner, or {roles}")

    return check


def defining(caller: Principal, definition: JobDefinition) -> Check:
    """Return a check of the caller's right to give a job a definition.

    A job that runs a program or a statement, before or after, needs the permission `external` too.
    """
    require_within(caller, definition)
    is_permitted = permitted(caller, Permission.REGISTER)

    def check(job: Job | None) -> None:
        is_permitted(job)
        if caller.may(Permission.EXTERNAL) or (job is not None and job.definition == definition):
            return
        if runs_code(definition) or (job is not None and runs_code(job.definition)):
            what = f"job {definition.name!r} runs a program or a statement"
            right = f"the permission `{Permission.EXTERNAL}`: the role `{Role.EXTERNAL}` grants it"
            raise refusal(f"{what}, which requires {right}")

    return check
