"""Taking out of the streams what the archive holds, without holding them up: see `archive.purge_filters`."""

from ...archive.archive import Archive, Segment
from ...archive.purge_filters import PurgeFilters
from ...ports import Clock, StoredLog, StreamPurge


class PacedPurge:
    """Takes out what a segment holds. What is left of that at a crash is found again, and nothing is taken twice."""

    def __init__(self, streams: StoredLog, housekeeping: StreamPurge, archive: Archive, clock: Clock) -> None:
        """`archive`: it is read, so nothing leaves that cannot be read there."""
        self._streams = streams
        self._housekeeping = housekeeping
        self._archive = archive
        self._clock = clock

    def obstacle(self) -> str | None:
        """Why nothing can be removed, for whoever operates this; None: nothing is in the way."""
        return self._housekeeping.obstacle()

    async def remove(self, segment: Segment) -> None:
        """Purge one thing after the other, and leave the stream to others in between for as long as the last one took.

        That is long where durables have much before them, and next to nothing where they have not.

        Raises:
            ArchiveDamaged: the segment cannot be read.
            LogUnavailable: the log did not answer.
        """
        messages = await self._archive.messages(segment)
        for stream, span in segment.streams.items():
            removal = PurgeFilters([message for message in messages if message.stream is stream])
            async for portion in self._streams.messages(stream, after=0, upto=span.last):
                for message in portion:
                    removal.take(message)
            for subject, upto in removal.purges():
                began = self._clock.monotonic()
                await self._housekeeping.purge(subject, upto=upto)
                if took := self._clock.monotonic() - began:
                    await self._clock.sleep(took)
