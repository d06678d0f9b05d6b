"""Stored messages, as a stream or a commit has them."""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Final

from ..domain.events import Message, Recorded, Trigger
from .codec import DecodeError, UnreadableMessage, continued, decode
from .names import SCOPE_TOKENS, STREAM_SUBJECTS, Stream, stream_of

MESSAGE_ID: Final = "Nats-Msg-Id"
ORIGIN: Final = "Nats-Stream"
"""A header of the server's replies to reads of a stream."""
_INPUT_KINDS: Final = frozenset(
    captured.partition(".")[0]
    for stream in (Stream.INPUTS, Stream.REQUESTS, Stream.REPORTS)
    for captured in STREAM_SUBJECTS[stream]
)


def guard_of(subject: str) -> str | None:
    """Return the scope that guards messages with a subject.

    None: they are no decisions and need no guard.
    """
    tokens = subject.split(".", 3)
    kind = tokens[0]
    if (number := SCOPE_TOKENS.get(kind)) is not None:
        tokens[number:] = (">",)
        return ".".join(tokens)
    if kind == "lock":
        scope, _, last = subject.rpartition(".")
        return f"{scope}.*" if "." in scope and last else None
    return subject if kind == "cron" else None


def is_copied_input(subject: str, headers: Mapping[str, str], own: Collection[str]) -> bool:
    """Return whether an input is a reply to a read of an own stream.

    A user who may read can address the reply here, to repeat a request. A program may have the server
    publish the messages of its own streams again; these are no copies.

    Args:
        subject: the subject of a message that is no decision.
        headers: its headers, to which the server added none.
        own: the names of the streams of the installation on the server.
    """
    return subject.partition(".")[0] in _INPUT_KINDS and headers.get(ORIGIN, "") in own


def recorded(
    subject: str,
    body: bytes,
    headers: Mapping[str, str],
    sequence: int,
    time: datetime,
    *,
    read: Callable[[str, bytes], Message] = decode,
) -> Recorded[Message]:
    """Return a stored message, decoded by `read`.

    A trigger continues the trace of its headers.

    Raises:
        DecodeError: this version cannot decode it; `stored` names the message.
    """
    try:
        message = read(subject, body)
    except DecodeError as error:
        error.stored = UnreadableMessage(stream_of(subject), subject, sequence, time, digest_of(body))
        raise
    if isinstance(message, Trigger):
        message = continued(message, headers)
    return Recorded(message, subject, sequence, time, headers.get(MESSAGE_ID))


def digest_of(body: bytes) -> str:
    """Return the digest by which an event names a message's body."""
    return blake2b(body, digest_size=32).hexdigest()
