"""The lock of a job: who holds it, who waits, and the fencing token (hip-62, Distributed Locking; ojs-cron §6).

The lock is the fold of its scope; the key in the KV bucket is only its projection. A holder whose execution is over
holds nothing, so release needs no fact of its own. Each fact tells who waits, so that the newest one tells all.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from .definition import OverlapPolicy
from .events import COMPENSATING_TRIGGERS, Acquired, Message, Queued, Recorded, Requested, Waiter

GRACE_S: Final = 60.0
"""Seconds that a lock outlives its execution's time limit (hip-62)."""


# --- state -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lock:
    """Who took the lock last; `fence` is the sequence of that fact, and only grows. `waiting`: the earliest first."""

    holder: str | None = None
    fence: int = 0
    waiting: tuple[Waiter, ...] = ()

    def has_waiter(self, execution_id: str) -> bool:
        """Whether an execution waits for it."""
        return any(one.execution_id == execution_id for one in self.waiting)


initial: Final = Lock()


# --- evolve ----------------------------------------------------------------------------------------------------------


def evolve(state: Lock, recorded: Recorded[Message]) -> Lock:
    """The state after one more fact. Total."""
    match recorded.message:
        case Acquired() as fact:
            return Lock(fact.execution_id, recorded.sequence, fact.waiting)
        case Queued() as fact:
            return Lock(state.holder, state.fence, fact.waiting)
        case _:
            return state


def fold(facts: Iterable[Recorded[Message]], state: Lock = initial) -> Lock:
    """The state after facts, oldest first."""
    for recorded in facts:
        state = evolve(state, recorded)
    return state


# --- decide ----------------------------------------------------------------------------------------------------------


def acquire(state: Lock, job: str, wanted: Waiter, *, ttl: float) -> list[Acquired]:
    """Take a lock that nobody holds, for `ttl` seconds. Nothing where the execution holds it already."""
    if state.holder == wanted.execution_id:
        return []
    return [
        Acquired(
            job=job,
            execution_id=wanted.execution_id,
            scheduled_time=wanted.scheduled_time,
            ttl=ttl,
            waiting=tuple(one for one in state.waiting if one.execution_id != wanted.execution_id),
        )
    ]


def queue(state: Lock, job: str, wanted: Waiter) -> list[Queued]:
    """Wait for the lock: what is asked for now before what makes up for the past, each in order of time. Nothing where the execution waits already."""
    if state.holder == wanted.execution_id or state.has_waiter(wanted.execution_id):
        return []
    waiting = tuple(sorted((*state.waiting, wanted), key=_order))
    return [Queued(job=job, execution_id=wanted.execution_id, waiting=waiting)]


def _order(waiting: Waiter) -> tuple[bool, datetime, str]:
    return waiting.yields, waiting.scheduled_time, waiting.execution_id


def waiting(wanted: Requested) -> Waiter:
    """An execution, as the lock knows it."""
    yields = wanted.trigger in COMPENSATING_TRIGGERS
    return Waiter(execution_id=wanted.execution_id, scheduled_time=wanted.scheduled_time, yields=yields)


def effective_policy(state: Lock, wanted: Requested, active: Requested | None) -> OverlapPolicy:
    """What becomes of an execution while `active` holds the lock.

    What is asked for now is neither skipped for what makes up for the past, nor ends it: it waits, in front of the others
    that do. Under `skip` one such suffices.
    """
    asked = wanted.plan.overlap_policy
    if active is None or active.trigger not in COMPENSATING_TRIGGERS or wanted.trigger in COMPENSATING_TRIGGERS:
        return asked
    if asked == "skip" and any(not one.yields for one in state.waiting):
        return asked
    return "enqueue"


def ttl(wanted: Requested) -> float:
    """Seconds that the execution may hold the lock: the longest way through its steps, and the grace period."""
    finish: dict[str, float] = {}
    # A plan's steps may be listed in any order; repeating until nothing changes walks the graph without sorting it.
    while len(finish) < len(wanted.plan.steps):
        for step in wanted.plan.steps:
            if all(dependency in finish for dependency in step.depends_on):
                finish[step.name] = step.timeout + max((finish[d] for d in step.depends_on), default=0.0)
    return max(finish.values()) + GRACE_S
