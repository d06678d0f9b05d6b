"""Void the foreign messages of an installation, one recorded event each (`subjects.foreign`).

Nothing is removed and no fold changes: readers skip a foreign message before and after. The event says who looked at the message
and why it may stay, so that the audit lists it instead of reporting it.
"""

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b

from .. import subjects
from ..domain.events import Actor, Voided
from ..ports import EventLog, LogUnavailable, OutdatedState, Projections, StoredLog, StoredMessage
from ..subjects import DECISION_STREAMS, Bucket, Stream

TRIES = 5
"""Attempts to store an event whose scope has foreign messages itself."""


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A foreign message that is not voided."""

    stream: Stream
    sequence: int
    subject: str
    stored_at: datetime
    found: str
    """The reason why no stage can have stored it."""
    digest: str

    @classmethod
    def of(cls, message: StoredMessage, found: str) -> "FoundMessage":
        """Return a stored message as it is found."""
        digest = digest_of(message.body)
        return cls(message.stream, message.sequence, message.subject, message.time, found, digest)

    @property
    def key(self) -> tuple[Stream, int]:
        """The stream and the position."""
        return self.stream, self.sequence


def digest_of(body: bytes) -> str:
    """Return the digest by which an event names a message's body."""
    return blake2b(body, digest_size=32).hexdigest()


async def find(log: StoredLog) -> list[FoundMessage]:
    """Return all foreign messages that are not voided, from the streams and the archive.

    Raises:
        LogUnavailable: the log did not answer.
    """
    ends = {stream: (await log.extent(stream)).last for stream in DECISION_STREAMS}
    found: dict[tuple[str, int], FoundMessage] = {}
    voided: set[tuple[str, int, str]] = set()
    for stream, end in ends.items():
        async for message in _messages(log, stream, end):
            reason = subjects.foreign_reason(message.subject, message.headers, stream=stream)
            if reason is not None:
                found[stream, message.sequence] = FoundMessage.of(message, reason)
            elif message.subject.startswith(_REPAIRS):
                event = subjects.decode(message.subject, message.body)
                if isinstance(event, Voided):
                    voided.add((event.stream, event.sequence, event.digest))
    return [one for key, one in sorted(found.items()) if (*key, one.digest) not in voided]


async def void(
    log: EventLog,
    projections: Projections,
    messages: Collection[FoundMessage],
    *,
    by: Actor | None = None,
    reason: str | None = None,
) -> int:
    """Void foreign messages, and return how many were not voided before.

    Raises:
        LogUnavailable: the log did not answer; the messages before are voided.
    """
    number = 0
    for message in messages:
        number += await _void(log, message, by, reason)
    await _clear(projections, messages)
    return number


_REPAIRS = "repair."


async def _messages(log: StoredLog, stream: Stream, end: int) -> AsyncIterator[StoredMessage]:
    async for portion in log.messages(stream, after=0, upto=end):
        for message in portion:
            yield message


async def _void(log: EventLog, message: FoundMessage, by: Actor | None, reason: str | None) -> bool:
    event = Voided(
        stream=message.stream,
        sequence=message.sequence,
        subject=message.subject,
        stored_at=message.stored_at,
        found=message.found,
        digest=message.digest,
        by=by,
        reason=reason,
    )
    expect = 0
    for _ in range(TRIES):
        try:
            await log.append(event, expect=expect)
        except OutdatedState:
            stored = await log.load(subjects.scope_of(event))
            if any(isinstance(one.message, Voided) and one.message.digest == event.digest for one in stored):
                return False
            expect = stored[-1].sequence if stored else 0
        else:
            return True
    raise LogUnavailable(
        f"message {message.sequence} of {message.stream}: other writers changed its repair {TRIES} times"
    )


async def _clear(projections: Projections, voided: Collection[FoundMessage]) -> None:
    """Remove the entries of voided messages from the bucket that `status` reads."""
    shown = await projections.entries(Bucket.FOREIGN)
    for message in voided:
        key = subjects.foreign_key(message.stream, message.sequence)
        if key in shown:
            await projections.remove(Bucket.FOREIGN, key)
