"""A stream in memory, with its index by subject.

It stores bodies as bytes, so that every read passes through the codec as it does with a server.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from ... import subjects
from ...domain.events import Message, Recorded
from ...ports import (
    Decode,
    RequestRefused,
    SequenceConflict,
)
from ...subjects import Bound
from .clock import AlarmClock

MAX_BYTES: Final = 1_048_576
"""The default `max_payload` of a nats-server."""
DUPLICATE_WINDOW: Final = timedelta(minutes=2)
"""Within this time, a second message of the same id is not stored."""


class Signal:
    """Each `notify` ends all earlier calls of `wait`, in their order."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


@dataclass(slots=True)
class _Node:
    children: dict[str, "_Node"] = field(default_factory=dict)
    sequences: list[int] = field(default_factory=list)


class SubjectTree:
    """Sequences in ascending order for each subject."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, subject: str, sequence: int) -> None:
        """Add a sequence, which must be greater than all before."""
        node = self._root
        for token in subject.split("."):
            node = node.children.setdefault(token, _Node())
        node.sequences.append(sequence)

    def remove(self, subject: str, sequence: int) -> None:
        """Remove a sequence, and the nodes that only led to it."""
        path = [self._root]
        tokens = subject.split(".")
        for token in tokens:
            path.append(path[-1].children[token])
        path[-1].sequences.remove(sequence)
        for parent, token, node in zip(reversed(path[:-1]), reversed(tokens), reversed(path), strict=False):
            if node.children or node.sequences:
                return
            del parent.children[token]

    def each(self, filter_subject: str) -> Iterator[list[int]]:
        """Yield the sequences of each matching subject that has any."""
        yield from _walk(self._root, filter_subject.split("."), 0)

    def last(self, filter_subject: str) -> int:
        """Return the greatest sequence of all matching subjects; 0 if none matches."""
        return max((sequences[-1] for sequences in self.each(filter_subject)), default=0)


def _walk(node: _Node, tokens: list[str], at: int) -> Iterator[list[int]]:
    if at == len(tokens):
        if node.sequences:
            yield node.sequences
        return
    if tokens[at] == ">":
        for child in node.children.values():
            yield from _all(child)
        return
    if tokens[at] == "*":
        for child in node.children.values():
            yield from _walk(child, tokens, at + 1)
    elif tokens[at] in node.children:
        yield from _walk(node.children[tokens[at]], tokens, at + 1)


def _all(node: _Node) -> Iterator[list[int]]:
    if node.sequences:
        yield node.sequences
    for child in node.children.values():
        yield from _all(child)


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored message."""

    subject: str
    sequence: int
    time: datetime
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def message_id(self) -> str | None:
        return self.headers.get(subjects.MESSAGE_ID)

    def recorded(self, decode: Decode = subjects.decode) -> Recorded[Message]:
        return subjects.recorded(self.subject, self.body, self.headers, self.sequence, self.time, read=decode)


class StoredStream:
    """Messages by sequence and by subject, and the durables that wait for more."""

    def __init__(self, clock: AlarmClock, bound: Bound | None = None, *, max_size: int | None = None) -> None:
        """Start empty; `bound` limits each subject, for a stream of output; `max_size` (bytes) each message."""
        self._max_size = max_size if bound is None else bound.size
        self._clock = clock
        self._bound = bound
        self._entries: dict[int, Entry] = {}
        self._tree = SubjectTree()
        self._known_ids: dict[str, tuple[datetime, int]] = {}
        self._readers: list[Callable[[str], None]] = []
        self.stored = Signal()
        self.last_sequence = 0

    def store(
        self,
        subject: str,
        body: bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        time: datetime | None = None,
    ) -> int:
        """Store a message without a check of its guard.

        Return its sequence, or the sequence of the first copy of its id. A stream of output drops the oldest message of a full
        subject. `time`: when it was stored; None: now.
        """
        all_headers = {**(headers or {}), **({subjects.MESSAGE_ID: message_id} if message_id is not None else {})}
        self.check_size(subject, body, message_id)
        if message_id is not None:
            if self.knows_id(message_id):
                return self._known_ids[message_id][1]
            self._known_ids[message_id] = self._clock.now(), self.last_sequence + 1
        self.last_sequence += 1
        self._entries[self.last_sequence] = Entry(
            subject, self.last_sequence, time or self._clock.now(), body, all_headers
        )
        self._tree.add(subject, self.last_sequence)
        self._drop_oldest(subject)
        self.stored.notify()
        for notify in self._readers:
            notify(subject)
        return self.last_sequence

    def check_size(self, subject: str, body: bytes, message_id: str | None) -> None:
        """Refuse a message that is too large for the stream."""
        head = f"NATS/1.0\r\n{subjects.MESSAGE_ID}: {message_id}\r\n\r\n" if message_id else ""
        if self._max_size is not None and len(head) + len(body) > self._max_size:
            reason = "message size exceeds maximum allowed"
            raise RequestRefused(f"{subject}: {reason}", reason)

    def knows_id(self, message_id: str) -> bool:
        """Return whether a message of an id was stored within the duplicate window."""
        self._forget_ids()
        return message_id in self._known_ids

    def _forget_ids(self) -> None:
        """Forget the ids whose window is over, the oldest first."""
        now = self._clock.now()
        while self._known_ids:
            message_id, (stored_at, _) = next(iter(self._known_ids.items()))
            if timedelta() <= now - stored_at < DUPLICATE_WINDOW:
                return
            del self._known_ids[message_id]

    def _drop_oldest(self, subject: str) -> None:
        if self._bound is not None:
            for sequences in tuple(self._tree.each(subject)):
                for sequence in sequences[: -self._bound.messages]:
                    self.remove(sequence)

    def on_store(self, notify: Callable[[str], None]) -> None:
        """Call `notify` with the subject of every new message."""
        self._readers.append(notify)

    def check(self, scope: str, expect: int) -> None:
        """Raise `SequenceConflict` unless the last sequence in `scope` is `expect`."""
        last = self._tree.last(scope)
        if last != expect:
            raise SequenceConflict(f"{scope}: expected {expect}, is {last}")

    def remove(self, sequence: int) -> None:
        entry = self._entries.pop(sequence, None)
        if entry is not None:
            self._tree.remove(entry.subject, sequence)

    def get(self, sequence: int) -> Entry | None:
        return self._entries.get(sequence)

    def last(self, filter_subject: str) -> Entry | None:
        return self._entries.get(self._tree.last(filter_subject))

    def last_of_each(self, filters: tuple[str, ...]) -> list[Entry]:
        """Return the newest message of each matching subject, oldest first."""
        newest = {sequences[-1] for name in filters for sequences in self._tree.each(name)}
        return [self._entries[sequence] for sequence in sorted(newest)]

    def matching(self, filters: tuple[str, ...], after: int) -> list[Entry]:
        """Return all matching messages after a sequence, oldest first."""
        sequences = {
            sequence
            for name in filters
            for subject_sequences in self._tree.each(name)
            for sequence in subject_sequences
            if sequence > after
        }
        return [self._entries[sequence] for sequence in sorted(sequences)]

    def entries_after(self, after: int) -> Iterator[Entry]:
        """Yield all messages after a sequence in order, without reading earlier messages."""
        first = next(iter(self._entries), self.last_sequence + 1)
        for sequence in range(max(after + 1, first), self.last_sequence + 1):
            entry = self._entries.get(sequence)
            if entry is not None:
                yield entry
