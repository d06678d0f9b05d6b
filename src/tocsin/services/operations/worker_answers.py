"""Reports of workers over HTTP on the tasks that they hold (ojs-worker-protocol, ACK and FAIL).

The report is an input as any worker's is. The call waits for the decision of the stages and returns it.
"""

from typing import Final

from pydantic import JsonValue

from ... import subjects
from ...domain import execution, ids
from ...domain.definition import MAX_INPUT_BYTES, size_of
from ...domain.events import DeadLettered, Failed, Failure, Report, Started
from ...domain.execution import Phase
from ...ports import EventLog
from .errors import ResultTooLarge
from .event_waiter import EventWaiter, Facts, awaited_of, until
from .lookup import ExecutionMatch
from .task_leases import Held

INVALID_RESULT: Final = "invalid_result"


async def complete(
    log: EventLog, held: Held, result: JsonValue = None, *, key: bytes, arrivals: EventWaiter | None = None
) -> ExecutionMatch:
    """Report success; return the execution after the decision.

    `key` is the installation's, and proves the claim. `arrivals` avoids polling.

    A result has the same limit as an input, because it is the input of the next step.

    Raises:
        ResultTooLarge: the result is too large. The attempt has failed without a retry.
    """
    if (size := size_of(result)) > MAX_INPUT_BYTES:
        error = ResultTooLarge.of(size)
        failure = Failure(type=INVALID_RESULT, message=str(error), retryable=False)
        await _answer(log, held, _report(held, key, error=failure), arrivals)
        raise error
    return await _answer(log, held, _report(held, key, result=result), arrivals)


async def fail(
    log: EventLog, held: Held, error: Failure, *, key: bytes, arrivals: EventWaiter | None = None
) -> ExecutionMatch:
    """Report a failed attempt; return the execution after its dead letter, if any, is stored."""
    outcome = await _answer(log, held, _report(held, key, error=error), arrivals)
    if any(isinstance(fact.message, Failed) and fact.message.dead_letter for fact in outcome.facts):
        letter = subjects.dead_letter(outcome.job, outcome.execution_id)
        await until(log, letter, lambda facts: any(isinstance(fact.message, DeadLettered) for fact in facts))
    return outcome


async def _answer(log: EventLog, held: Held, report: Report, arrivals: EventWaiter | None) -> ExecutionMatch:
    subject = subjects.subject_of(report)
    with awaited_of(log, arrivals, subjects.scope_of(held.task.message), held.found.facts) as awaited:
        message_id = ids.report_id(report.proof or "", subject)
        await log.publish(subject, report, message_id=message_id)
        facts = await awaited.until(lambda facts: not _is_held(facts, held.claim.message))
    return ExecutionMatch(held.found.job, held.found.execution_id, tuple(facts))


def _is_held(facts: Facts, claim: Started) -> bool:
    state = execution.fold(facts)
    step = state.steps.get(claim.step)
    if not facts or step is None:
        return True  # a lagging replica answered
    return not state.is_over and step.phase is Phase.STARTED and step.attempt == claim.attempt


def _report(held: Held, key: bytes, *, result: JsonValue = None, error: Failure | None = None) -> Report:
    claim, after = held.claim.message, _before(held)
    proof = ids.claim_proof(key, claim.execution_id, claim.step, claim.attempt, held.claim.sequence)
    return Report(
        job=claim.job,
        execution_id=claim.execution_id,
        outcome="completed" if error is None else "failed",
        step=claim.step,
        attempt=claim.attempt,
        delivery=claim.delivery,
        token=held.task.message.token,
        result=result,
        error=error,
        worker=claim.worker or None,
        claim=held.claim.sequence,
        claimed_after=after,
        proof=proof,
        place_proof=None if after is None else ids.place_proof(key, proof, after),
        sole=execution.sole_step(held.task.message) if error is None else None,
        traceparent=held.task.message.traceparent,
    )


def _before(held: Held) -> int | None:
    """Return the sequence before the claim if the claim is the newest fact.

    A stage whose cached state ends there needs no read.
    """
    facts = held.found.facts
    if len(facts) > 1 and facts[-1].sequence == held.claim.sequence:
        return facts[-2].sequence
    return None
