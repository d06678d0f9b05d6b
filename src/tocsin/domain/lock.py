"""The lock of a job (hip-62, Distributed Locking; ojs-cron §6).

The state holds the holder, the waiting executions and the fencing token. It is the fold of the lock's scope; the key in the KV bucket is only a projection. An execution that is over no longer
holds the lock, so a release needs no event. Each event lists all waiting executions, so the newest event is enough to
fold the waiting list.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from .definition import OverlapPolicy
from .events import COMPENSATING_TRIGGERS, Acquired, Message, Queued, Recorded, Requested, Waiter

GRACE_S: Final = 60.0
"""Seconds that a lock outlives the time limit of its execution (hip-62)."""


# --- state -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lock:
    """The last holder, its fencing token, and the waiting executions.

    `fence` is the sequence of the event by which `holder` acquired the lock; it only grows. `waiting` is in the order
    in which the executions acquire the lock.
    """

    holder: str | None = None
    fence: int = 0
    waiting: tuple[Waiter, ...] = ()

    def has_waiter(self, execution_id: str) -> bool:
        """Return whether an execution waits for the lock."""
        return any(waiter.execution_id == execution_id for waiter in self.waiting)


initial: Final = Lock()


# --- evolve ----------------------------------------------------------------------------------------------------------


def evolve(state: Lock, recorded: Recorded[Message]) -> Lock:
    """Return the state after an event; events of other kinds change nothing."""
    match recorded.message:
        case Acquired() as fact:
            return Lock(fact.execution_id, recorded.sequence, fact.waiting)
        case Queued() as fact:
            return Lock(state.holder, state.fence, fact.waiting)
        case _:
            return state


def fold(facts: Iterable[Recorded[Message]], state: Lock = initial) -> Lock:
    """Return the state after events, oldest first."""
    for recorded in facts:
        state = evolve(state, recorded)
    return state


# --- decide ----------------------------------------------------------------------------------------------------------


def acquire(state: Lock, job: str, wanted: Waiter, *, ttl: float) -> list[Acquired]:
    """Acquire a free lock for `ttl` seconds; return nothing if the execution already holds it."""
    if state.holder == wanted.execution_id:
        return []
    return [
        Acquired(
            job=job,
            execution_id=wanted.execution_id,
            scheduled_time=wanted.scheduled_time,
            ttl=ttl,
            waiting=tuple(waiter for waiter in state.waiting if waiter.execution_id != wanted.execution_id),
        )
    ]


def queue(state: Lock, job: str, wanted: Waiter) -> list[Queued]:
    """Wait for the lock; return nothing if the execution holds it or already waits.

    Replays and backfills let all others go first. Within each group the earlier scheduled time goes first.
    """
    if state.holder == wanted.execution_id or state.has_waiter(wanted.execution_id):
        return []
    waiting = tuple(sorted((*state.waiting, wanted), key=_order))
    return [Queued(job=job, execution_id=wanted.execution_id, waiting=waiting)]


def _order(waiting: Waiter) -> tuple[bool, datetime, str]:
    return waiting.yields, waiting.scheduled_time, waiting.execution_id


def waiting(wanted: Requested) -> Waiter:
    """Return the entry of an execution in the waiting list."""
    yields = wanted.trigger in COMPENSATING_TRIGGERS
    return Waiter(execution_id=wanted.execution_id, scheduled_time=wanted.scheduled_time, yields=yields)


def effective_policy(state: Lock, wanted: Requested, active: Requested | None) -> OverlapPolicy:
    """Return the overlap policy for an execution while `active` holds the lock.

    If a replay or a backfill holds the lock, a regular execution neither skips nor cancels it: it waits, in front of
    other replays and backfills. Under `skip`, at most one regular execution waits in this way.
    """
    declared = wanted.plan.overlap_policy
    if active is None or active.trigger not in COMPENSATING_TRIGGERS or wanted.trigger in COMPENSATING_TRIGGERS:
        return declared
    if declared == "skip" and any(not waiter.yields for waiter in state.waiting):
        return declared
    return "enqueue"


def ttl(wanted: Requested) -> float:
    """Return the seconds that an execution may hold the lock: its longest path plus grace."""
    finish: dict[str, float] = {}
    # The steps of a plan may be in any order. Repeating until all are known walks the graph without sorting it.
    while len(finish) < len(wanted.plan.steps):
        for step in wanted.plan.steps:
            if all(dependency in finish for dependency in step.depends_on):
                finish[step.name] = step.timeout + max((finish[d] for d in step.depends_on), default=0.0)
    return max(finish.values()) + GRACE_S
