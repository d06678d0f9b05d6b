"""What executors outside say of the tasks that they hold (ojs-worker-protocol, ACK and FAIL).

The answer is an input as any executor's report is; it is awaited what the stages make of it, so that the executor is told.
"""

from pydantic import JsonValue

from ... import subjects
from ...domain import execution
from ...domain.events import DeadLettered, Failed, Failure, Report, Started
from ...domain.execution import Phase
from ...ports import EventLog
from .event_waiter import EventWaiter, Facts, awaited_of
from .input_result import until
from .lookup import ExecutionMatch
from .task_leases import Held


async def complete(
    log: EventLog, held: Held, result: JsonValue = None, *, arrivals: EventWaiter | None = None
) -> ExecutionMatch:
    """The work is done; the execution as it is then. `arrivals`: to hear what is decided, and not to ask for it."""
    return await _answer(log, held, _report(held, result=result), arrivals)


async def fail(log: EventLog, held: Held, error: Failure, *, arrivals: EventWaiter | None = None) -> ExecutionMatch:
    """The attempt failed; the execution as it is then, and its dead letter stored if it has one."""
    found = await _answer(log, held, _report(held, error=error), arrivals)
    if any(isinstance(fact.message, Failed) and fact.message.dead_letter for fact in found.facts):
        letter = subjects.dead_letter(found.job, found.execution_id)
        await until(log, letter, lambda facts: any(isinstance(fact.message, DeadLettered) for fact in facts))
    return found


async def _answer(log: EventLog, held: Held, report: Report, arrivals: EventWaiter | None) -> ExecutionMatch:
    subject = subjects.subject_of(report)
    with awaited_of(log, arrivals, subjects.scope_of(held.task.message), held.found.facts) as awaited:
        # The claim's sequence makes the id of this answer: the same attempt may have been claimed under the same number before.
        await log.publish(subject, report, message_id=f"{subject}.{held.claim.sequence}")
        facts = await awaited.until(lambda facts: not _is_held(facts, held.claim.message))
    return ExecutionMatch(held.found.job, held.found.execution_id, tuple(facts))


def _is_held(facts: Facts, claim: Started) -> bool:
    state = execution.fold(facts)
    step = state.steps.get(claim.step)
    if not facts or step is None:
        return True  # a replica that lags
    return not state.is_over and step.phase is Phase.STARTED and step.attempt == claim.attempt


def _report(held: Held, *, result: JsonValue = None, error: Failure | None = None) -> Report:
    claim = held.claim.message
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
        claimed_after=_before(held),
    )


def _before(held: Held) -> int | None:
    """The sequence of the fact before the claim, if the claim is the newest: whoever folded up to there reads nothing."""
    facts = held.found.facts
    if len(facts) > 1 and facts[-1].sequence == held.claim.sequence:
        return facts[-2].sequence
    return None
