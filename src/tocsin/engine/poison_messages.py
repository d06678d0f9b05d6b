"""Refused messages."""

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
"""The inputs of the stages. An event is a decision that is stored already and cannot be decided again."""


class NotRerunnable(TocsinError, ValueError):
    """A refused message cannot be sent again; the text gives the reason."""

    code = "not-rerunnable"


def message_of(letter: PoisonMessage) -> Trigger | CancelRequest | Report | RetryTimer | Completion:
    """Return the input that became this dead letter.

    Raises:
        NotRerunnable: the message is not an input, is still unreadable, or is not kept whole.
    """
    body = b64decode(letter.body)
    if len(body) >= MAX_BODY_BYTES:
        raise NotRerunnable(
            f"the message is too large to be kept whole; read it at sequence {letter.sequence} of its stream"
        )
    try:
        message = subjects.decode(letter.subject, body)
    except DecodeError as error:
        raise NotRerunnable(f"the message is still unreadable: {error}") from error
    if isinstance(message, Trigger) and subjects.job_of(letter.subject) == ANY:
        raise NotRerunnable(f"{letter.subject} names no job; trigger a job by its name")
    if not isinstance(message, INPUTS):
        raise NotRerunnable(
            f"{letter.subject} is an event, which the log has already, and not an input: {_advice(message)}"
        )
    return message


def _advice(event: Message) -> str:
    return {
        "replayed": "replay the dead letter that it belongs to",
        "planned": "trigger the job again",
        "admitted": "trigger the job again",
        "dispatched": "trigger the job again",
    }.get(str(getattr(event, "type", "")), "wait for the recoverer, or trigger the job again")
