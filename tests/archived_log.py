"""An in-memory log with an archive, to which a test moves ended executions as the archiver does."""

from typing import Final

from tocsin.adapters.memory.archive import InMemoryArchiveStore
from tocsin.archive.archive import Archive, Origin
from tocsin.archive.combined_log import CombinedLog
from tocsin.ports import Projections
from tocsin.subjects import Stream
from tocsin.testing import InMemoryEventLog, InMemoryStoredLog

OVER: Final = ("execution.>", "dead-letter.>")
"""What leaves the log, in tests where all of it is over."""
_ORIGIN: Final = Origin(installation="i", root="tocsin", version="0")


class ArchivedLog:
    """The archive of a log. `whole`: what was ever stored."""

    def __init__(self, log: InMemoryEventLog, projections: Projections) -> None:
        """Nothing is in it yet."""
        self._stream = log.stream(Stream.LOG)
        self._streams = InMemoryStoredLog(log)
        self._archive = Archive(InMemoryArchiveStore(), projections)
        self.whole = CombinedLog(self._streams, self._archive)

    async def take(self, *filters: str) -> None:
        """One more segment: of what matches in the log, which is rid of it."""
        upto = (await self._streams.extent(Stream.LOG)).last
        messages = [m async for some in self._streams.messages(Stream.LOG, *filters, upto=upto) for m in some]
        state, revision = await self._archive.state()
        segment = await self._archive.write(messages, state, {Stream.LOG: upto}, _ORIGIN)
        moved = {"head": segment.name, "purged": segment.name, "number": segment.number, "upto": segment.upto}
        await self._archive.move(state.model_copy(update=moved), expect=revision)
        for message in messages:
            self._stream.remove(message.sequence)
