"""Reports and progress of workers over HTTP (ojs-worker-protocol, ACK and FAIL; ojs-progress)."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any, Final

from pydantic import JsonValue

from ... import subjects
from ...domain import execution, ids
from ...domain.definition import MAX_INPUT_BYTES, size_of
from ...domain.definition.fields import json_problem
from ...domain.events import (
    Advanced,
    Completed,
    DeadLettered,
    Exhausted,
    Failed,
    Failure,
    HeartbeatDetails,
    Message,
    Released,
    Report,
    RetryScheduled,
    Started,
    StepProgress,
    Terminal,
)
from ...domain.execution import Phase
from ...domain.progress import message_of
from ...domain.task_fetch import lease_span
from ...ports import Clock, EventLog, OutdatedState, SequenceConflict
from ...subjects import DecodeError
from .errors import InvalidResult, OperationError, ResultTooLarge
from .event_waiter import EventWaiter, Facts, awaited_of, until, until_all
from .lookup import ExecutionMatch
from .task_fetches import Held

INVALID_RESULT: Final = "invalid_result"
_ENDS_OF_CLAIM: Final = (Advanced, Exhausted, Released, RetryScheduled, Started)
"""Events on a step after which a claim on it no longer stands, beside the end of the execution."""


@dataclass(frozen=True, slots=True)
class Answered(ExecutionMatch):
    """An execution after the decision on a report."""

    is_overtaken: bool
    """Another event decided first, and the report counts for nothing. False also if no stage has decided yet."""


async def complete(
    log: EventLog, held: Held, result: JsonValue = None, *, key: bytes, arrivals: EventWaiter | None = None
) -> Answered:
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
) -> list[Answered | Exception]:
    """Report the success of several steps together.

    Return the execution of each after the decision, or why it was not reported. Arguments: see `complete`.
    """
    reports = [_report_on(held, key, result) for held, result in answers]
    with ExitStack() as waiting:
        scopes = [subjects.scope_of(held.task.message) for held, _ in answers]
        awaited = [
            waiting.enter_context(arrivals.of(scope, held.found.facts))
            for scope, (held, _) in zip(scopes, answers, strict=True)
        ]
        reported = await asyncio.gather(
            *(_published(log, report, refusal) for report, refusal in reports), return_exceptions=True
        )
        is_enough = [partial(_is_decided, report) for report, _ in reports]
        # a result that is refused was reported too, as a failure
        refusals = (InvalidResult, ResultTooLarge)
        sent = [index for index, error in enumerate(reported) if error is None or isinstance(error, refusals)]
        await until_all(log, [(awaited[index], is_enough[index]) for index in sent])
    outcomes: list[Answered | Exception] = []
    for (held, _), (report, _), error, each in zip(answers, reports, reported, awaited, strict=True):
        if isinstance(error, BaseException) and not isinstance(error, Exception):
            raise error
        outcomes.append(_answered(held, report, each.facts) if error is None else error)
    return outcomes


async def _published(log: EventLog, report: Report, refusal: OperationError | None) -> None:
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
) -> Answered:
    """Report a failed attempt; return the execution after its dead letter, if any, is stored."""
    outcome = await _answer(log, held, _report(held, key, error=error), arrivals)
    if any(isinstance(fact.message, Failed) and fact.message.dead_letter for fact in outcome.facts):
        letter = subjects.dead_letter(outcome.job, outcome.execution_id)
        await until(log, letter, lambda facts: any(isinstance(fact.message, DeadLettered) for fact in facts))
    return outcome


async def extend(log: EventLog, held: Held, *, key: bytes, asked: float | None = None) -> None:
    """Report a heartbeat, which extends the lease up to the attempt's timeout.

    Raises:
        SequenceConflict: the claim ended.
    """
    seconds = asked or held.claim.message.lease or held.task.message.timeout
    report = _report(held, key, lease=seconds)
    subject, scope = subjects.subject_of(report), subjects.scope_of(held.task.message)
    await log.publish(
        subject,
        report,
        message_id=ids.report_id(report.proof or "", f"{subject}.{held.found.facts[-1].sequence}.{seconds}"),
    )
    # The lease may have ended before, and the worker must learn so.
    state = execution.fold(await log.load(scope))
    step = state.steps.get(report.step)
    if state.is_over or step is None or step.phase is not Phase.STARTED or step.claim != report.claim:
        raise SequenceConflict(f"{scope} changed while the lease was extended")


async def _answer(log: EventLog, held: Held, report: Report, arrivals: EventWaiter | None) -> Answered:
    with awaited_of(log, arrivals, subjects.scope_of(held.task.message), held.found.facts) as awaited:
        await _published(log, report, None)
        facts = await awaited.until(partial(_is_decided, report))
    return _answered(held, report, facts)


def _answered(held: Held, report: Report, facts: Facts) -> Answered:
    is_overtaken = _is_counted(report, facts) is False
    return Answered(held.found.job, held.found.execution_id, tuple(facts), is_overtaken)


def _is_decided(report: Report, facts: Facts) -> bool:
    return _is_counted(report, facts) is not None


def _is_counted(report: Report, facts: Facts) -> bool | None:
    """Return whether a report decided on its claim; None: nothing has decided yet."""
    since = [fact.message for fact in facts if fact.sequence > (report.claim or 0)]
    return _is_stored(report, since) if report.outcome == "completed" else _has_failed(report, since)


def _is_stored(report: Report, since: Sequence[Message]) -> bool | None:
    """Return whether a step ended with the reported result.

    The end of the lease or a retry does not prevent that, because the work is done (`execution.succeed`).
    """
    for end in since:
        if isinstance(end, Terminal) or (isinstance(end, Advanced | Exhausted) and end.step == report.step):
            if not isinstance(end, Advanced | Completed) and not (isinstance(end, Failed) and end.step_completed):
                return False
            return (end.step, end.attempt, end.result) == (report.step, report.attempt, report.result)
    return None


def _has_failed(report: Report, since: Sequence[Message]) -> bool | None:
    """Return whether the reported attempt failed while its claim stood (`execution.fail`)."""
    for fact in since:
        if isinstance(fact, Terminal) or (isinstance(fact, _ENDS_OF_CLAIM) and fact.step == report.step):
            has_failed = isinstance(fact, RetryScheduled | Exhausted | Failed)
            return has_failed and (fact.step, fact.attempt) == (report.step, report.attempt)
    return None


def _report(
    held: Held, key: bytes, *, result: JsonValue = None, error: Failure | None = None, lease: float | None = None
) -> Report:
    claim = held.claim.message
    proof = ids.claim_proof(key, claim.execution_id, claim.step, claim.attempt, held.claim.sequence)
    return Report(
        job=claim.job,
        execution_id=claim.execution_id,
        outcome="extended" if lease is not None else "completed" if error is None else "failed",
        step=claim.step,
        attempt=claim.attempt,
        delivery=claim.delivery,
        token=held.task.message.token,
        result=result,
        error=error,
        lease=lease,
        worker=claim.worker or None,
        claim=held.claim.sequence,
        proof=proof,
        traceparent=held.task.message.traceparent,
    )


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """Progress of a step as a worker reports it; None: not reported."""

    fraction: float | None = None
    """From 0 to 1; a lower number than before does not count (PRG-003)."""
    message: str | None = None
    """The present work of the attempt; None: the `message` in `data`, if that is a text."""
    data: dict[str, Any] | None = None
    checkpoint: dict[str, Any] | None = None
    """The place that the work has reached, for the next attempt."""


EXTENDED_BELOW: Final = 0.9
"""The part of a lease from which on progress extends it again: each extension is an event."""


async def store_progress(
    log: EventLog, clock: Clock, held: Held, report: ProgressReport, *, key: bytes
) -> StepProgress:
    """Store progress and checkpoint of a held step; return the progress that counts.

    It extends the lease, unless the last extension is more recent than a tenth of it. `key`: as in `complete`.
    """
    claim = held.claim.message
    before = await newest_progress(log, held.found, claim.step)
    is_same = before is not None and before.attempt == claim.attempt
    fraction = max(report.fraction or 0.0, before.fraction if before is not None and is_same else 0.0)
    text = (report.data or {}).get("message") if report.message is None else report.message
    identity: dict[str, Any] = {
        "job": claim.job,
        "execution_id": claim.execution_id,
        "step": claim.step,
        "attempt": claim.attempt,
    }
    progress = StepProgress(
        **identity,
        time=clock.now(),
        fraction=fraction,
        message=message_of(text) if isinstance(text, str) else "",
        data=report.data or {},
    )
    token = held.task.message.token
    await log.publish(subjects.output_of(progress, token), progress, message_id=token_hex(8))
    if report.checkpoint is not None:
        heartbeat = HeartbeatDetails(**identity, time=clock.now(), details=report.checkpoint)
        await log.publish(subjects.output_of(heartbeat, token), heartbeat, message_id=token_hex(8))
    until, lease = held.state.steps[claim.step].leased_until, lease_span(claim.lease or held.task.message.timeout)
    if until is not None and until - clock.now() <= lease * EXTENDED_BELOW:
        with suppress(OutdatedState):  # the lease ended; the next report or heartbeat says so
            await extend(log, held, key=key)
    return progress


async def newest_progress(log: EventLog, match: ExecutionMatch, step: str) -> StepProgress | None:
    """Return the progress of a step's newest attempt; None: it is missing or unreadable."""
    tokens = match.tokens
    attempt = max((attempt for name, attempt in tokens if name == step), default=None)
    if attempt is None:
        return None
    subject = subjects.progress(match.job, match.execution_id, step, attempt, of_token=tokens[step, attempt])
    try:
        recorded = await log.last(subject)
    except DecodeError:
        return None
    return recorded.message if recorded is not None and isinstance(recorded.message, StepProgress) else None
