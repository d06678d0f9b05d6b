"""From a subject and a body back to what was stored."""

from typing import Final

from pydantic import ValidationError

from ..domain import events as e
from ..domain.definition import STORED
from ..domain.definition.errors import problems
from ..domain.errors import TocsinError
from .names import ANY, REST, name


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


def job_of(subject: str) -> str:
    """The job that a subject speaks of."""
    tokens = subject.split(".")
    if tokens[0] == "trigger":  # the public may write the dots of a name as they are
        return name(_written(*tokens[1:]))
    if tokens[0] == "cancel":
        return parse_cancel(subject)[0]
    if tokens[0] == "mq":
        return parse_completion(subject)[0] if tokens[1] == "scheduler" else name(".".join(tokens[2:]))
    return name(tokens[2 if tokens[0] == "cron" else 1])


def entity_of(subject: str) -> str:
    """What must be handled in order: the execution, else the job."""
    kind, job, *rest = subject.split(".", 3)
    if kind == "mq":
        return subject.rpartition(".")[2]
    if kind == "cancel":
        return "{}.{}".format(*parse_cancel(subject))
    return job if kind == "ledger" or not rest else f"{job}.{rest[0]}"


def event_type(subject: str) -> str:
    """What a subject of an execution says that happened."""
    return subject.split(".", 4)[3]


def parse_cancel(subject: str) -> tuple[str, str]:
    """The job and the execution that somebody asks to end; the public may write the dots of a name as they are."""
    *job, execution_id = subject.split(".")[1:]
    return name(_written(*job)), _written(execution_id)


def parse_completion(subject: str) -> tuple[str, str]:
    """The job and the execution that an answer from outside is about."""
    *job, execution_id = subject.split(".")[3:]  # the public may write the dots of a name as they are
    return name(_written(*job)), _written(execution_id)


def _written(*tokens: str) -> str:
    """What the public wrote. A server stores what is published under a wildcard, and one names as little as the other."""
    return ANY if tokens == (REST,) else ".".join(tokens)
