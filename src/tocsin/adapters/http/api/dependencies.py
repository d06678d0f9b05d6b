"""Parameters that handlers share: the components, the reason and the precondition of a change.

What the handlers are given: the parts of an installation, introduced to them by the composition root.

What comes with a change: why, and on what condition (RFC 9110, If-Match on the sequence of the definition's last fact).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias, cast

from fastapi import Depends, Header, Request
from pydantic import StringConstraints

from ....domain.definition import Text
from ....ports import Clock, EventLog, History, Projections, StoredLog, TaskQueues
from ....services.jobs import Check, Job, Registry
from ....services.operations.event_waiter import EventWaiter
from ....settings import Settings
from ..auth.security import Visibility
from .problems import Problem, invalid


@dataclass(frozen=True)
class Components:
    """One installation, as this adapter sees it."""

    version: str
    settings: Settings
    registry: Registry
    log: EventLog
    stored: StoredLog
    projections: Projections
    history: History
    clock: Clock
    sight: Visibility
    status: Callable[[], Awaitable[dict[str, Any]]]
    """What the installation consists of at this moment."""
    queues: TaskQueues
    arrivals: EventWaiter
    """Tells who enqueues that it has begun, and who answers what was decided on it."""
    reset: Callable[[], Awaitable[None]] | None = None
    """Wipes everything, where that is allowed."""


def parts_of(request: Request) -> Components:
    """What the application was made of."""
    return cast("Components", request.app.state.parts)


async def _parts(request: Request) -> Components:  # a coroutine, since FastAPI has a thread run what is none
    return parts_of(request)


Here: TypeAlias = Annotated[Components, Depends(_parts)]


MAX_REASON: Final = 1_000

Reason: TypeAlias = Annotated[
    Text | None,
    Header(alias="X-Reason", max_length=MAX_REASON, description="Why; it is recorded with the change."),
]
ReasonText: TypeAlias = Annotated[Text, StringConstraints(max_length=MAX_REASON)]


def etag(job: Job) -> str:
    """The version of a job's definition."""
    return f'"{job.sequence}"'


def _precondition(
    if_match: Annotated[
        str | None, Header(description="Only if the job is at this version (its `ETag`), or `*`: if there is one.")
    ] = None,
    if_none_match: Annotated[str | None, Header(description="`*`: only if there is no such job.")] = None,
) -> Check:
    if if_none_match not in {None, "*"}:
        raise invalid("If-None-Match", if_none_match, "must be `*`")
    expected = None if if_match is None else {tag.strip().removeprefix("W/") for tag in if_match.split(",")}

    def check(job: Job | None) -> None:
        if if_none_match == "*" and job is not None:
            raise _failed(job)
        if expected is not None and (job is None or not expected & {"*", etag(job)}):
            raise _failed(job)

    return check


def _failed(job: Job | None) -> Problem:
    now = f"it is at version {etag(job)} now" if job else "there is no such job"
    headers = {"ETag": etag(job)} if job else {}
    return Problem(412, "precondition-failed", f"the job is not as this request expects it: {now}", headers=headers)


Precondition: TypeAlias = Annotated[Check, Depends(_precondition)]


def both(*checks: Check) -> Check:
    """All of some checks, in order."""

    def check(job: Job | None) -> None:
        for one in checks:
            one(job)

    return check
