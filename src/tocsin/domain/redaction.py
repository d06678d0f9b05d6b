"""Facts as they may be shown. Whoever has the token of a task can report on it, so it is for its executor alone."""

from typing import Final

from .events import Dispatched, EnvelopeData, Message, Report

MASK: Final = "******"


def masked(message: Message) -> Message:
    """The same message without what is secret in it."""
    match message:
        case Dispatched() | Report() | EnvelopeData():
            return message.model_copy(update={"token": MASK})
        case _:
            return message
