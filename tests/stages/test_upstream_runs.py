"""The runs of other jobs: their reader ends although a library loses a cancellation."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime

from typing_extensions import override

from tocsin.ports import StoredMessage
from tocsin.stages.dependency_keeper.upstream_runs import UpstreamRuns
from tocsin.subjects import Stream
from tocsin.testing import InMemoryEventLog, InMemoryStoredLog, ManualClock


class Deaf(InMemoryStoredLog):
    """A stored log whose reader loses its first cancellation, as `asyncio.wait_for` may."""

    reads = asyncio.Event()

    @override
    async def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncGenerator[Sequence[StoredMessage], None]:
        self.reads.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return
        yield ()


async def test_follower_ends_after_a_lost_cancellation() -> None:
    log, clock = InMemoryEventLog(), ManualClock()
    stored = Deaf(log)
    runs = UpstreamRuns(log, stored, clock, lambda _job, _run: None)
    assert runs.of("load", datetime(2026, 11, 26, tzinfo=UTC)) is None
    following = asyncio.create_task(runs.follow())
    await stored.reads.wait()

    following.cancel()

    await asyncio.wait([following], timeout=30)
    assert following.cancelled()
