"""The lock of a job: who holds it, and the fencing token (hip-62, Distributed Locking; ojs-cron §6).

The lock is the fold of its scope; the key in the KV bucket is only its projection. A holder whose execution is over
holds nothing, so release needs no fact of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .events import Acquired, Message, Recorded, Requested

GRACE: Final = 60.0
"""Seconds that a lock outlives its execution's time limit (hip-62)."""


# --- state -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lock:
    """Who took the lock last; `fence` is the sequence of that fact, and only grows."""

    holder: str | None = None
    fence: int = 0


initial: Final = Lock()


# --- evolve ----------------------------------------------------------------------------------------------------------


def evolve(state: Lock, recorded: Recorded[Message]) -> Lock:
    """The state after one more fact. Total."""
    match recorded.message:
        case Acquired() as fact:
            return Lock(fact.execution_id, recorded.sequence)
        case _:
            return state


def fold(facts: Iterable[Recorded[Message]], state: Lock = initial) -> Lock:
    """The state after facts, oldest first."""
    for recorded in facts:
        state = evolve(state, recorded)
    return state


# --- decide ----------------------------------------------------------------------------------------------------------


def acquire(state: Lock, wanted: Requested) -> list[Acquired]:
    """Take a lock that nobody holds. Nothing where the execution holds it already."""
    if state.holder == wanted.execution_id:
        return []
    return [
        Acquired(
            job=wanted.job,
            execution_id=wanted.execution_id,
            scheduled_time=wanted.scheduled_time,
            ttl=ttl(wanted),
        )
    ]


def ttl(wanted: Requested) -> float:
    """Seconds that the execution may hold the lock: the longest way through its steps, and the grace period."""
    finish: dict[str, float] = {}
    # A plan's steps may be listed in any order; repeating until nothing changes walks the graph without sorting it.
    while len(finish) < len(wanted.plan.steps):
        for step in wanted.plan.steps:
            if all(dependency in finish for dependency in step.depends_on):
                finish[step.name] = step.timeout + max((finish[d] for d in step.depends_on), default=0.0)
    return max(finish.values()) + GRACE
