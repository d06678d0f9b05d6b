"""All streams as one sequence in the order of time."""

from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from .. import subjects
from ..domain.events import Message, Recorded
from ..ports import Extent, StoredLog, StoredMessage
from ..subjects import STREAMS, Stream

_REPAIRS: Final = subjects.filter_for("repair.voided")
_DEFINITIONS: Final = frozenset({"defined", "paused", "resumed", "deleted"})

Extents: TypeAlias = Mapping[Stream, Extent]


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages of some streams and a job (None: all), from `since` to `until` (UTC).

    Events on definitions are always included, however old, because no instant can be judged without them.
    """

    streams: tuple[Stream, ...] = STREAMS
    job: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    execution_id: str | None = None
    """Select only the events of this execution, and its dead letter."""

    def filters(self, stream: Stream) -> tuple[str, ...]:
        """Return the filters over a stream; none means the whole stream."""
        if self.execution_id is not None:
            of = self.job or subjects.ANY
            return subjects.execution(of, self.execution_id), subjects.dead_letter(of, self.execution_id)
        if self.job is None:
            return ()
        filters = subjects.job_filters(self.job).get(stream, ())
        return (*filters, _REPAIRS) if stream is Stream.LEDGER else filters

    def has(self, message: StoredMessage) -> bool:
        """Whether the selection includes a message of one of its streams."""
        if self.job is not None and not self._is_of_job(message.subject):
            return False
        if self.execution_id not in {None, *message.subject.split(".")[2:3]}:
            return False
        if self.until is not None and message.time > self.until:
            return False
        return self.since is None or message.time >= self.since or is_definition(message.subject)

    def _is_of_job(self, subject: str) -> bool:
        """Whether a subject is of the selected job.

        Repairs name a message of any job. The name of an agent or of a queue may be that of a job.
        """
        if subject.startswith("repair."):
            return True
        return not subject.startswith(("agent.", "queue.")) and subjects.job_of(subject) == self.job


async def extents(log: StoredLog, selection: Selection) -> Extents:
    """Return the current end of each stream.

    Streams of effects are read before those of their causes, so that each effect's cause lies before its stream's end.
    """
    order = sorted(selection.streams, key=STREAMS.index, reverse=True)
    by_stream = {stream: await log.extent(stream) for stream in order}
    return {stream: by_stream[stream] for stream in selection.streams}


async def read(log: StoredLog, selection: Selection, upto: Extents) -> AsyncIterator[StoredMessage]:
    """Yield the selected messages, each stream in its order, merged by time."""
    portions = {stream: _selected(log, stream, selection, upto[stream].last) for stream in selection.streams}
    waiting: dict[Stream, deque[StoredMessage]] = {}

    async def refill(stream: Stream) -> None:
        if (portion := await anext(portions[stream], None)) is None:
            waiting.pop(stream, None)
        else:
            waiting[stream] = deque(portion)

    for stream in portions:
        await refill(stream)
    while waiting:
        oldest = min(waiting, key=lambda stream: waiting[stream][0].time)
        yield waiting[oldest].popleft()
        if not waiting[oldest]:
            await refill(oldest)


def decoded(stored: StoredMessage) -> Recorded[Message]:
    """Return a stored message, decoded.

    Raises:
        DecodeError: this version cannot decode it; `sequence` names the message.
    """
    return subjects.recorded(stored.subject, stored.body, stored.headers, stored.sequence, stored.time)


def is_definition(subject: str) -> bool:
    """Whether a subject is that of an event on a definition."""
    return subject.startswith("ledger.") and subject.rpartition(".")[2] in _DEFINITIONS


async def _selected(
    log: StoredLog, stream: Stream, selection: Selection, upto: int
) -> AsyncIterator[Sequence[StoredMessage]]:
    # The ledger is read from its beginning, because definitions may be that old.
    after = selection.since if selection.since is not None and stream is not Stream.LEDGER else 0
    async for portion in log.messages(stream, *selection.filters(stream), after=after, upto=upto):
        if selected := [message for message in portion if selection.has(message)]:
            yield selected
