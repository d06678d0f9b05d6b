"""Ending an execution before its time (hip-62, `POST /v1/executions/{id}/cancel`).

The guarded fact `cancelled` is appended here and now, so that the answer is what happened and not what was asked for. All
else follows from the fact: no claim is granted any more, no step behind is dispatched, a running handler is stopped by its
worker, the lock goes to the next that waits. By message the same is asked for on `cron.cancel.<job>.<execution>`.
"""

from dataclasses import dataclass
from typing import Final

from ... import subjects
from ...domain import execution
from ...domain.events import Actor
from ...domain.execution import Status
from ...ports import EventLog, OutdatedState, SequenceConflict
from .lookup import ExecutionMatch, OpenHistory, find

TRIES: Final = 20
"""How often it is decided anew when the execution moved in between: one that is at work moves often."""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """What became of a request. `status`: how the execution ended; `changed`: this very request ended it."""

    job: str
    execution_id: str
    status: Status
    changed: bool


async def cancel(
    log: EventLog,
    given: str,
    *,
    by: Actor | None = None,
    reason: str | None = None,
    job: str | None = None,
    history: OpenHistory | None = None,
) -> Cancellation:
    """End an execution, whether it is planned, waits for its lock, or runs. One that is over stays as it is.

    Args:
        log: where its facts are.
        given: its id, or where a history can be asked the beginning of it.
        by: who asks.
        reason: why.
        job: whose it is, if that is known.
        history: opens the history.

    Raises:
        NotFound: there is no such execution.
        Ambiguous: several ids begin so.
        SequenceConflict: it moved each time.
    """
    found = await find(log, given, job=job, history=history)
    for _ in range(TRIES):
        state = execution.fold(found.facts)
        facts = execution.cancel(state, reason=reason, by=by)
        try:
            for fact in facts:
                await log.append(fact, expect=found.facts[-1].sequence)
        except OutdatedState:
            scope = subjects.execution(found.job, found.execution_id)
            found = ExecutionMatch(found.job, found.execution_id, tuple(await log.load(scope)) or found.facts)
            continue
        return Cancellation(found.job, found.execution_id, Status.CANCELLED if facts else state.status, bool(facts))
    raise SequenceConflict(f"execution {found.execution_id} moved {TRIES} times meanwhile: try again")
