"""A claim before work (DESIGN §2.3): nobody runs what is over, done, or already in a later holder's hands."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .. import subjects
from ..domain import execution
from ..domain.events import Dispatched, Message, Recorded, Report, Started
from ..domain.execution import ClaimDenied
from ..ports import Delivery, EventLog, SequenceConflict

TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Claimed:
    """The `started` fact's sequence, and that of the fact before it; None: that is not known."""

    sequence: int
    after: int | None


async def claim(log: EventLog, task: Dispatched, delivery: Delivery, worker: str) -> Claimed | ClaimDenied | None:
    """Claim one delivery of a task; None: others wrote to the execution at every try, or it could not be read.

    The first try reads nothing: where the task is the newest fact of its execution, its own sequence is the guard. Where
    it is not, it mostly is because other steps run side by side with this one, and no more is read than what came behind the
    task. A refusal needs a read that has seen the task itself, since a replica of the log may lag.

    Raises:
        LogUnavailable: no answer.
    """
    started = _started(task, delivery, worker)
    expect = delivery.sequence
    for _ in range(TRIES):
        try:
            return Claimed(await log.append(started, expect=expect), expect)
        except SequenceConflict:
            newer = await log.load(subjects.scope_of(task), after=expect)
        if not newer:
            continue
        if not any(execution.affects_step(recorded.message, task.step) for recorded in newer):
            expect = newer[-1].sequence
            continue
        facts = await log.load(subjects.scope_of(task))
        if (own := _find(facts, started)) is not None:
            # Stored by a try whose answer was lost; or long ago, if a server that crashed counts deliveries anew.
            return ClaimDenied("done") if await answered(log, task) else own
        if not facts or facts[-1].sequence < delivery.sequence:
            continue
        state = execution.fold(facts)
        granted = execution.claim(
            state,
            step=task.step,
            attempt=task.attempt,
            delivery=delivery.delivered,
            task=delivery.sequence,
            worker=worker,
        )
        if isinstance(granted, ClaimDenied):
            return granted
        expect = facts[-1].sequence
    return None


async def answered(log: EventLog, task: Dispatched) -> bool:
    """Whether a report on this attempt that counts is stored: any success, or a failure told by the newest claim.

    So the work is not repeated where only its acknowledgement was lost.

    Raises:
        LogUnavailable: no answer.
    """
    reports = [r.message for r in await log.load(subjects.reports(task)) if isinstance(r.message, Report)]
    if not reports:
        return False
    if any(report.outcome == "completed" for report in reports):
        return True
    newest = await log.last(subjects.claims(task))
    current = newest.message.delivery if newest is not None and isinstance(newest.message, Started) else None
    return any(report.delivery in {None, current} for report in reports)


def _started(task: Dispatched, delivery: Delivery, worker: str) -> Started:
    return Started(
        job=task.job,
        execution_id=task.execution_id,
        step=task.step,
        attempt=task.attempt,
        delivery=delivery.delivered,
        worker=worker,
    )


def _find(facts: Sequence[Recorded[Message]], started: Started) -> Claimed | None:
    """A claim among facts. What it was stored behind, perhaps long ago, is seen only where it is the newest of them."""
    index = next((i for i, recorded in enumerate(facts) if recorded.message == started), None)
    if index is None:
        return None
    return Claimed(facts[index].sequence, facts[-2].sequence if 0 < index == len(facts) - 1 else None)
