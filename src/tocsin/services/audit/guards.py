"""Messages that no stage stored, and messages that are gone (I9).

Stages store each decision under the guard of its scope, and the stream keeps the headers that said so. A reply of the server, or
a message that a user published past the stages, lacks them, or has those of another message.
"""

from collections.abc import Iterator

from ...ports import StoredMessage
from ...subjects import DECISION_STREAMS, Stream, foreign_reason, guard_of, junk_reason
from .check import Proof, Violation


def is_decision(subject: str) -> bool:
    """Return whether messages with this subject are decisions, which are stored under a guard."""
    return guard_of(subject) is not None


def foreign(message: StoredMessage) -> Iterator[Violation]:
    """Yield the reason why no stage can have stored this message, if there is one."""
    reason = foreign_reason(message.subject, message.headers, stream=message.stream)
    if (reason := reason or junk_reason(message.subject, message.body)) is not None:
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
    if stream in DECISION_STREAMS and first > archived + 1:
        missing = f"sequences {archived + 1:,} to {first - 1:,} were removed, and no archive holds them"
        yield Violation("I9", f"stream {stream}", missing)


def _violation(message: StoredMessage, reason: str) -> Violation:
    proof = Proof(message.stream, message.sequence, message.subject, message.time)
    return Violation("I9", f"message {message.sequence:,} of {message.stream}", reason, (proof,))
