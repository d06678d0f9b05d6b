"""Cancel an execution (hip-62, `POST /v1/executions/{id}/cancel`).

The guarded event `cancelled` is appended at once, so the answer is what happened and not what was requested. Everything else
follows from that event: claims are refused, later steps are not dispatched, the worker stops a running handler, and the
lock goes to the next execution in line. A message on `cron.cancel.<job>.<execution>` requests the same.
"""

from dataclasses import dataclass
from typing import Final

from ... import subjects
from ...domain import execution
from ...domain.events import Actor
from ...domain.execution import Status
from ...ports import EventLog, OutdatedState, SequenceConflict
from .lookup import ExecutionMatch, ListExecutions, find

MAX_TRIES: Final = 20
"""Tries to append while other writers append to the execution; a running execution changes often."""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Result of a request. `status` is the execution's final status; `changed`: this request ended it."""

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
    list_executions: ListExecutions | None = None,
) -> Cancellation:
    """Cancel a planned, waiting or running execution. A finished execution stays as it is.

    Args:
        log: holds the facts.
        given: a complete id or, with `list_executions`, its first characters.
        by: the caller, recorded in the event.
        reason: recorded in the event.
        job: the job, if it is known.
        list_executions: queries the history for a shortened id.

    Raises:
        NotFound: no execution matches.
        Ambiguous: several executions match.
        SequenceConflict: another writer appended first on each try.
    """
    match = await find(log, given, job=job, list_executions=list_executions)
    for _ in range(MAX_TRIES):
        state = execution.fold(match.facts)
        facts = execution.cancel(state, reason=reason, by=by)
        try:
            for fact in facts:
                await log.append(fact, expect=match.facts[-1].sequence)
        except OutdatedState:
            scope = subjects.execution(match.job, match.execution_id)
            match = ExecutionMatch(match.job, match.execution_id, tuple(await log.load(scope)) or match.facts)
            continue
        return Cancellation(match.job, match.execution_id, Status.CANCELLED if facts else state.status, bool(facts))
    raise SequenceConflict(
        f"cannot cancel execution {match.execution_id}: another writer changed it on each of {MAX_TRIES} tries. Try again."
    )
