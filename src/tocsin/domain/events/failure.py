"""Why something did not succeed."""

from pydantic import JsonValue

from .message import Message


class Failure(Message):
    """Why an attempt did not succeed."""

    type: str
    message: str = ""
    traceback: str | None = None
    retryable: bool = True
    code: str | None = None
    """What an executor of the Open Job Spec calls it (ojs-errors)."""
    details: dict[str, JsonValue] | None = None
