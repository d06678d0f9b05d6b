"""Removal of archived messages from the streams in memory."""

from ... import subjects
from ...subjects import Stream
from .event_log import InMemoryEventLog


class InMemoryStreamPurge:
    """Implement `ports.StreamPurge` over an `InMemoryEventLog`."""

    def __init__(self, log: InMemoryEventLog) -> None:
        """Purge the streams of `log`."""
        self._log = log

    async def decided(self, stream: Stream) -> int:
        """Return the sequence up to which every durable is done."""
        end = self._log.stream(stream).last_sequence
        found = [progress.floor for progress in self._log.progress_of_all(stream) if not progress.is_idle]
        return min([end, *found])

    def obstacle(self) -> str | None:
        """Return None: purging is always possible."""
        return None

    async def purge(self, subject: str, *, upto: int) -> None:
        """Remove matching messages up to a sequence."""
        stream = self._log.stream(subjects.stream_of(subject))
        for entry in stream.matching((subject,), 0):
            if entry.sequence <= upto:
                stream.remove(entry.sequence)
