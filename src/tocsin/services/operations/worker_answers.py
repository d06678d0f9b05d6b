"""Reports of workers over HTTP on the tasks that they hold (ojs-worker-protocol, ACK and FAIL).

The report is an input as any worker's is. The call waits for the decision of the stages and returns it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from pydantic import JsonValue

from ... import subjects
from ...domain import execution, ids
from ...domain.definition import MAX_INPUT_BYTES, size_of
from ...domain.definition.fields import json_problem
from ...domain.events import DeadLettered, Failed, Failure, Report, Started
from ...domain.execution import Execution, Phase, Status
from ...ports import EventLog
from .errors import InvalidResult, OperationError, ResultTooLarge
from .event_waiter import EventWaiter, Facts, awaited_of, until, until_all
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
        InvalidResult: the result cannot be stored. The attempt has failed without a retry.
        ResultTooLarge: the result is too large. The attempt has failed without a retry.
    """
    report, refusal = _report_on(held, key, result)
    found = await _answer(log, held, report, arrivals)
    if refusal is not None:
        raise refusal
    return found


async def complete_each(
    log: EventLog, answers: Sequence[tuple[Held, JsonValue]], *, key: bytes, arrivals: EventWaiter
) -> list[ExecutionMatch | Exception]:
    """Report the success of several steps together.

    Return the execution of each after the decision, or why it was not reported. The arguments are those of `complete`.
    """
    with ExitStack() as waiting:
        scopes = [subjects.scope_of(held.task.message) for held, _ in answers]
        awaited = [
            waiting.enter_context(arrivals.of(scope, held.found.facts))
            for scope, (held, _) in zip(scopes, answers, strict=True)
        ]
        reported = await asyncio.gather(
            *(_published(log, held, result, key) for held, result in answers), return_exceptions=True
        )
        is_enough = [partial(_is_decided, held.claim.message) for held, _ in answers]
        # a result that is refused was reported too, as a failure
        refusals = (InvalidResult, ResultTooLarge)
        sent = [index for index, error in enumerate(reported) if error is None or isinstance(error, refusals)]
        await until_all(log, [(awaited[index], is_enough[index]) for index in sent])
    outcomes: list[ExecutionMatch | Exception] = []
    for (held, _), error, each in zip(answers, reported, awaited, strict=True):
        if isinstance(error, BaseException) and not isinstance(error, Exception):
            raise error
        found = ExecutionMatch(held.found.job, held.found.execution_id, tuple(each.facts))
        outcomes.append(found if error is None else error)
    return outcomes


async def _published(log: EventLog, held: Held, result: JsonValue, key: bytes) -> None:
    """Publish a report of success, or of failure if the result is refused.

    Raises:
        InvalidResult: the result cannot be stored.
        ResultTooLarge: the result is too large.
    """
    report, refusal = _report_on(held, key, result)
    subject = subjects.subject_of(report)
    await log.publish(subject, report, message_id=ids.report_id(report.proof or "", subject))
    if refusal is not None:
        raise refusal


def _report_on(held: Held, key: bytes, result: JsonValue) -> tuple[Report, OperationError | None]:
    """Return the report of a result, or of its refusal, and the refusal."""
    refusal = _refusal_of(result)
    if refusal is None:
        return _report(held, key, result=result), None
    failure = Failure(type=INVALID_RESULT, message=str(refusal), retryable=False)
    return _report(held, key, error=failure), refusal


def _refusal_of(result: JsonValue) -> OperationError | None:
    """Return why a result is refused; None: it is accepted."""
    if problem := json_problem(result):
        return InvalidResult(f"The result cannot be stored: {problem}.")
    size = size_of(result)
    return ResultTooLarge.of(size) if size > MAX_INPUT_BYTES else None


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
        facts = await awaited.until(partial(_is_decided, held.claim.message))
    return ExecutionMatch(held.found.job, held.found.execution_id, tuple(facts))


def _is_decided(claim: Started, facts: Facts) -> bool:
    state = execution.fold(facts)
    step = state.steps.get(claim.step)
    if not facts or step is None:
        return False  # a lagging replica answered
    return state.is_over or step.phase is not Phase.STARTED or step.attempt != claim.attempt


def is_overtaken(held: Held, state: Execution, *, is_success: bool) -> bool:
    """Return whether another event decided on a claim before the report on it.

    False: the report decided, or no stage has decided yet.
    """
    claim = held.claim.message
    step = state.steps[claim.step]
    if not state.is_over and step.phase is Phase.STARTED and step.attempt == claim.attempt:
        return False
    if is_success:
        # The end of an execution of one step need not name the step.
        has_completed = step.phase is Phase.COMPLETED or state.status is Status.COMPLETED
        return not has_completed or step.attempt != claim.attempt
    is_counted = step.phase in {Phase.RETRYING, Phase.EXHAUSTED} or state.status is Status.FAILED
    return step.attempt == claim.attempt and not is_counted  # a later attempt follows a failure


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
