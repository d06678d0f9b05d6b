"""A stream in memory.

It stores bodies as bytes, so that every read passes through the codec as it does with a server.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ... import subjects
from ...domain.events import Message, Recorded
from ...ports import SequenceConflict
from ...subjects import DecodeError
from .clock import ManualClock
from .signal import Signal
from .subject_tree import SubjectTree

DUPLICATE_WINDOW: Final = 120.0
"""Within this number of seconds, a second message of the same id is not stored."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored message."""

    subject: str
    sequence: int
    time: datetime
    body: bytes
    message_id: str | None

    def recorded(self) -> Recorded[Message]:
        """Return the decoded message.

        Raises:
            DecodeError: it does not decode.
        """
        try:
            message = subjects.decode(self.subject, self.body)
        except DecodeError as error:
            error.sequence = self.sequence
            raise
        return Recorded(message, self.subject, self.sequence, self.time, self.message_id)


class StoredStream:
    """Messages by sequence and by subject, and the durables that wait for more."""

    def __init__(self, clock: ManualClock) -> None:
        """Start empty."""
        self._clock = clock
        self._entries: dict[int, Entry] = {}
        self._tree = SubjectTree()
        self._known_ids: dict[str, tuple[float, int]] = {}
        self._readers: list[Callable[[str], None]] = []
        self.stored = Signal()
        self.last_sequence = 0

    def store(self, subject: str, body: bytes, *, message_id: str | None = None) -> int:
        """Store a message without a guard.

        Return its sequence, or that of the first copy of its id.
        """
        if message_id is not None:
            known = self._known_ids.get(message_id)
            if known is not None and self._clock.monotonic() - known[0] < DUPLICATE_WINDOW:
                return known[1]
            self._known_ids[message_id] = self._clock.monotonic(), self.last_sequence + 1
        self.last_sequence += 1
        self._entries[self.last_sequence] = Entry(subject, self.last_sequence, self._clock.now(), body, message_id)
        self._tree.add(subject, self.last_sequence)
        self.stored.notify()
        for notify in self._readers:
            notify(subject)
        return self.last_sequence

    def on_store(self, notify: Callable[[str], None]) -> None:
        """Call `notify` with the subject of every new message."""
        self._readers.append(notify)

    def check(self, scope: str, expect: int) -> None:
        """Raise `SequenceConflict` unless the last sequence in `scope` is `expect`."""
        last = self._tree.last(scope)
        if last != expect:
            raise SequenceConflict(f"{scope}: expected {expect}, is {last}")

    def remove(self, sequence: int) -> None:
        """Remove a message, as a purge does."""
        entry = self._entries.pop(sequence, None)
        if entry is not None:
            self._tree.remove(entry.subject, sequence)

    def get(self, sequence: int) -> Entry | None:
        """Return the message of a sequence."""
        return self._entries.get(sequence)

    def last(self, filter_subject: str) -> Entry | None:
        """Return the newest matching message."""
        return self._entries.get(self._tree.last(filter_subject))

    def last_of_each(self, filters: tuple[str, ...]) -> list[Entry]:
        """Return the newest message of each matching subject, oldest first."""
        found = {sequences[-1] for name in filters for sequences in self._tree.each(name)}
        return [self._entries[sequence] for sequence in sorted(found)]

    def matching(self, filters: tuple[str, ...], after: int) -> list[Entry]:
        """Return all matching messages after a sequence, oldest first."""
        found = {
            sequence
            for name in filters
            for sequences in self._tree.each(name)
            for sequence in sequences
            if sequence > after
        }
        return [self._entries[sequence] for sequence in sorted(found)]

    def behind(self, after: int) -> Iterator[Entry]:
        """Yield all messages after a sequence in order, without reading earlier messages."""
        for sequence in range(after + 1, self.last_sequence + 1):
            entry = self._entries.get(sequence)
            if entry is not None:
                yield entry
