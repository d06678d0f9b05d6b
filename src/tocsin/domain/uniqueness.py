"""Unique keys: at most one job of a key in certain states (ojs-unique-jobs).

The state holds the executions that took a key and may still count. It is the fold of the key's scope, of which only the newest event is
needed. An execution that is over does not release its key by an event: the next job with the key looks at it.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from .events import ENDED_STATES, JobState, KeyHolder, KeyTaken, Message, Recorded, UniqueRule
from .execution import Execution, Phase, Status, Step

MAX_HOLDERS: Final = 32
"""Executions that an event names. Rules without all open states may let more of them be open; then the oldest do not count any more."""


class UniqueKey(msgspec.Struct, frozen=True):
    """The executions that took a key, the oldest first."""

    holders: tuple[KeyHolder, ...] = ()

    def holder(self, execution_id: str) -> KeyHolder | None:
        """Return the entry of an execution; None: it does not count, or not any more."""
        return next((holder for holder in self.holders if holder.execution_id == execution_id), None)


initial: Final = UniqueKey()


def evolve(state: UniqueKey, recorded: Recorded[Message]) -> UniqueKey:
    """Return the state after an event; events of other kinds change nothing."""
    match recorded.message:
        case KeyTaken() as fact:
            newest = KeyHolder(
                execution_id=fact.execution_id,
                taken=recorded.sequence,
                enqueued_at=fact.enqueued_at,
                start_at=fact.start_at,
                replaces=fact.replaces,
            )
            return UniqueKey((*fact.others, newest))
        case _:
            return state


class Known(NamedTuple):
    """An execution that took a key, and its state now."""

    holder: KeyHolder
    state: JobState


def duplicates(rule: UniqueRule, enqueued_at: datetime, known: Iterable[Known]) -> list[Known]:
    """Return the executions of which a job is a duplicate, the oldest first (ojs-unique-jobs §7.4)."""
    period = timedelta.max if rule.period is None else timedelta(seconds=rule.period)
    return [
        candidate
        for candidate in known
        if candidate.state in rule.states and enqueued_at - candidate.holder.enqueued_at < period
    ]


def take(
    job: str,
    rule: UniqueRule,
    wanted: KeyHolder,
    *,
    known: Sequence[Known],
    replaced: Sequence[Known] = (),
) -> KeyTaken:
    """Take a key for an execution.

    Replaced executions stay named until they are over, because a crash may come before they are cancelled.
    """
    start_at = wanted.start_at
    if rule.on_conflict == "replace_except_schedule":
        scheduled = [candidate.holder.start_at for candidate in replaced if candidate.state == "scheduled"]
        start_at = scheduled[-1] if scheduled else start_at
    return KeyTaken(
        job=job,
        key=rule.key,
        execution_id=wanted.execution_id,
        enqueued_at=wanted.enqueued_at,
        start_at=start_at,
        states=rule.states,
        period=rule.period,
        replaces=tuple(candidate.holder.execution_id for candidate in replaced),
        others=_still_needed(known),
    )


def _still_needed(known: Sequence[Known]) -> tuple[KeyHolder, ...]:
    """Return the open executions, and the newest in each state of an end."""
    newest = {candidate.state: candidate.holder for candidate in known}
    needed = [
        candidate.holder
        for candidate in known
        if candidate.state not in ENDED_STATES or newest[candidate.state] is candidate.holder
    ]
    return tuple(needed[1 - MAX_HOLDERS :])


_ENDS: Final[dict[Status, JobState]] = {
    Status.COMPLETED: "completed",
    Status.FAILED: "discarded",
    Status.CANCELLED: "cancelled",
}


def job_state(state: Execution, step: Step) -> JobState:
    """Return the state of a job or of one of its steps."""
    if state.is_over:
        return _ENDS[state.status]
    match step.phase:
        case Phase.STARTED:
            return "active"
        case Phase.RETRYING:
            return "retryable" if step.attempt else "scheduled"
        case Phase.COMPLETED:
            return "active" if len(state.steps) > 1 else "completed"
        case _:
            return "available"
