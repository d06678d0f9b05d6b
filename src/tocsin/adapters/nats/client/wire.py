"""Headers and error codes of JetStream, and its replies: sequences, status messages, rejections."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

from pydantic_core import from_json

from ....ports import LogUnavailable, MessageTooLarge, RequestRefused, SequenceConflict
from .transport import Outgoing

EXPECTED_LAST: Final = "Nats-Expected-Last-Sequence"
EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
MESSAGE_ID: Final = "Nats-Msg-Id"
BATCH_ID: Final = "Nats-Batch-Id"
BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
BATCH_COMMIT: Final = "Nats-Batch-Commit"
TTL: Final = "Nats-TTL"
ROLLUP: Final = "Nats-Rollup"
KV_OPERATION: Final = "KV-Operation"
MARKER_REASON: Final = "Nats-Marker-Reason"
SUBJECT: Final = "Nats-Subject"
SEQUENCE: Final = "Nats-Sequence"
TIME_STAMP: Final = "Nats-Time-Stamp"
PENDING: Final = "Nats-Num-Pending"
UP_TO: Final = "Nats-UpTo-Sequence"
STATUS: Final = "Status"
DESCRIPTION: Final = "Description"

NO_MESSAGES: Final = "404"
PENDING_MESSAGES: Final = "Nats-Pending-Messages"
"""A header of the status that ends a request: the number of messages that it did not bring."""
REQUEST_TIMEOUT: Final = "408"
TOO_MANY_SUBJECTS: Final = "413"
NO_RESPONDERS: Final = "503"
HEARTBEAT: Final = "100"
FULL_REQUEST: Final = "409 MaxBytes"
"""Stands for the status 409 whose description says that the next message exceeds the bytes of the request. Other reasons have 409 too."""
COMPLETED_REQUEST: Final = "409 Completed"
"""Stands for the status 409 of a request that brought all its messages, with bytes to spare."""
END_OF_BATCH: Final = "204"

WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})
"""The second code is sent to the losers of a race while the winner's message is on its way to the replicas."""
ID_IN_PROCESS: Final = 10_158
"""A message with the same id is on its way to the replicas: it was sent again too soon."""
BATCH_REPEATS_ID: Final = 10_201
"""An id of an atomic batch was stored before, or is there twice."""
TOO_MANY_BATCHES: Final = 10_210
UNAVAILABLE: Final = 503
"""The `code` of an error that a retry may resolve: no leader, no resources."""
FULL: Final = "maximum bytes exceeded"
"""The description of the error of a full stream. Its number is that of all failures to store."""
SERVER_ERRORS: Final = 500
"""From this `code` on, the server is at fault."""
NO_STORAGE: Final = frozenset({10028, 10047})
"""The account or the server cannot reserve what a stream may hold."""
STREAM_NOT_FOUND: Final = 10059
CONSUMER_NOT_FOUND: Final = 10014
CONSUMER_EXISTS: Final = 10148
SUBJECTS_OVERLAP: Final = 10065
NO_MESSAGE_FOUND: Final = 10_037
MESSAGE_GONE: Final = 10_057
"""The message that a request would delete does not exist."""

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


class StreamFull(LogUnavailable):
    """A stream that refuses new messages holds as many bytes as it may."""


def too_large(message: Outgoing, limit: int) -> MessageTooLarge | None:
    """Return the error of a message with more than `limit` bytes, else None."""
    size = len(message.body)
    if size + _ROOM_FOR_HEADERS < limit:
        return None
    head = "".join(f"{name}: {value}\r\n" for name, value in (message.headers or {}).items())
    size += len(f"NATS/1.0\r\n{head}\r\n".encode()) if head else 0
    return MessageTooLarge.of(message.subject, size, limit) if size > limit else None


def status_of(message: Reply) -> str | None:
    """Return the status of a status message ("404"); None for any other message."""
    headers = message.headers
    if headers is None or message.data or SEQUENCE in headers:  # a stored message may have no body
        return None
    return headers.get(STATUS)


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
        is_servers_fault = error.get("code", 0) >= SERVER_ERRORS and code not in WRONG_LAST_SEQUENCE
        if is_servers_fault or code == ID_IN_PROCESS:
            # The message itself is fine; for example, the disk is full or there is no leader. The caller's finished
            # work must not be discarded for that.
            description = error.get("description", "refused")
            raise (StreamFull if description == FULL else LogUnavailable)(f"{subject}: {description}")
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
    if code in WRONG_LAST_SEQUENCE:
        raise SequenceConflict(f"{subject}: {description}")
    if error.get("code") == UNAVAILABLE:
        raise LogUnavailable(f"{subject}: {description}")
    raise JetStreamError(subject, description, code)
