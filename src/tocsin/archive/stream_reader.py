"""Reading both streams as one sequence, in the order of time, up to where they were when the reading began."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from .. import subjects
from ..domain.events import Message, Recorded
from ..ports import EventLog, Extent, StoredLog, StoredMessage
from ..subjects import Stream

STREAMS: Final = (Stream.LEDGER, Stream.LOG)
MESSAGE_ID: Final = "Nats-Msg-Id"
_DEFINITIONS: Final = frozenset({"defined", "paused", "resumed", "deleted"})

Extents: TypeAlias = Mapping[Stream, Extent]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages: of which streams and which job (None: all), stored from `since` to `until` (UTC).

    The facts on definitions are always among them, however old: without them no instant can be judged.
    """

    streams: tuple[Stream, ...] = STREAMS
    job: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    execution_id: str | None = None
    """Only the facts of this execution, and its dead letter."""

    def filters(self, stream: Stream) -> tuple[str, ...]:
        """The filters over a stream; none: the whole stream."""
        if self.execution_id is not None:
            of = self.job or subjects.ANY
            return subjects.execution(of, self.execution_id), subjects.dead_letter(of, self.execution_id)
        return () if self.job is None else subjects.job_filters(self.job).get(stream, ())

    def has(self, message: StoredMessage) -> bool:
        """Whether a message is among them that was stored in one of its streams."""
        if self.job not in {None, subjects.job_of(message.subject)} and not message.subject.startswith("leadership."):
            return False
        if self.execution_id not in {None, *message.subject.split(".")[2:3]}:
            return False
        if self.until is not None and message.time > self.until:
            return False
        return self.since is None or message.time >= self.since or is_definition(message.subject)


async def extents(log: StoredLog, selection: Selection) -> Extents:
    """How far each stream goes now. The log first: whatever its facts answer to is in the ledger before."""
    order = sorted(selection.streams, key=lambda stream: stream is Stream.LEDGER)
    found = {stream: await log.extent(stream) for stream in order}
    return {stream: found[stream] for stream in selection.streams}


async def read(log: StoredLog, selection: Selection, upto: Extents) -> AsyncIterator[StoredMessage]:
    """The selected messages of all streams: each stream in its order, the streams side by side by time."""
    readers = [_Reader(_selected(log, stream, selection, upto[stream].last)) for stream in selection.streams]
    for reader in readers:
        await reader.advance()
    while waiting := [reader for reader in readers if reader.head is not None]:
        reader = min(waiting, key=_Reader.time)
        yield reader.take()
        if reader.head is None:
            await reader.advance()


def decoded(stored: StoredMessage) -> Recorded[Message]:
    """A stored message, read.

    Raises:
        Unreadable: no version known here can; its `sequence` says which.
    """
    try:
        message = subjects.decode(stored.subject, stored.body)
    except subjects.DecodeError as error:
        error.sequence = stored.sequence
        raise
    return Recorded(message, stored.subject, stored.sequence, stored.time, stored.headers.get(MESSAGE_ID))


async def archived(stored: StoredLog, scope: str) -> list[Recorded[Message]]:
    """What was archived of a scope of the log, oldest first; an older fact of a subject may be among it."""
    if not await stored.may_be_archived(scope):
        return []
    portions = stored.messages(Stream.LOG, scope, after=0, upto=await stored.archived(Stream.LOG))
    return [decoded(message) async for portion in portions for message in portion]


async def wherever(log: EventLog, stored: StoredLog | None, scope: str) -> list[Recorded[Message]]:
    """The facts of a scope of the log, or what was archived of it (`stored`) where the log holds nothing any more."""
    return await log.load(scope) or ([] if stored is None else await archived(stored, scope))


def is_definition(subject: str) -> bool:
    """Whether a subject is that of a fact on a definition."""
    return subject.startswith("ledger.") and subject.rpartition(".")[2] in _DEFINITIONS


async def _selected(
    log: StoredLog, stream: Stream, selection: Selection, upto: int
) -> AsyncIterator[Sequence[StoredMessage]]:
    # The ledger is read from its beginning: definitions may be as old as it is.
    after = selection.since if selection.since is not None and stream is not Stream.LEDGER else 0
    async for portion in log.messages(stream, *selection.filters(stream), after=after, upto=upto):
        if found := [message for message in portion if selection.has(message)]:
            yield found


class _Reader:
    """One stream, looked at one message ahead."""

    def __init__(self, portions: AsyncIterator[Sequence[StoredMessage]]) -> None:
        self._portions = portions
        self._portion: Sequence[StoredMessage] = ()
        self._next = 0
        self.head: StoredMessage | None = None

    def time(self) -> datetime:
        assert self.head is not None  # noqa: S101 - only readers with a head are compared
        return self.head.time

    def take(self) -> StoredMessage:
        """The head; the next one of the portion follows."""
        head = self.head
        assert head is not None  # noqa: S101 - only a reader with a head is taken from
        self.head = self._portion[self._next] if self._next < len(self._portion) else None
        self._next += 1
        return head

    async def advance(self) -> None:
        """Get the next portion."""
        portion = await anext(self._portions, None)
        if portion is not None:
            self._portion, self._next, self.head = portion, 1, portion[0]
