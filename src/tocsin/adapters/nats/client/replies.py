"""The replies of JetStream: stored sequences, status messages and rejections."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

from pydantic_core import from_json

from ....ports import LogUnavailable, MessageTooLarge, RequestRefused, SequenceConflict
from . import wire
from .transport import Outgoing

_ROOM_FOR_HEADERS: Final = 8_192
_SEQUENCE: Final = re.compile(rb'"seq":\s*(\d+)')


class Reply(NamedTuple):
    """A reply to a request, which may be a status message."""

    data: bytes
    headers: Mapping[str, str] | None = None


class JetStreamError(RequestRefused):
    """JetStream rejected a request for a reason that a retry does not change.

    `description` is the server's text, and `err_code` is its number; 0 if it sent none.
    """

    code = "jetstream-error"

    def __init__(self, subject: str, description: str, err_code: int = 0) -> None:
        """`subject` names the rejected request."""
        super().__init__(f"{subject}: {description} (error {err_code})", description)
        self.err_code = err_code


def too_large(message: Outgoing, limit: int) -> MessageTooLarge | None:
    """Return the error of a message with more than `limit` bytes, else None."""
    size = len(message.body)
    if size + _ROOM_FOR_HEADERS < limit:
        return None
    head = "".join(f"{name}: {value}\r\n" for name, value in (message.headers or {}).items())
    size += len(f"NATS/1.0\r\n{head}\r\n".encode()) if head else 0
    return MessageTooLarge.of(message.subject, size, limit) if size > limit else None


def status_of(message: Reply) -> str | None:
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


def result_of(subject: str, reply: Reply | LogUnavailable) -> int | Exception:
    """Return what `stored_sequence` returns or raises."""
    if not isinstance(reply, Reply):
        return reply
    # One search instead of a parsed document, because every stored message has such a reply.
    if b'"error"' not in reply.data and (sequence := _SEQUENCE.search(reply.data)) is not None:
        return int(sequence[1])
    try:
        return stored_sequence(subject, reply.data)
    except Exception as error:  # noqa: BLE001 - returned to the caller
        return error


def raise_rejection(subject: str, error: Mapping[str, Any]) -> NoReturn:
    """Raise the exception for the `error` of a reply, as `stored_sequence` does."""
    code, description = error.get("err_code", 0), error.get("description", "refused")
    if code in wire.WRONG_LAST_SEQUENCE:
        raise SequenceConflict(f"{subject}: {description}")
    if error.get("code") == wire.UNAVAILABLE:
        raise LogUnavailable(f"{subject}: {description}")
    raise JetStreamError(subject, description, code)
