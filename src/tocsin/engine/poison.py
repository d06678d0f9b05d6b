"""Decisions that fail.

Such a decision raises an error again on a fresh fold, or kills each process that makes it.

The place of such a decision counts as taken, and the key of its cause gets its end, so that nothing waits for it. It is a defect of the program, and
an operator can run the execution or message again.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from .. import subjects, telemetry
from ..domain import execution, ids
from ..domain.commit import MAX_CALL_BYTES
from ..domain.errors import TocsinError
from ..domain.events import Due, Failure, Message, Passed, PoisonMessage, Skipped
from ..domain.log_events import Poison
from ..ports import RequestRefused
from ..ports.event_log import check_subject
from .asked import Asked
from .causes import DeadlineCause, MessageCause
from .fold import LEDGER, Fold
from .kinds import EXECUTION

MAX_CALL_EVENTS: Final = 256
"""Events of one call of `decide`."""
NO_JOB: Final = "-"
"""The job of a dead letter if its input has no job name, or an invalid job name.

No subject of the log can have such a name.
"""
MAX_ERROR: Final = 2_000
"""Letters of an error that are kept."""

_log = telemetry.get_logger("tocsin.engine")


class DecisionTooLarge(TocsinError):
    """A decision yields more than a commit may hold."""

    code = "too-large"

    @classmethod
    def of(cls, events: int, size: int) -> "DecisionTooLarge":
        """Return the error of a decision with so many events and bytes."""
        return cls(
            f"a decision yields {events:,} events with {size:,} bytes; at most {MAX_CALL_EVENTS:,} events and"
            f" {MAX_CALL_BYTES:,} bytes are allowed"
        )


class DeadlyDecision(TocsinError):
    """A decision killed the processes that made it."""

    code = "poison"


def place_of(cause: MessageCause | DeadlineCause) -> str:
    """Return the name of the cause (`domain.log_events.Trying`)."""
    if isinstance(cause, MessageCause):
        return cause.cause
    return f"{cause.cause} {cause.scope} {cause.deadline.key}".rstrip()


def poison_of(cause: MessageCause | DeadlineCause, error: Exception) -> Poison:
    """Return the event that names a decision that failed again."""
    subject = cause.recorded.subject if isinstance(cause, MessageCause) else cause.scope
    return Poison(cause.by, place_of(cause), subject, _code_of(error), _text(error))


def end_of(fold: Fold, cause: MessageCause | DeadlineCause, error: Exception) -> list[Message]:
    """Return the events that end the key of a decision that failed again.

    A deadline without an end of its own gives none: it is looked at again later.
    """
    for end_by in (_end_of_key, _letter):
        try:
            if end := list(end_by(fold, cause, error)):
                return end
        except Exception as second:  # noqa: BLE001 - the key, or the message, may be broken
            _log.warning("key of a failed decision has no end", action="poison-without-end", error=str(second))
    return []


def _end_of_key(fold: Fold, cause: MessageCause | DeadlineCause, error: Exception) -> Iterator[Message]:
    if isinstance(cause, DeadlineCause) and cause.deadlines.kind is LEDGER:
        yield from _passed(fold, cause)
        return
    subject = cause.recorded.subject if isinstance(cause, MessageCause) else cause.scope
    message = cause.recorded.message if isinstance(cause, MessageCause) else None
    if isinstance(message, Due):
        yield from _skipped(fold, message)
    elif subject.startswith(("execution.", "report.")):
        _, job, execution_id, *_ = subject.split(".")
        state = fold.state(EXECUTION, f"execution.{job}.{execution_id}.>")
        failure = Failure(type="poison", message=_text(error), retryable=False)
        for failed in execution.give_up(state, "poison", failure):
            yield msgspec.structs.replace(failed, dead_letter=True)


def _passed(fold: Fold, cause: DeadlineCause) -> Iterator[Message]:
    """Yield the end of one instant, without the calendar."""
    state, at = fold.state(LEDGER, cause.scope), cause.deadline.at
    if state.regimes:
        regime = next((one for one in reversed(state.regimes) if one.since < at), state.regimes[0])
        yield Passed(
            job=subjects.job_of(cause.scope),
            start=state.watermark or state.regimes[0].since,
            until=at,
            reason="poison",
            count=1,
            definition=regime.definition,
        )


def _skipped(fold: Fold, due: Due) -> Iterator[Message]:
    """Yield the end of an occurrence that has no execution yet."""
    execution_id = ids.occurrence_id(due.job, due.scheduled_time)
    if fold.state(EXECUTION, subjects.execution(due.job, execution_id)) == execution.initial:
        yield Skipped(
            job=due.job,
            execution_id=execution_id,
            reason="poison",
            scheduled_time=due.scheduled_time,
            trigger="cron",
            definition=due.definition,
        )


def _letter(_: Fold, cause: MessageCause | DeadlineCause, error: Exception) -> Iterator[Message]:
    if isinstance(cause, MessageCause):
        yield letter_of(cause, _text(error), _code_of(error))


def _code_of(error: Exception) -> str:
    return error.code if isinstance(error, DecisionTooLarge) else DeadlyDecision.code


def letter_of(cause: MessageCause | Asked, reason: str, code: str | None, job: str | None = None) -> PoisonMessage:
    """Return the dead letter of a message.

    `job`: its job; None: the job in the subject of the message.
    """
    recorded = cause.recorded
    return PoisonMessage.of(
        _storable(job or subjects.job_of(recorded.subject)),
        cause.subscription.durable,
        recorded.subject,
        recorded.sequence,
        recorded.message.encode(),
        reason,
        code=code,
        partition=subjects.partition(recorded.subject),
    ).identified(recorded.message_id)


def _storable(job: str) -> str:
    """Return the job of a dead letter.

    Messages of others may have subjects with letters that no name has.
    """
    try:
        check_subject(subjects.token(job))
    except RequestRefused:
        return NO_JOB
    return job or NO_JOB


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_ERROR]
