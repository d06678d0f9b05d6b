"""Reads through a replica that lags: they are late, or they fail; they never end early."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import pytest

from tests.conformance.given import report
from tests.conformance.worlds import NatsWorld, fresh_names
from tests.system.lagging import lagging_cluster
from tocsin.adapters.nats.admin.provision import provision
from tocsin.adapters.nats.client.connection import connect
from tocsin.adapters.nats.log.stored_log import NatsStoredLog
from tocsin.ports import Batch, StaleRead
from tocsin.settings import Settings
from tocsin.subjects import Stream, subject_of

OLD: Final = 5
"""Messages that the lagging replica has."""
ALL: Final = 10
TRIES: Final = 60
"""The server places a reader's consumer on any replica; the probability that 60 miss the lagging one is 3e-11."""


@asynccontextmanager
async def lagging_log(folder: Path) -> AsyncIterator[NatsWorld]:
    """Reports on ten executions; the replica of the third node has five of them."""
    async with lagging_cluster(folder) as lagging, connect(lagging.leading.server.url) as connection:
        names = fresh_names()
        await provision(connection, names, Settings(replicas=3))
        world = NatsWorld(connection, names)
        for number in range(ALL):
            if number == OLD:
                await lagging.hold(connection, names.stream(Stream.REPORTS))
            one = report(f"e{number}")
            await world.streams.publish(subject_of(one), one, message_id=f"{number}")
        yield world


def stored_of(world: NatsWorld) -> NatsStoredLog:
    return NatsStoredLog(world.connection, world.names)


async def sequences(stored: NatsStoredLog, *filters: str, after: int = 0, upto: int = ALL) -> list[int]:
    portions = stored.messages(Stream.REPORTS, *filters, after=after, upto=upto)
    return [message.sequence async for portion in portions for message in portion]


async def read_until_stale(impatient: NatsStoredLog, expected: list[int], *filters: str, after: int = 0) -> None:
    """Read until a read used the lagging replica; each read before is complete."""
    for _ in range(TRIES):
        read = await sequences(impatient, *filters, after=after)
        # The other replicas may not have removed yet what the leader has removed.
        assert [sequence for sequence in read if sequence <= expected[-1]] == expected


@pytest.mark.slow
async def test_read_of_a_lagging_replica_fails(tmp_path: Path) -> None:
    async with lagging_log(tmp_path) as world:
        impatient = NatsStoredLog(world.connection, world.names, max_lag=0)
        with pytest.raises(StaleRead):
            await read_until_stale(impatient, list(range(1, ALL + 1)))
        with pytest.raises(StaleRead):
            await read_until_stale(impatient, [ALL], "report.*.e0.>", f"report.*.e{ALL - 1}.>", after=1)
        with pytest.raises(StaleRead):  # the lagging replica ends before the start
            await read_until_stale(impatient, [8, 9, 10], after=7)

        for sequence in (ALL - 1, ALL):
            await world.streams.remove("report.a_job.e0.completed", sequence)
        assert (await stored_of(world).extent(Stream.REPORTS)).last == ALL
        with pytest.raises(StaleRead):  # not for the messages that were removed
            await read_until_stale(impatient, list(range(1, ALL - 1)))


@pytest.mark.slow
async def test_read_waits_for_another_replica(tmp_path: Path) -> None:
    async with lagging_log(tmp_path) as world:
        for _ in range(8):
            assert await sequences(stored_of(world)) == list(range(1, ALL + 1))


@pytest.mark.slow
async def test_follower_catches_up_at_the_leaders_end(tmp_path: Path) -> None:
    async with lagging_log(tmp_path) as world:
        for after in (0, OLD, None, 0, OLD, None, 0, OLD):
            read: list[int] = []
            follower = world.streams.follow(Stream.REPORTS, "report.>", after=after)
            async with aclosing(cast("Any", follower)) as batches:
                batch: Batch
                async for batch in batches:
                    read += [recorded.sequence for recorded in batch.messages]
                    if batch.caught_up:
                        break
            assert (read, batch.upto) == (list(range((after or 0) + 1, ALL + 1)), ALL)
