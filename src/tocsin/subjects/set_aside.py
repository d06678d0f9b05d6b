"""Events that this version cannot read, and those of them that operators set aside.

A decision of a newer version cannot be read either, so that no reader may skip an unreadable event by itself. If no version will read it,
an operator voids it (`tocsin repair --unreadable`), and readers skip it as they skip a foreign message. An event that can be read
counts, whether it is voided or not.
"""

from datetime import datetime
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from ..domain.events import Voided
from .names import Stream

VOIDED: Final = "an operator set it aside, because no version reads it"
"""The reason why readers skip such an event."""

MAX_KNOWN: Final = 100_000
"""Events that a process remembers as set aside, about 25 MB; it looks up the others at each read."""

_Key: TypeAlias = tuple[str, int, str]

_known: Final[dict[_Key, None]] = {}


class UnreadableMessage(NamedTuple):
    """A stored message that does not decode."""

    stream: Stream
    subject: str
    sequence: int
    time: datetime
    digest: str
    """The digest of its body (`digest_of`)."""


def digest_of(body: bytes) -> str:
    """Return the digest by which an event names a message's body."""
    return blake2b(body, digest_size=32).hexdigest()


def set_aside(voided: Voided) -> None:
    """Let the readers of this process skip a message, if they cannot read it."""
    key = voided.stream, voided.sequence, voided.digest
    _known[key] = None
    if len(_known) > MAX_KNOWN:
        del _known[next(iter(_known))]


def is_set_aside(message: UnreadableMessage) -> bool:
    """Return whether this process knows that an operator set a message aside."""
    return (message.stream, message.sequence, message.digest) in _known
