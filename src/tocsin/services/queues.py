"""The queues of an installation: their tasks, their agents, and the jobs that use them."""

import asyncio
import difflib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, TypeAlias

from ..domain.access import Owned
from ..domain.agent import AgentRecord, AgentState
from ..domain.definition import STORED
from ..domain.job_record import Registration
from ..domain.task_board import QueueBacklog
from ..subjects import JOB_EXECUTORS, Bucket, Stream, executor_durable
from .agents import AgentRegistry, backlogs
from .health.status import HealthTarget
from .operations.errors import NotFound

Transport: TypeAlias = Literal["native", "matched", "mq"]
Sees: TypeAlias = Callable[[Owned], bool]
"""Whether a caller may see a job."""


@dataclass(frozen=True, slots=True)
class QueueDetails:
    """A queue a moment ago. A number is None if nothing counts it."""

    name: str
    transport: Transport | None
    """How its tasks reach workers; None: jobs name the queue, and the settings do not."""
    waiting: int | None = None
    """Tasks that no worker has."""
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


def everything(_: Owned) -> bool:
    """See all jobs."""
    return True


async def queues(target: HealthTarget, *, sees: Sees = everything) -> tuple[QueueDetails, ...]:
    """Return all queues by name, with the jobs that a caller sees.

    A queue that only hidden jobs name is left out. Functions that wait are left out if only hidden jobs have them.

    Raises:
        LogUnavailable: the log did not answer.
    """
    settings = target.settings
    entries, agents, waiting, native, outside = await asyncio.gather(
        target.projections.entries(Bucket.DEFINITIONS),
        AgentRegistry(target.log, target.projections).agents(),
        backlogs(target.projections),
        _durables(target, Stream.LOG),
        _durables(target, Stream.MQ),
    )
    jobs: dict[str, set[str]] = defaultdict(set)
    functions, is_hidden = set[str](), False
    for body in entries.values():
        registration = Registration.model_validate_json(body, context=STORED)
        if not sees(registration):
            is_hidden = True
            continue
        definition = registration.definition
        for step in definition.steps():
            jobs[step.queue or definition.queue].add(definition.name)
            functions.add(step.function)
    counts: dict[str, QueueBacklog] = {
        **{queue: backlog for queue in settings.pulled_queues if (backlog := native.get(executor_durable(queue)))},
        **{queue: waiting.get(queue, QueueBacklog(queue=queue)) for queue in settings.matched_queues},
    }
    if len(settings.bridged_queues) == 1 and JOB_EXECUTORS in outside:
        counts[settings.bridged_queues[0]] = outside[JOB_EXECUTORS]  # one durable holds the tasks of all such queues
    transports: dict[str, Transport] = {
        **dict.fromkeys(settings.pulled_queues, "native"),
        **dict.fromkeys(settings.matched_queues, "matched"),
        **dict.fromkeys(settings.bridged_queues, "mq"),
    }
    known = tuple(
        _details(name, transports.get(name), counts.get(name), agents, jobs.get(name, set()))
        for name in sorted({*transports, *jobs})
    )
    return tuple(_without_others(queue, functions) for queue in known) if is_hidden else known


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


def _without_others(queue: QueueDetails, functions: set[str]) -> QueueDetails:
    waiting = {name: number for name, number in queue.waiting_functions.items() if name in functions}
    return replace(queue, waiting_functions=waiting)


def _details(
    name: str,
    transport: Transport | None,
    backlog: QueueBacklog | None,
    agents: tuple[AgentRecord, ...],
    jobs: set[str],
) -> QueueDetails:
    serving = [agent for agent in agents if name in agent.queues and agent.state is not AgentState.LOST]
    return QueueDetails(
        name,
        transport,
        waiting=None if backlog is None else backlog.waiting,
        taken=None if backlog is None else backlog.running,
        oldest=None if backlog is None else backlog.oldest,
        agents=tuple(sorted({agent.name for agent in serving})),
        functions=tuple(sorted({function for agent in serving for function in agent.functions})),
        waiting_functions={} if backlog is None else backlog.functions,
        jobs=tuple(sorted(jobs)),
    )


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
