"""A log of commits with an archived beginning.

Readers get the archived commits first, then the commits of the stream.

The archiver stores a commit in the archive before it removes the commit from the stream. So where the stream begins after the place of a reader, or
leaves sequences out, the archive has the missing commits.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Final

from .. import telemetry
from ..archive.log_archive import LogArchive, commits_of
from ..ports import LogUnavailable
from ..ports.commit_log import Bodies, CommitLog, StoredBody

PAUSE_S: Final = 0.5
"""The time after which a follower reads an archive again that did not answer."""

_log = telemetry.get_logger("tocsin")


class ArchivedCommitLog:
    """Implement `ports.CommitLog`."""

    def __init__(self, log: CommitLog, archive: LogArchive) -> None:
        self._log = log
        self._archive = archive
        self.waits = False
        """Whether followers wait for an archive that does not answer. A command fails."""

    async def append(self, partition: int, body: bytes, *, expect: int) -> int:
        return await self._log.append(partition, body, expect=expect)

    async def next(self, partition: int, *, after: int) -> StoredBody | None:
        stored = await self._log.next(partition, after=after)
        if stored is not None and stored.sequence > after + 1:
            async for batch in self._archived(partition, after=after, before=stored.sequence):
                return batch.bodies[0]
        return stored

    async def follow(self, partition: int, *, after: int) -> AsyncGenerator[Bodies, None]:
        async for batch in self._patiently(partition, after=after):
            yield batch
            after = batch.upto
        async with aclosing(self._log.follow(partition, after=after)) as batches:
            async for batch in batches:
                if batch.bodies and batch.bodies[0].sequence > after + 1:
                    async for missing in self._patiently(partition, after=after, before=batch.bodies[0].sequence):
                        yield missing
                yield batch
                after = max(after, batch.upto)

    async def now(self) -> datetime:
        return await self._log.now()

    async def purge(self, partition: int, *, upto: int) -> None:
        await self._log.purge(partition, upto=upto)

    async def _patiently(self, partition: int, *, after: int, before: int | None = None) -> AsyncIterator[Bodies]:
        """Yield archived messages, also if the archive does not answer for a while."""
        while True:
            try:
                async for batch in self._archived(partition, after=after, before=before):
                    yield batch
                    after = batch.upto
            except LogUnavailable as error:
                if not self.waits:
                    raise
                _log.info("the archive is not readable yet", action="log-unavailable", error=str(error))
                await asyncio.sleep(PAUSE_S)
            else:
                return

    async def _archived(self, partition: int, *, after: int, before: int | None = None) -> AsyncIterator[Bodies]:
        """Yield the archived messages between two sequences.

        None: to the end of the archive, which may grow meanwhile.
        """
        source = commits_of(partition)
        while True:
            place = after
            state, _ = await self._archive.state()
            upto = state.last(source) if before is None else min(before - 1, state.last(source))
            if upto <= after:
                return
            async for messages in self._archive.read(source, after=after, upto=upto):
                yield Bodies(
                    [StoredBody(each.sequence, each.time, each.body) for each in messages],
                    caught_up=False,
                    upto=messages[-1].sequence,
                )
                after = messages[-1].sequence
            if before is not None or after == place:
                return
