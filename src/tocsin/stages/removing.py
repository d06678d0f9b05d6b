"""Taking out of the streams what the archive holds, without holding them up: see `records.removal`."""

from ..ports import Housekeeping, StoredLog
from ..records.archive import Archive, Segment
from ..records.removal import Removal


class Removing:
    """Takes out what a segment holds. What is left of that at a crash is found again, and nothing is taken twice."""

    def __init__(self, streams: StoredLog, housekeeping: Housekeeping, archive: Archive) -> None:
        """`archive`: it is read, so nothing leaves that cannot be read there."""
        self._streams = streams
        self._housekeeping = housekeeping
        self._archive = archive

    async def remove(self, segment: Segment) -> None:
        """One purge after the other: between two of them, whoever waits for the stream has its turn.

        Raises:
            ArchiveDamaged: the segment cannot be read.
            LogUnavailable: the log did not answer.
        """
        messages = await self._archive.messages(segment)
        for stream, span in segment.streams.items():
            removal = Removal({message.sequence for message in messages if message.stream is stream})
            async for portion in self._streams.messages(stream, after=0, upto=span.last):
                for message in portion:
                    removal.take(message)
            for subject, upto in removal.purges():
                await self._housekeeping.purge(subject, upto=upto)
