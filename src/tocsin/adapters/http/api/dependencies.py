"""Parameters that handlers share: the components, the reason and the precondition of a change."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, TypeAlias, TypeVar, cast
from urllib.parse import unquote

from fastapi import Depends, Header, Request
from pydantic import BaseModel, BeforeValidator, StringConstraints
from starlette.requests import ClientDisconnect

from ....domain.access import Principal
from ....domain.definition import Text
from ....ports import Clock, EventLog, History, Projections, StoredLog
from ....ports.summaries import QueueCounts
from ....services.agents import AgentRegistry
from ....services.calculations import Calculations, Calculator, Effort, SharedRead, T, Turns
from ....services.definition_settings import UnheardStreams
from ....services.documents import Versioned
from ....services.health import Finding
from ....services.health.coordination import Leadership
from ....services.health.doctor import is_reached
from ....services.hold_ups import HoldUpReader
from ....services.jobs import Check, Job, Registry
from ....services.jobs.job_filter import SearchKeys
from ....services.jobs.job_follower import JobWatch, NextInstants
from ....services.operations.event_waiter import EventWaiter
from ....services.operations.task_fetches import TaskFetches
from ....services.queue_decisions import PausedNames, QueueDecisions, QueueNames
from ....services.queues import QueueDetails, Reaches, Sees, count, everything
from ....services.schedule_density import ScheduleGroups
from ....services.webhooks import Webhooks
from ....settings import Settings
from ..auth.security import actor, principal
from ..auth.visibility import Visibility, narrowed
from .problems import Problem, invalid

MAX_AT_ONCE: Final = 2
"""Requests of a kind that run at the same time, each of another party; others wait. `Components` has the reasons."""


@dataclass(frozen=True)
class Components:
    """The parts of an installation that handlers use."""

    version: str
    settings: Settings
    registry: Registry
    log: EventLog
    stored: StoredLog
    projections: Projections
    history: History
    clock: Clock
    report_key: bytes
    """The installation's key, which proves reports on claims."""
    visibility: Visibility
    status: Callable[[], Awaitable[dict[str, Any]]]
    """Returns the current state of the installation's parts."""
    doctor: Callable[[], Awaitable[Sequence[Finding]]]
    """Runs every check of the installation."""
    leadership: Callable[[], Awaitable[Leadership]]
    """Returns the leader leases."""
    queue_details: Callable[[Sees, Reaches], Awaitable[tuple[QueueDetails, ...]]]
    """Returns the queues that a caller reaches, with the jobs that the caller sees."""
    fetches: TaskFetches
    """Fetches tasks for workers over HTTP."""
    arrivals: EventWaiter
    """Wakes a request that waits for its input to be processed: a pushed job, or a worker's report."""
    webhooks: Webhooks
    """Receives requests to webhooks."""
    unheard_streams: Callable[[], Awaitable[UnheardStreams]]
    """Returns the streams that no trigger can hear, up to a second ago."""
    instants: NextInstants = field(default_factory=NextInstants)
    search_keys: SearchKeys = field(default_factory=SearchKeys)
    schedule_groups: ScheduleGroups = field(default_factory=ScheduleGroups)
    calculations: Calculations = field(default_factory=Calculations)
    selects: Turns = field(default_factory=lambda: Turns(MAX_AT_ONCE))
    """Limits the requests with a SELECT that run at the same time, because each holds copies of many rows."""
    event_searches: Turns = field(default_factory=lambda: Turns(MAX_AT_ONCE))
    """Limits the searches for events that run at the same time, because each reads many messages."""
    job_searches: Turns = field(default_factory=lambda: Turns(MAX_AT_ONCE))
    """Limits the searches for the jobs of a filter that run at the same time, because each loads many executions."""
    what_ifs: Turns = field(default_factory=lambda: Turns(MAX_AT_ONCE))
    """Limits the replays of the past that run at the same time, because each holds many executions in memory."""
    job_watch: JobWatch = field(init=False)
    """Keeps the list of jobs up to date while no request does, once a caller runs it."""
    log_probe: SharedRead[bool] = field(init=False)
    """Answers probes without a token."""
    queue_counts: SharedRead[Mapping[str, QueueCounts]] = field(init=False)
    """Counts the jobs of all queues, once for all callers."""
    queue_names: QueueNames = field(init=False)
    """Distinguishes queues that exist from names that may be misspelled."""
    paused_names: PausedNames = field(init=False)
    """Limits the absent queues that are paused."""
    began: float = field(default_factory=time.monotonic)
    """When this copy began, by the monotonic clock (seconds)."""
    reset: Callable[[PausedNames], Awaitable[None]] | None = None
    """Ends everything (`services.reset`); None: `tocsin dev --allow-reset` was not used."""

    def __post_init__(self) -> None:
        followers = (self.instants, self.search_keys, self.schedule_groups)
        watch = JobWatch(self.registry, followers, self.calculations, self.clock)
        object.__setattr__(self, "job_watch", watch)
        object.__setattr__(self, "log_probe", SharedRead(partial(is_reached, self.log)))
        object.__setattr__(self, "queue_counts", SharedRead(self._queue_counts))
        object.__setattr__(self, "queue_names", QueueNames(self.log, self.registry.jobs, self.settings.queues))
        object.__setattr__(self, "paused_names", PausedNames(self.log))

    def hold_ups(self, caller: Principal) -> HoldUpReader:
        """Return the reader of hold-ups, as far as a caller may know them."""
        narrow = partial(narrowed, caller)
        return HoldUpReader(self.log, self.projections, bridged=self.settings.bridged_queues, narrow=narrow)

    @property
    def agents(self) -> AgentRegistry:
        return AgentRegistry(self.log, self.projections)

    def queue_decisions(self, caller: Principal) -> QueueDecisions:
        """Return the decisions on queues, in the name of a caller."""
        return QueueDecisions(self.log, by=actor(caller), room=self.registry.room)

    async def queues(self, caller: Principal) -> tuple[QueueDetails, ...]:
        return await self.queue_details(caller.may_see, caller.reaches)

    async def _queue_counts(self) -> Mapping[str, QueueCounts]:
        names = [queue.name for queue in await self.queue_details(everything, everything)]
        return dict(zip(names, await count(self.history.summaries, self.clock, names), strict=True))


M = TypeVar("M", bound=BaseModel)


def shown_as(kind: type[M], source: object, **others: Any) -> M:  # noqa: ANN401 - any field
    """Return an answer with the fields of an object by name, and others."""
    same = {name: getattr(source, name) for name in kind.model_fields if hasattr(source, name)}
    return kind(**(same | others))


def parts_of(request: Request) -> Components:
    return cast("Components", request.app.state.parts)


async def _parts(request: Request) -> Components:  # a coroutine, because FastAPI runs other functions in a thread
    return parts_of(request)


Here: TypeAlias = Annotated[Components, Depends(_parts)]


async def _calculator(request: Request) -> Calculator:
    """Run calculations in the pool, and abandon them when the client disconnects."""
    calculations = parts_of(request).calculations

    async def calculate(compute: Callable[[Effort], T], /) -> T:
        party = (await principal(request)).party
        return await until_disconnect(request, calculations.run(compute, party=party))

    return calculate


async def until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of some work; raise `ClientDisconnect` when the client leaves."""
    result = asyncio.create_task(work)
    disconnect = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({result, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientDisconnect
        return result.result()
    finally:
        for task in (result, disconnect):
            task.cancel()
        await asyncio.gather(result, disconnect, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    """Return when the client has disconnected. The body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


Calculate: TypeAlias = Annotated[Calculator, Depends(_calculator)]


MAX_REASON: Final = 1_000

ENCODED: Final = "UTF-8''"
"""Precedes percent-encoded text in a header (RFC 8187)."""


def _decoded(text: str) -> str:
    """Return the text of a header: percent-encoded, UTF-8 as `curl` sends it, or Latin-1."""
    if text[: len(ENCODED)].upper() == ENCODED:
        try:
            return unquote(text[len(ENCODED) :], errors="strict")
        except UnicodeDecodeError:
            raise ValueError(f"must be percent-encoded UTF-8 after `{ENCODED}`") from None
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


ReasonText: TypeAlias = Annotated[Text, StringConstraints(max_length=MAX_REASON)]
Reason: TypeAlias = Annotated[
    Annotated[ReasonText, BeforeValidator(_decoded)] | None,
    Header(
        alias="X-Reason",
        description="The reason for the change, recorded in its event: ASCII text, or percent-encoded UTF-8 after `UTF-8''`.",
    ),
]

Traceparent: TypeAlias = Annotated[
    str | None,
    Header(
        description="The trace that the execution continues (W3C Trace Context). A value that is not valid is ignored."
    ),
]


class ChangeRequest(BaseModel, extra="forbid"):
    """The reason for a change."""

    reason: ReasonText | None = None


async def _cause(body: ChangeRequest | None = None, reason: Reason = None) -> str | None:
    return (body.reason if body else None) or reason


Cause: TypeAlias = Annotated[str | None, Depends(_cause)]
"""The reason of a change whose body has nothing else."""


def etag(job: Job) -> str:
    return version_tag(job.sequence)


def _has_expected_version(if_match: str | None, version: str | None) -> bool:
    """Return whether `If-Match` permits a change; `version`: the `ETag`, or None without a resource."""
    if if_match is None:
        return True
    tags = {tag.strip().removeprefix("W/") for tag in if_match.split(",")}
    return version is not None and not tags.isdisjoint({"*", version})


def version_check(if_match: str | None, resource: str) -> Callable[[Versioned], None]:
    """Return a check that a declaration has the version that an `If-Match` header expects."""

    def check(newest: Versioned) -> None:
        if not _has_expected_version(if_match, tag := version_tag(newest.version)):
            raise _failed(resource, tag)

    return check


def version_tag(version: int) -> str:
    """Return the `ETag` of a version."""
    return f'"{version}"'


def _precondition(
    if_match: Annotated[
        str | None,
        Header(description="Change the job only if it has this version (its `ETag`); `*`: only if it exists."),
    ] = None,
    if_none_match: Annotated[str | None, Header(description="`*`: only if the job does not exist.")] = None,
) -> Check:
    if if_none_match not in {None, "*"}:
        raise invalid("If-None-Match", if_none_match, "must be `*`")

    def check(job: Job | None) -> None:
        tag = None if job is None else etag(job)
        if (if_none_match == "*" and job is not None) or not _has_expected_version(if_match, tag):
            raise _failed("job", tag)

    return check


def _failed(resource: str, tag: str | None) -> Problem:
    now = f"its version is {tag}" if tag else "it does not exist"
    detail = f"the {resource} does not have the expected version: {now}"
    return Problem(412, "precondition-failed", detail, headers={"ETag": tag} if tag else {})


Precondition: TypeAlias = Annotated[Check, Depends(_precondition)]


def both(*checks: Check) -> Check:
    def check(job: Job | None) -> None:
        for check_next in checks:
            check_next(job)

    return check
