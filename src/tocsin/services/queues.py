"""The queues of an installation: their tasks, their agents, and the jobs that use them."""

import asyncio
import difflib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from .. import subjects
from ..domain import duration
from ..domain.access import Owned
from ..domain.agent import AgentRecord, AgentState
from ..domain.queue import Queue, fold
from ..domain.queue_backlog import HeldBack, QueueBacklog
from ..engine.saved_place import Place, read_place
from ..ports import Clock
from ..ports.summaries import HistorySummaries, QueueCounts
from ..settings import Queue as Section
from ..subjects import JOB_EXECUTORS, MQ_BRIDGE, Stream, mq_executors
from .agents import AgentRegistry, backlogs
from .health.status import HealthTarget
from .jobs import Job
from .operations.errors import NotFound
from .queue_decisions import (
    PurgeAnswer,
    QueueDecisions,
    QueuePause,
    QueuePurge,
    pause_of,
    purge_of,
)

Transport: TypeAlias = Literal["matched", "mq"]
Sees: TypeAlias = Callable[[Owned], bool]
"""Whether a caller may see a job."""
Reaches: TypeAlias = Callable[[str], bool]
"""Whether a caller may know of a queue, as far as namespaces are concerned."""
ListJobs: TypeAlias = Callable[[], Awaitable[Sequence[Job]]]


@dataclass(frozen=True, slots=True)
class QueueDetails:
    """A queue a moment ago. A number is None if nothing counts it."""

    name: str
    transport: Transport
    """How its tasks reach workers."""
    waiting: int | None = None
    """Tasks that no worker has."""
    handed_over: int | None = None
    """Of the tasks that no worker has, those that wait in hip-62's queue, if the transport is `mq`. A purge does not cover them."""
    taken: int | None = None
    """Tasks that workers have."""
    oldest: datetime | None = None
    """When the oldest of its open tasks was stored (UTC)."""
    agents: tuple[str, ...] = ()
    """Names of the live agents that serve the queue."""
    functions: tuple[str, ...] = ()
    """Functions that these agents have."""
    waiting_functions: Mapping[str, int] = field(default_factory=dict)
    """The functions with the most tasks that wait, if the queue is matched."""
    jobs: tuple[str, ...] = ()
    """Jobs with a step in the queue."""
    paused: QueuePause | None = None
    """Who paused it, when and why; None: it is not paused."""
    purged: QueuePurge | None = None
    """The newest purge."""
    purging: int = 0
    """Purged tasks whose executions are still to be cancelled."""
    concurrency: int | None = None
    """The number of tasks that workers may have at a time; None: unlimited."""
    rate: str | None = None
    """The rate at which tasks start; None: unlimited."""
    held_by: Literal["concurrency", "namespace", "rate"] | None = None
    """The limit of the queue, or of its namespace, that holds back its tasks."""
    held_back: HeldBack = field(default_factory=HeldBack)
    """The tasks that limits of their jobs hold back, with the groups of jobs that the caller sees."""


def everything(_: Owned | str) -> bool:
    return True


async def queues(
    target: HealthTarget, list_jobs: ListJobs, *, sees: Sees = everything, reaches: Reaches = everything
) -> tuple[QueueDetails, ...]:
    """Return the queues that a caller reaches, with the jobs that it sees.

    A queue that only hidden jobs name is left out. Functions that wait are left out if only hidden jobs have them. The functions of
    agents that also serve queues out of reach are left out.
    """
    settings = target.settings
    listed, agents, waiting, outside = await asyncio.gather(
        list_jobs(),  # a display of jobs may lack a job that was registered just now
        AgentRegistry(target.log, target.projections).agents(),
        backlogs(target.projections),
        _durables(target, Stream.MQ),
    )
    jobs: dict[str, set[str]] = defaultdict(set)
    seen = [job.definition for job in listed if sees(job)]
    functions, is_hidden, handed_over = set[str](), len(seen) < len(listed), dict[str, int]()
    for definition in seen:
        for step in definition.steps():
            jobs[step.queue or definition.queue].add(definition.name)
            functions.add(step.function)
    counts: dict[str, QueueBacklog] = {
        **{queue: QueueBacklog(queue=queue) for queue in settings.matched_queues},
        **waiting,
    }
    held = [outside[name] for name in (JOB_EXECUTORS, *map(mq_executors, settings.mq_teams)) if name in outside]
    if len(settings.bridged_queues) == 1 and held:  # these durables hold the tasks of all such queues
        [bridged] = settings.bridged_queues
        handed_over[bridged] = sum(part.waiting for part in held)
        parts = *held, await _not_handed_over(target)
        counts[bridged] = QueueBacklog(
            queue=bridged,
            waiting=sum(part.waiting for part in parts),
            running=sum(part.running for part in parts),
            oldest=min((part.oldest for part in parts if part.oldest is not None), default=None),
        )
    transports: dict[str, Transport] = {
        **dict.fromkeys((*settings.matched_queues, *jobs, *(() if is_hidden else waiting)), "matched"),
        **dict.fromkeys(settings.bridged_queues, "mq"),
    }
    names = sorted(filter(reaches, transports))
    states = await _states(target, names)
    known = tuple(
        _details(name, transports[name], counts.get(name), agents, jobs.get(name, set()), states[name], reaches)
        for name in names
    )
    known = tuple(
        replace(_with_limits(queue, settings.queues.get(queue.name)), handed_over=handed_over.get(queue.name))
        for queue in known
    )
    seen_jobs = {definition.name for definition in seen}
    return tuple(_without_others(queue, functions, seen_jobs) for queue in known) if is_hidden else known


def find(name: str, known: tuple[QueueDetails, ...]) -> QueueDetails:
    """Return a queue by its name.

    Raises:
        NotFound: no setting and no job names the queue.
    """
    names = [queue.name for queue in known]
    if name in names:
        return known[names.index(name)]
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {nearest[0]!r}?" if nearest else "`tocsin queues list` shows all queues."
    raise NotFound(f"No setting and no job names a queue {name!r}. {hint}")


async def purge(
    decisions: QueueDecisions, queue: QueueDetails, *, reason: str | None = None, dry_run: bool = False
) -> PurgeAnswer:
    """Purge a queue; `dry_run`: only say how many tasks it would cover."""
    waiting = None if queue.waiting is None else queue.waiting - (queue.handed_over or 0)
    changed = not dry_run and await decisions.purge(queue.name, waiting=waiting, reason=reason)
    return PurgeAnswer(queue.name, waiting, changed)


async def _states(target: HealthTarget, names: Sequence[str]) -> dict[str, Queue]:
    loaded = await target.log.load_each(*map(subjects.queue, names)) if names else None
    return dict(zip(names, map(fold, loaded.facts if loaded else ()), strict=True))


def _with_limits(queue: QueueDetails, section: Section | None) -> QueueDetails:
    if section is None:
        return queue
    text = None
    if (rate := section.rate) is not None:
        text = f"{rate.limit:,} in {duration.short(rate.per)}, {rate.burst or rate.limit:,} at once"
    return replace(queue, concurrency=section.concurrency, rate=text)


def _without_others(queue: QueueDetails, functions: set[str], jobs: set[str]) -> QueueDetails:
    waiting = {name: number for name, number in queue.waiting_functions.items() if name in functions}
    held = replace(queue.held_back, groups=tuple(group for group in queue.held_back.groups if group.job in jobs))
    return replace(queue, waiting_functions=waiting, held_back=held)


def _details(
    name: str,
    transport: Transport,
    backlog: QueueBacklog | None,
    agents: tuple[AgentRecord, ...],
    jobs: set[str],
    state: Queue,
    reaches: Reaches,
) -> QueueDetails:
    serving = [agent for agent in agents if name in agent.queues and agent.state is not AgentState.LOST]
    return QueueDetails(
        name,
        transport,
        waiting=None if backlog is None else backlog.waiting,
        taken=None if backlog is None else backlog.running,
        oldest=None if backlog is None else backlog.oldest,
        agents=tuple(sorted({agent.name for agent in serving})),
        functions=tuple(
            sorted({function for agent in serving if all(map(reaches, agent.queues)) for function in agent.functions})
        ),
        waiting_functions={} if backlog is None else backlog.functions,
        jobs=tuple(sorted(jobs)),
        paused=pause_of(state),
        purged=purge_of(state),
        purging=0 if backlog is None else backlog.purging,
        held_by=None if backlog is None else backlog.held_by,
        held_back=HeldBack() if backlog is None else backlog.held_back or HeldBack(),
    )


async def _not_handed_over(target: HealthTarget) -> QueueBacklog:
    """Return the tasks that the MQ bridge holds back, as its leader shows them."""
    place = await read_place(target.projections, subjects.cursor(Stream.LOG, MQ_BRIDGE)) or Place(0)
    oldest = await target.log.get(subjects.execution("*", "*"), place.after + 1) if place.waiting else None
    return QueueBacklog(queue=MQ_BRIDGE, waiting=place.waiting, oldest=None if oldest is None else oldest.time)


async def _durables(target: HealthTarget, stream: Stream) -> dict[str, QueueBacklog]:
    """Return the tasks of each durable of a stream, if the stream exists."""
    inspection = target.inspection
    if await inspection.stream(inspection.stream_name(stream)) is None:
        return {}
    states = await inspection.durables(stream)
    times = await asyncio.gather(*map(inspection.oldest_pending, states))
    return {
        state.name: QueueBacklog(queue=state.name, waiting=state.pending, running=state.ack_pending, oldest=oldest)
        for state, oldest in zip(states, times, strict=True)
    }


PERIOD: Final = timedelta(hours=1)
"""The time of the throughput."""
COUNTED_TOGETHER: Final = 8
"""Queues whose jobs are counted at the same time."""


async def count(summaries: HistorySummaries, clock: Clock, names: Sequence[str]) -> list[QueueCounts]:
    """Count the jobs of queues, some queues at a time.

    Ended jobs count within `PERIOD`.
    """
    since, counts = clock.now() - PERIOD, list[QueueCounts]()
    for first in range(0, len(names), COUNTED_TOGETHER):
        part = names[first : first + COUNTED_TOGETHER]
        counts += await asyncio.gather(*(summaries.of_queue(name, since) for name in part))
    return counts
