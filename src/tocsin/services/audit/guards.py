"""Messages that no stage stored, and messages that are gone (I9).

Stages store each decision under the guard of its scope, and the stream keeps the headers that said so. A reply of the server, or
a message that a user published past the stages, lacks them, or has those of another message.
"""

from collections.abc import Iterator
from typing import Final

from ...ports import StoredMessage
from ...subjects import Stream
from .check import Proof, Violation

GUARDED_STREAMS: Final = (Stream.LEDGER, Stream.LOG)
"""The streams of decisions."""
EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
ORIGIN: Final = "Nats-Stream"
"""A header of the server's replies to reads of a stream."""
_SCOPE_TOKENS: Final = {"ledger": 2, "execution": 3, "dead-letter": 3, "agent": 3, "queue": 2}
"""The number of tokens of a scope before its wildcard."""


def is_decision(subject: str) -> bool:
    """Return whether messages with this subject are decisions, which are stored under a guard."""
    return _scope(subject) is not None


def foreign(message: StoredMessage) -> Iterator[Violation]:
    """Yield the reason why no stage can have stored this message, if there is one."""
    scope = _scope(message.subject)
    if scope is None:
        return
    guard = message.headers.get(EXPECTED_SUBJECT)
    if ORIGIN in message.headers:
        reason = "it is a reply of the server to a request, whose sender addressed it here"
    elif EXPECTED_SEQUENCE not in message.headers or guard is None:
        reason = "it was stored without a guard, so by no stage"
    elif guard != scope and not guard.endswith(f".{scope}"):
        reason = f"it was stored under the guard of another scope, {guard}"
    else:
        return
    yield _violation(message, reason)


def unreadable(message: StoredMessage) -> Iterator[Violation]:
    """Yield a violation if a message that this version cannot read is a decision."""
    if is_decision(message.subject):
        yield _violation(message, "this version cannot read it, so its consequences cannot be judged")


def removed(stream: Stream, *, first: int, archived: int) -> Iterator[Violation]:
    """Yield a violation if a stream lacks messages that the archive does not hold.

    Args:
        stream: the stream.
        first: the sequence of its first message, or of its next if it is empty.
        archived: the sequence up to which the archive may hold its messages.
    """
    if stream in GUARDED_STREAMS and first > archived + 1:
        missing = f"sequences {archived + 1:,} to {first - 1:,} were removed, and no archive holds them"
        yield Violation("I9", f"stream {stream}", missing)


def _scope(subject: str) -> str | None:
    """Return the relative scope that guards a subject; None: it needs no guard."""
    kind, *rest = subject.split(".")
    if kind == "lock" and len(rest) > 1:
        return f"{subject.rpartition('.')[0]}.*"
    if kind == "cron":
        return subject
    number = _SCOPE_TOKENS.get(kind)
    return None if number is None else ".".join((kind, *rest[: number - 1], ">"))


def _violation(message: StoredMessage, reason: str) -> Violation:
    proof = Proof(message.stream, message.sequence, message.subject, message.time)
    return Violation("I9", f"message {message.sequence:,} of {message.stream}", reason, (proof,))
