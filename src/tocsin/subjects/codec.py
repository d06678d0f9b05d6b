"""From a subject and a body back to what was stored."""

from typing import Final

from pydantic import ValidationError

from ..domain import events as e
from ..domain.definition import STORED
from ..domain.errors import TocsinError
from ..domain.validation_errors import problems


class DecodeError(TocsinError, ValueError):
    """A stored message that no version known here can read; `sequence` is where it lies, if whoever read it knows."""

    code = "undecodable-message"

    sequence: int | None = None


def decode(subject: str, body: bytes) -> e.Message:
    """Read a body by what its subject says that it is.

    Raises:
        DecodeError: the subject names nothing known, or the body does not fit, or is of a newer version.
    """
    model = _model(subject)
    try:
        # `model_validate_json` does the same, and takes half as long again with a small fact.
        message: e.Message = model.__pydantic_validator__.validate_json(body or b"{}", context=STORED)
    except ValidationError as error:
        raise DecodeError(f"{subject}: {'; '.join(map(str, problems(error)))}") from error
    return message


def _model(subject: str) -> type[e.Message]:
    tokens = subject.split(".", 5)
    kind = tokens[0]
    decision = tokens[_DECISION[kind]] if kind in _DECISION and len(tokens) > _DECISION[kind] else ""
    if kind == "lock":
        decision = tokens[-1]
    try:
        return _MODELS[f"{kind}.{decision}" if decision else kind]
    except KeyError:
        raise DecodeError(f"{subject}: no such message is known here") from None


_DECISION: Final = {"ledger": 2, "leadership": 2, "execution": 3, "dead-letter": 3, "cron": 1, "lock": 2, "mq": 1} | {
    "timer": 3,
    "delay": 3,
}
_MODELS: Final[dict[str, type[e.Message]]] = {
    **{
        f"ledger.{m.model_fields['type'].default}": m
        for m in (e.Defined, e.Paused, e.Resumed, e.Deleted, e.Due, e.Passed)
    },
    **{
        f"execution.{m.model_fields['type'].default}": m
        for m in (
            *(e.Planned, e.Admitted, e.Skipped, e.Dispatched, e.Started, e.RetryScheduled, e.Advanced, e.Exhausted),
            *(e.Recovered, e.Released, e.Completed, e.Failed, e.Cancelled),
        )
    },
    "lock.acquired": e.Acquired,
    "lock.queued": e.Queued,
    **{
        f"dead-letter.{m.model_fields['type'].default}": m
        for m in (e.DeadLettered, e.PoisonMessage, e.Replayed, e.Resolved)
    },
    "cron.triggered": e.CronTriggered,
    "cron.skipped": e.CronSkipped,
    "cron.missed": e.CronMissed,
    **{
        f"leadership.{m.model_fields['type'].default}": m
        for m in (e.LeadershipGained, e.LeadershipReleased, e.LeadershipLost)
    },
    "trigger": e.Trigger,
    "cancel": e.CancelRequest,
    "report": e.Report,
    "enqueue": e.Enqueued,
    **{
        f"{kind}.{what}": timer
        for kind in ("timer", "delay")
        for what, timer in (("retry", e.RetryTimer), ("lease", e.LeaseTimer), ("expiry", e.ExpiryTimer))
    },
    "mq.scheduled": e.Envelope,
    "mq.scheduler": e.Completion,
}
