"""Status of all parts of an installation; a silent part is listed with the reason."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from ...archive.log_archive import LogArchive
from ...domain.agent import AgentRecord, AgentState, WorkerKind
from ...domain.definition import STORED
from ...domain.events import Message, Recorded
from ...domain.job_record import Registration
from ...domain.queue_backlog import QueueBacklog
from ...domain.text import counted
from ...engine.fold import Fold
from ...engine.foreign_reports import ForeignReport, not_voided
from ...engine.presence import Present, processes
from ...engine.stage_leases import lease_of
from ...ports import (
    Clock,
    DurableSpec,
    EventLog,
    History,
    HistoryUnavailable,
    LogUnavailable,
    Projections,
    RequestRefused,
    Unreachable,
    UnsupportedLayout,
)
from ...ports.queries import ExecutionQuery
from ...ports.server_inspection import DurableState, ServerInspection, ServerState, StreamState
from ...settings import Settings
from ...subjects import LAYOUT, SERVER_STREAMS, Bucket, DecodeError, Stream, UnreadableMessage
from ..agents import AgentRegistry, backlogs
from ..unserved import Unserved, in_short, line_of, unserved
from .coordination import (
    AsideCandidate,
    Lease,
    Proposals,
    Shards,
    bindings,
    leadership_of,
    shards_of,
    waiting_proposals,
)
from .unheard_triggers import Progress, unheard_triggers, waiting_events

T = TypeVar("T")

UNANSWERED_AFTER_S: Final = 2.0
"""Seconds after which a commit without an answer is a problem."""
LOST_AFTER_S: Final = 4.0
"""Seconds after which a reader without a consumer is a problem."""
SQLITE: Final = "sqlite:///"
LAID_OUT: Final = (Stream.LOG, Stream.INPUTS)
"""The streams whose layout is checked: a layout before 11 has no log of commits."""
UNAVAILABLE: Final = (LogUnavailable, HistoryUnavailable, RequestRefused, Unreachable, DecodeError)
"""Errors that leave a part of the status unknown."""


# `tocsin doctor` examines more than these problems, and says what to do about each finding.
def problems_of(seen: "Status") -> tuple[str, ...]:
    """Return the problems that a status shows, the gravest first."""
    return (*_silent(seen), *_leaders(seen), *_processes(seen), *_queues(seen), *_others(seen))


def _silent(seen: "Status") -> Iterator[str]:
    missing = [name for name, stream in seen.streams.items() if stream is None]
    if missing:
        yield f"missing: {', '.join(missing)}. Run `tocsin init`."
    for part, reason in seen.troubles.items():
        yield f"unknown: {part}: {reason}"


def _leaders(seen: "Status") -> Iterator[str]:
    for lease in seen.leases or ():
        if lease.is_last_resort:
            yield f"no candidate for `{lease.name}` has a credible clock: {lease.holder} leads as the last resort"
        if (since := lease.lateness(seen.at)) is not None:
            yield (
                f"{lease.holder} did not renew the lease `{lease.name}` for {since.total_seconds():.0f} s: nats-server may "
                "store nothing (a full disk?), or the process hangs or was killed; see `tocsin doctor`"
            )
    for candidate in seen.standing_aside:
        offset = f"{candidate.clock_offset:+.3f} s ±{candidate.clock_error:.3f}"
        yield f"{candidate.holder} does not stand for `{candidate.lease}`: its clock differs from the log's by {offset}"


def _processes(seen: "Status") -> Iterator[str]:
    for process in seen.processes:
        if process.unanswered is not None and process.unanswered[1] >= UNANSWERED_AFTER_S:
            reason, seconds = process.unanswered
            yield f"a commit of {named(process)} is not answered for {seconds:.0f} s: {reason}; see `tocsin doctor`"
        for source, seconds in sorted(process.lost.items()):
            if seconds >= LOST_AFTER_S:
                yield f"{named(process)} cannot read {source} for {seconds:.0f} s; see `tocsin doctor`"


def named(process: Present) -> str:
    """Return the name of a process with its stages.

    They are the stages for which it decides.
    """
    return f"{process.name} ({', '.join(map(lease_of, process.led))})" if process.led else process.name


def _queues(seen: "Status") -> Iterator[str]:
    unattended = [queue for queue in seen.queues if queue.is_unattended]
    for queue in unattended:
        yield f"{counted(queue.waiting, 'task')} in queue `{queue.name}`, and no worker requests tasks from it"
    for name, number in sorted(seen.unserved.items()):
        if name not in {queue.name for queue in unattended}:
            yield f"{line_of(name, number)}; see `tocsin doctor`"
    if deadly := sorted({job for queue in seen.queues for job in queue.deadly_jobs}):
        yield f"two or more workers were lost with one task of {', '.join(deadly)}; see `tocsin doctor`"


def _others(seen: "Status") -> Iterator[str]:
    """Yield a sentence on shards, on foreign and unreadable messages, and on triggers."""
    if seen.shards is not None and seen.shards.without_owner:
        more = ", …" if seen.shards.without_owner > len(seen.shards.listed) else ""
        number = counted(seen.shards.without_owner, "shard")
        yield f"no enabled agent may own {number}, whose tasks wait: {', '.join(seen.shards.listed)}{more}; see `tocsin doctor`"
    if foreign := [report for report in seen.foreign if not report.is_unreadable]:
        messages = counted(len(foreign), "message")
        yield f"{messages} that no stage stored, the first is {foreign[0].place}: run `tocsin repair --dry-run`"
    if unreadable := [report for report in seen.foreign if report.is_unreadable]:
        events = counted(len(unreadable), "event")
        yield f"{events} that this version cannot read, the first is {unreadable[0].place}; see `tocsin doctor`"
    if seen.unheard_triggers:
        triggers = counted(len(seen.unheard_triggers), "trigger")
        yield f"{triggers} whose source is not opened or does not exist, the first is {seen.unheard_triggers[0]}; see `tocsin doctor`"


@dataclass(frozen=True)
class HealthTarget:
    """The parts of an installation that are examined."""

    root: str
    settings: Settings
    log: EventLog
    projections: Projections
    clock: Clock
    inspection: ServerInspection
    archive: LogArchive
    open_history: Callable[[], AbstractAsyncContextManager[History]]
    has_key: Callable[[], Awaitable[bool]]
    durables: Sequence[DurableSpec]
    owners: Mapping[tuple[Stream, str], str]
    """Stage of each durable; that of MQ executors has none."""
    recorded: Sequence[str]
    """Filters over the messages of the log that the history records."""
    load_fold: Callable[[], Awaitable[Fold]]
    led: Sequence[str] = ()
    """The stages with leases on the log of commits."""
    followers: Mapping[str, Sequence[DurableSpec]] = field(default_factory=dict)
    """The events of the log that stages at its edge follow, with the names of their places."""


@dataclass(frozen=True, slots=True)
class Durable:
    """A durable, its owner, and the time of its oldest unacknowledged message."""

    state: DurableState
    owner: str
    """A stage, or empty if it is unknown."""
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of tasks.

    `executors`: open requests of workers, or the agents that serve a matched queue; `taken`: tasks that workers hold.
    """

    name: str
    waiting: int
    taken: int
    executors: int
    oldest: datetime | None = None
    """Time of the oldest task that waits, if the queue is matched."""
    functions: Mapping[str, int] | None = None
    """The functions with the most tasks that wait, if the queue is matched."""
    held_back: int = 0
    """Tasks that limits hold back, if the queue is matched."""
    deadly_jobs: tuple[str, ...] = ()
    """Jobs with a task that lost two or more workers, if the queue is matched."""

    @property
    def is_unattended(self) -> bool:
        """Tasks wait, and no worker requests or holds any."""
        return bool(self.waiting) and not self.executors and not self.taken


@dataclass(frozen=True, slots=True)
class Jobs:
    """Number of registered jobs."""

    registered: int
    paused: int
    disabled: int


@dataclass(frozen=True, slots=True)
class HistoryPlace:
    """Progress of the history. `newest` and `place` are sequences of the log."""

    place: int
    newest: int
    since: datetime | None
    """Time of the oldest message that is not recorded yet."""
    open: int
    """Unfinished executions, as far as the history knows."""


@dataclass(frozen=True, slots=True)
class Status:
    """The state of all parts.

    A part that is None did not answer; `troubles` holds the reason.
    """

    at: datetime
    root: str
    server: ServerState
    streams: Mapping[str, StreamState | None]
    leases: tuple[Lease, ...] | None
    durables: tuple[Durable, ...]
    queues: tuple[Queue, ...]
    jobs: Jobs | None
    history: HistoryPlace | None
    troubles: Mapping[str, str]
    agents: Mapping[str, int] | None = None
    """Number of registered agents in each state."""
    outside_workers: Mapping[WorkerKind, Mapping[str, int]] = field(default_factory=dict)
    """Number of workers that do not register in each state, by kind."""
    unserved: Mapping[str, int | None] = field(default_factory=dict)
    """The number of functions of jobs and waiting tasks that no worker has, by queue; None: no worker reads the queue."""
    missing: tuple[Unserved, ...] = ()
    """What these jobs need."""
    foreign: tuple[ForeignReport, ...] = ()
    """Messages in the streams of decisions that no stage stored, as far as processes met them."""
    standing_aside: tuple[AsideCandidate, ...] = ()
    """Processes that stand for no lease because their clocks are not credible."""
    shards: Shards | None = None
    """Numbers of shards of the newest map."""
    proposals: Proposals | None = None
    """Number of executions that wait for acknowledgements of agents."""
    trigger_progress: Progress = field(default_factory=dict)
    """The streams of triggers that were examined."""
    unheard_triggers: tuple[str, ...] = ()
    """Triggers in force whose source is not opened or does not exist, with their jobs."""
    processes: tuple[Present, ...] = ()
    """The processes that read the log of commits."""
    waiting_events: Mapping[str, int] = field(default_factory=dict)
    """Number of events that wait in streams of programs, by trigger with its job."""

    @property
    def is_set_up(self) -> bool:
        return not any(stream is None for stream in self.streams.values())


async def status(target: HealthTarget) -> Status:
    """Look at every part once. A part that is down is no error.

    Raises:
        UnsupportedLayout: the streams have another layout than this version needs.
    """
    inspection = target.inspection
    query = _Query()
    names = inspection.stream_names()
    states = await asyncio.gather(*(query(f"stream {name}", partial(inspection.stream, name)) for name in names))
    # Streams that did not answer are left out, and None stands for a stream that does not exist.
    streams = {name: state for name, state in zip(names, states, strict=True) if f"stream {name}" not in query.troubles}
    for stream in LAID_OUT:
        state = streams.get(inspection.stream_name(stream))
        if state is not None and state.layout != LAYOUT:
            raise UnsupportedLayout(state.name, state.layout, streams=inspection.stream_names())
    log, projections = target.log, target.projections
    query.present = {
        *(stream for stream in Stream if streams.get(inspection.stream_name(stream))),
        *(bucket for bucket in Bucket if streams.get(inspection.bucket_stream_name(bucket))),
    }
    leadership, registrations, history, workers, matched, foreign = await asyncio.gather(
        query("leases", partial(leadership_of, inspection), Bucket.LEADER),
        query("jobs", partial(registrations_of, target), Bucket.DEFINITIONS),
        query("history", partial(_history, target), Stream.LOG),
        query("agents", AgentRegistry(log, projections).agents, Bucket.AGENTS),
        query("queues", partial(_matched_queues, target), Bucket.QUEUES),
        query("foreign messages", partial(not_voided, log, projections), Bucket.FOREIGN),
    )
    progress: Progress = {}
    bound, unheard, proposals, present = await asyncio.gather(
        query("shards", partial(bindings, log), Stream.LOG),
        query("triggers", partial(unheard_triggers, target.settings, inspection, registrations or (), progress)),
        query("proposals", partial(waiting_proposals, log, projections), Bucket.CURSORS, Stream.LOG),
        query("processes", partial(processes, projections), Bucket.LEADER),
    )
    of_streams = await asyncio.gather(
        *(
            query(f"durables of {inspection.stream_name(stream)}", partial(_durables, target, stream))
            for stream in sorted(stream for stream in SERVER_STREAMS if stream in query.present)
        )
    )
    durables = tuple(durable for of_stream in of_streams if of_stream for durable in of_stream)
    agents = None if workers is None else _by_kind(workers)
    missing: list[Unserved] = []
    if registrations is not None and workers is not None:
        definitions = [registration.definition for registration in registrations]
        bridged = target.settings.bridged_queues
        missing = unserved(definitions, workers, outside=bridged, waiting=functions_waiting(matched or ()))
    return Status(
        at=target.clock.now(),
        root=target.root,
        server=inspection.server(),
        streams=streams,
        leases=None if leadership is None else leadership.leases,
        durables=durables,
        queues=tuple(matched or ()),
        jobs=None if registrations is None else _numbers_of(registrations),
        history=history,
        unserved=in_short(missing),
        missing=tuple(missing),
        troubles=query.troubles,
        agents=None if agents is None else agents.get("agent", {}),
        outside_workers={kind: states for kind, states in (agents or {}).items() if kind != "agent"},
        foreign=foreign or (),
        standing_aside=() if leadership is None else leadership.standing_aside,
        shards=None if bound is None else shards_of(bound, workers),
        proposals=proposals,
        processes=tuple(present or ()),
        trigger_progress=progress,
        unheard_triggers=unheard or (),
        waiting_events=waiting_events(target.settings, registrations or (), progress),
    )


def as_json(seen: Status) -> dict[str, Any]:
    """Return a status and its problems as JSON, without the configuration of the servers."""
    answer = asdict(seen)
    answer["problems"] = list(problems_of(seen))
    del answer["missing"], answer["trigger_progress"]
    for stream in answer["streams"].values():
        if stream is not None:
            del stream["drift"], stream["unchangeable"], stream["loss"]
            stream["told_at"] = stream.pop("observed_at")
    answer["processes"] = msgspec.to_builtins(seen.processes)
    answer["foreign"] = [report.model_dump(mode="json") for report in seen.foreign]
    for durable in answer["durables"]:
        durable.update(durable.pop("state"))
        del durable["filters"], durable["drift"]
    for queue, state in zip(answer["queues"], seen.queues, strict=True):
        queue["unattended"] = state.is_unattended
    return answer


class _Query:
    """Makes queries and collects the reasons of those that failed.

    Each query is made when it is awaited, so that none is left over if a cancellation comes first.
    """

    def __init__(self) -> None:
        self.troubles: dict[str, str] = {}
        self.present: set[Stream | Bucket] = set()

    async def __call__(self, part: str, ask: Callable[[], Awaitable[T]], *needed: Stream | Bucket) -> T | None:
        """Return an answer; None: it failed, or a stream or bucket is missing."""
        if not self.present.issuperset(needed):
            return None
        try:
            return await ask()
        except UNAVAILABLE as error:
            self.troubles[part] = str(error).splitlines()[0]
            return None


def functions_waiting(queues: Iterable[Queue]) -> dict[str, Collection[str]]:
    """Return the functions with the most tasks that wait, by queue."""
    return {queue.name: tuple(queue.functions) for queue in queues if queue.functions}


async def registrations_of(target: HealthTarget) -> list[Registration]:
    """Return all jobs as the bucket `definitions` shows them."""
    entries = await target.projections.entries(Bucket.DEFINITIONS)
    return [Registration.model_validate_json(body, context=STORED) for body in entries.values()]


def _numbers_of(registrations: Sequence[Registration]) -> Jobs:
    return Jobs(
        registered=len(registrations),
        paused=sum(registration.paused for registration in registrations),
        disabled=sum(not registration.definition.enabled for registration in registrations),
    )


def _by_kind(workers: Sequence[AgentRecord]) -> dict[WorkerKind, dict[str, int]]:
    by_kind: dict[WorkerKind, Counter[str]] = defaultdict(Counter)
    for record in workers:
        by_kind[record.kind][record.state.value] += 1
    return {kind: dict(sorted(states.items())) for kind, states in sorted(by_kind.items())}


async def _history(target: HealthTarget) -> HistoryPlace:
    log, url = target.log, target.settings.database.url
    if url.startswith(SQLITE) and not await asyncio.to_thread(Path(url.removeprefix(SQLITE)).exists):
        raise HistoryUnavailable(
            f"no history is kept in {url.removeprefix(SQLITE)}: name another by TOCSIN_DATABASE_URL"
        )
    async with target.open_history() as history:
        place = await history.offset(Stream.LOG)
        unfinished = [await history.count(ExecutionQuery(status=state)) for state in ("pending", "running")]
    lasts = [await _place_of(log.last(subject)) for subject in target.recorded]
    newest = max((last.sequence for last in lasts if last), default=0)
    missing = [await _place_of(_first(log, subject, place)) for subject in target.recorded]
    since = min((recorded.time for recorded in missing if recorded), default=None)
    return HistoryPlace(place, newest, since, sum(unfinished))


async def _first(log: EventLog, subject: str, after: int) -> Recorded[Message] | None:
    return next(iter(await log.read(subject, after=after, limit=1)), None)


async def _place_of(reading: Awaitable[Recorded[Message] | None]) -> Recorded[Message] | UnreadableMessage | None:
    """Return the place and the time of a message, also if it is unreadable."""
    try:
        return await reading
    except DecodeError as error:
        return error.stored


async def _durables(target: HealthTarget, stream: Stream) -> list[Durable]:
    owners = target.owners
    states = await target.inspection.durables(stream)
    unfinished = [state for state in states if state.pending or state.ack_pending]
    times = await asyncio.gather(*map(target.inspection.oldest_pending, unfinished))
    oldest = dict(zip((state.name for state in unfinished), times, strict=True))
    return [Durable(state, owners.get((stream, state.name), ""), oldest.get(state.name)) for state in states]


async def _matched_queues(target: HealthTarget) -> list[Queue]:
    waiting = await backlogs(target.projections)
    queues = sorted({*target.settings.matched_queues, *waiting})
    agents = await AgentRegistry(target.log, target.projections).agents()
    enabled = [agent for agent in agents if agent.state is AgentState.ENABLED]
    return [
        Queue(
            each.queue,
            each.waiting,
            each.running,
            sum(each.queue in agent.queues for agent in enabled),
            each.oldest,
            each.functions,
            each.all_held_back,
            each.deadly_jobs,
        )
        for each in (waiting.get(queue, QueueBacklog(queue=queue)) for queue in queues)
    ]
