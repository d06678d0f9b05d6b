"""What may leave the streams in memory, and taking it out."""

from ... import subjects
from ...subjects import Stream
from .event_log import InMemoryEventLog


class InMemoryStreamPurge:
    """Implements `ports.StreamPurge` over an `InMemoryEventLog`."""

    def __init__(self, log: InMemoryEventLog) -> None:
        """Whatever that log stores."""
        self._log = log

    async def decided(self, stream: Stream) -> int:
        """The sequence up to which every durable has dealt with what it was given."""
        end = self._log.stream(stream).last_sequence
        found = [progress.floor for progress in self._log.progress_of_all(stream) if not progress.is_idle]
        return min([end, *found])

    def obstacle(self) -> str | None:
        """Nothing is ever in the way."""
        return None

    async def purge(self, subject: str, *, upto: int) -> None:
        """Remove what matches, up to a sequence."""
        stream = self._log.stream(subjects.stream_of(subject))
        for entry in stream.matching((subject,), 0):
            if entry.sequence <= upto:
                stream.remove(entry.sequence)
