"""The replies of JetStream: stored sequences, status messages and rejections."""

from collections.abc import Mapping
from typing import Any, NoReturn

from nats.aio.msg import Msg
from pydantic_core import from_json

from ....ports import LogUnavailable, RequestRefused, SequenceConflict
from . import wire


class JetStreamError(RequestRefused):
    """JetStream rejected a request for a reason that a retry does not change.

    `description` is the server's text, and `err_code` is its number; 0 if it sent none.
    """

    code = "jetstream-error"

    def __init__(self, subject: str, description: str, err_code: int = 0) -> None:
        """`subject` names the rejected request."""
        super().__init__(f"{subject}: {description} (error {err_code})", description)
        self.err_code = err_code


def status_of(message: Msg) -> str | None:
    """Return the status of a status message ("404"); None for any other message.

    A stored message without a body is not a status message.
    """
    headers = message.headers
    if headers is None or message.data or wire.SEQUENCE in headers:
        return None
    return headers.get(wire.STATUS)


def stored_sequence(subject: str, answer: bytes) -> int:
    """Return the sequence of a stored message from the reply to its publish.

    Raises:
        SequenceConflict: the guard failed.
        JetStreamError: the stream does not accept the message.
        LogUnavailable: the server cannot store the message now.
    """
    fields: dict[str, Any] = from_json(answer)
    error = fields.get("error")
    if error is not None:
        code = error.get("err_code")
        is_servers_fault = error.get("code", 0) >= wire.SERVER_ERRORS and code not in wire.WRONG_LAST_SEQUENCE
        if is_servers_fault or code == wire.ID_IN_PROCESS:
            # The message itself is fine; for example, the disk is full or there is no leader. The caller's finished
            # work must not be discarded for that.
            raise LogUnavailable(f"{subject}: {error.get('description', 'refused')}")
        raise_rejection(subject, error)
    sequence: int = fields["seq"]
    return sequence


def raise_rejection(subject: str, error: Mapping[str, Any]) -> NoReturn:
    """Raise the exception for the `error` of a reply, as `stored_sequence` does."""
    code, description = error.get("err_code", 0), error.get("description", "refused")
    if code in wire.WRONG_LAST_SEQUENCE:
        raise SequenceConflict(f"{subject}: {description}")
    if error.get("code") == wire.UNAVAILABLE:
        raise LogUnavailable(f"{subject}: {description}")
    raise JetStreamError(subject, description, code)
