"""What a refused message was: an input, which can be handed in again, or why it cannot."""

from base64 import b64decode
from typing import Final

from .. import subjects
from ..domain.errors import TocsinError
from ..domain.events import (
    MAX_BODY_BYTES,
    CancelRequest,
    Completion,
    Message,
    PoisonMessage,
    Report,
    RetryTimer,
    Trigger,
)
from ..subjects import ANY, DecodeError

INPUTS: Final = (Trigger, CancelRequest, Report, RetryTimer, Completion)
"""What is asked of the stages. A fact was decided: it is in the log already, and cannot be decided again."""


class NotRerunnable(TocsinError, ValueError):
    """It cannot be handed in again; the text says why."""

    code = "not-rerunnable"


def message_of(refused: PoisonMessage) -> Trigger | CancelRequest | Report | RetryTimer | Completion:
    """The input that was refused.

    Raises:
        NotRerunnable: it is none, or can still not be read, or is not whole.
    """
    body = b64decode(refused.body)
    if len(body) >= MAX_BODY_BYTES:
        raise NotRerunnable(f"it is too large for all of it to be kept: it lies at {refused.sequence} of its stream")
    try:
        message = subjects.decode(refused.subject, body)
    except DecodeError as error:
        raise NotRerunnable(f"it still cannot be read: {error}") from error
    if isinstance(message, Trigger) and subjects.job_of(refused.subject) == ANY:
        raise NotRerunnable(f"{refused.subject} names no job")
    if not isinstance(message, INPUTS):
        raise NotRerunnable(
            f"{refused.subject} is a fact, which the log has already, and not an input: {_advice(message)}"
        )
    return message


def _advice(fact: Message) -> str:
    return {
        "replayed": "replay the dead letter that it is of",
        "planned": "trigger the job anew",
        "admitted": "trigger the job anew",
        "dispatched": "trigger the job anew",
    }.get(
        str(getattr(fact, "type", "")), "what its stage did not do with it is for the recoverer, or for a new trigger"
    )
