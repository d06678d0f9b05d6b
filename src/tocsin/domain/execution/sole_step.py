"""Decisions on the only step of an execution, which need no state.

A task of such a step carries a second token. It proves that the execution has no other step, and every field that the
end of the execution repeats.
"""

from datetime import datetime
from hmac import compare_digest
from typing import Final, NamedTuple

from .. import ids
from ..events import Completed, Dispatched, Report, SoleStep, TriggerKind

_PURPOSE: Final = "sole"


class EndFields(NamedTuple):
    """The fields of the end of an execution that its task repeats."""

    scheduled_time: datetime
    trigger: TriggerKind
    fence: int | None
    replay_of: str | None


def sole_token(key: bytes, job: str, execution_id: str, attempt: tuple[str, int], end: EndFields) -> str:
    """Return the secret that proves the end of an execution of a single step."""
    at = end.scheduled_time.isoformat()
    return ids.keyed_digest(key, _PURPOSE, job, execution_id, *attempt, at, end.trigger, end.fence, end.replay_of)


def sole_step(task: Dispatched) -> SoleStep | None:
    """Return the fields that a report repeats; None: the execution has other steps."""
    if task.sole is None:
        return None
    return SoleStep(
        token=task.sole,
        scheduled_time=task.scheduled_time,
        trigger=task.trigger,
        fence=task.fence,
        replay_of=task.replay_of,
    )


def complete_sole(report: Report, *, key: bytes) -> Completed | None:
    """Return the end of an execution whose only step completed, without its state.

    The append must be guarded by `report.claim`: while the claim is the newest event, the step is still running. None:
    decide by the state (`succeed`).
    """
    sole = report.sole
    if sole is None or report.outcome != "completed" or not report.claim:
        return None
    end = EndFields(sole.scheduled_time, sole.trigger, sole.fence, sole.replay_of)
    token = sole_token(key, report.job, report.execution_id, (report.step, report.attempt), end)
    if not compare_digest(sole.token.encode(), token.encode()):
        return None
    return Completed.trusted(
        job=report.job,
        execution_id=report.execution_id,
        scheduled_time=sole.scheduled_time,
        trigger=sole.trigger,
        fence=sole.fence,
        step=report.step,
        attempt=report.attempt,
        result=report.result,
    )
