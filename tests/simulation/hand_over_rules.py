"""Rules about the choice of tasks and agents: priorities, and agents that drain."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.stored_events import StoredEvents
from tocsin.domain.events import (
    Admitted,
    AgentDrainStarted,
    Dispatched,
    ExecutionFact,
    Recorded,
    Requested,
    Started,
    Terminal,
)

from .cast import Surroundings
from .server import SentClaim
from .workload import BRIDGED, SETTLED_S

Attempt: TypeAlias = tuple[str, str, int]
"""An execution, a step, and the number of the attempt."""
_TICK: Final = 1e-6
"""Stored times are rounded."""


@dataclass(frozen=True, slots=True)
class _Open:
    """The time in which a task is certainly open for a matcher that has read it."""

    attempt: Attempt
    queue: str
    priority: int
    sequence: int
    until: float
    """When its first claim was sent, or an event changed its step or ended its execution."""


def broken_priorities(everything: StoredEvents, around: Surroundings) -> Iterator[str]:
    """Yield each task that went before an open task of a higher priority in its queue.

    Tasks with limits, and queues with limits or decisions of operators, are left out: another task may rightly go first there.
    """
    if around.is_operated:
        return
    first = _first_claims(around)
    sent_at = {attempt: min(at.values()) for attempt, at in _times(first).items()}
    by_queue: dict[str, list[_Open]] = defaultdict(list)
    for task in _open_tasks(everything, around, sent_at):
        by_queue[task.queue].append(task)
    known = {task.attempt: task for tasks in by_queue.values() for task in tasks}
    for (_, attempt), sent in first.items():
        chosen = known.get(attempt)
        if chosen is None or sent.claim.fetch is not None or sent.claim.agent is None:
            continue
        for other in by_queue[chosen.queue]:
            if other.priority > chosen.priority and other.sequence <= sent.log and other.until > sent.at + _TICK:
                yield (
                    f"PRIORITY: {sent.process} chose {chosen.attempt} of priority {chosen.priority} at {sent.at:.4f} before "
                    f"{other.attempt} of priority {other.priority}"
                )
                return


def _first_claims(around: Surroundings) -> dict[tuple[str, Attempt], SentClaim]:
    """Return the first claim of each attempt that a process sent: it was sent in the moment of the choice."""
    first: dict[tuple[str, Attempt], SentClaim] = {}
    for sent in around.server.sent_claims:
        first.setdefault((sent.process, _attempt_of(sent.claim)), sent)
    return first


def _times(first: Mapping[tuple[str, Attempt], SentClaim]) -> dict[Attempt, dict[str, float]]:
    times: dict[Attempt, dict[str, float]] = defaultdict(dict)
    for (process, attempt), sent in first.items():
        times[attempt][process] = sent.at
    return times


def _open_tasks(everything: StoredEvents, around: Surroundings, sent_at: Mapping[Attempt, float]) -> Iterator[_Open]:
    seconds, limited = (
        around.server.clock.seconds,
        {name for name, q in around.settings.queues.items() if q.concurrency or q.rate},
    )
    for facts in everything.executions.values():
        requested = next((r.message for r in facts if isinstance(r.message, Requested)), None)
        if requested is None or requested.plan.concurrency is not None:
            continue
        priorities = {step.name: step.priority for step in requested.plan.steps}
        for recorded in facts:
            task = recorded.message
            if not isinstance(task, Dispatched) or task.queue == BRIDGED or task.queue in limited:
                continue
            attempt = task.execution_id, task.step, task.attempt
            ends = [seconds(r.time) for r in facts if _ends(r, recorded, task.step)]
            yield _Open(
                attempt,
                task.queue,
                priorities[task.step],
                recorded.sequence,
                min([*ends, sent_at.get(attempt, float("inf"))], default=float("inf")),
            )


def _ends(later: Recorded[ExecutionFact], task: Recorded[ExecutionFact], step: str) -> bool:
    """Return whether an event may be the end of a task's wait for an agent."""
    if later.sequence <= task.sequence or isinstance(later.message, Admitted):
        return False
    return isinstance(later.message, Terminal) or getattr(later.message, "step", step) == step


def broken_drains(everything: StoredEvents, around: Surroundings) -> Iterator[str]:
    """Yield each task that an agent got or began although it drained, and each handler that the drain ended."""
    hall, work, seconds = around.hall, around.work, around.server.clock.seconds
    asked = {r.message.agent_id: seconds(r.time) for r in everything.facts(AgentDrainStarted)}
    for (process, _), sent in _first_claims(around).items():
        agent = sent.claim.agent or ""
        heard = hall.heard_draining.get((process, sent.claim.worker, agent), float("inf"))
        if sent.at > heard + _TICK:
            yield f"DRAIN: {process} had heard at {heard:.4f} that {agent} drains: {sent.claim} at {sent.at:.4f}"
        if sent.at > asked.get(agent, float("inf")) + SETTLED_S:
            yield f"DRAIN: {agent} drains since {asked[agent]:.4f}: {sent.claim} at {sent.at:.4f}"
    agents = {_run_of(r.message): r.message.agent for r in everything.facts(Started)}
    limits = {_attempt_of(r.message): r.message.timeout for r in everything.facts(Dispatched)}
    for run, at in work.begun.items():
        since = hall.draining.get((run[-1], agents.get(run) or ""), float("inf"))
        if at > since + _TICK:
            yield f"DRAIN: {run[-1]} knew since {since:.4f} that it drains, and began {run} at {at:.4f}"
        stopped = work.stopped.get(run, float("-inf"))
        if stopped < since or stopped - at >= limits[run[:3]] - _TICK:
            continue
        ends = [r for r in everything.executions[run[0]] if isinstance(r.message, Terminal)]
        if all(seconds(end.time) > stopped for end in ends):
            yield f"DRAIN: {run[-1]} drains since {since:.4f}, and stopped {run} at {stopped:.4f}"


def _attempt_of(fact: Started | Dispatched) -> Attempt:
    return fact.execution_id, fact.step, fact.attempt


def _run_of(claim: Started) -> tuple[str, str, int, int, str]:
    return *_attempt_of(claim), claim.delivery, claim.worker
