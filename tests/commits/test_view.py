"""What a process shows of the log of commits while it has read less of it than another."""

from contextlib import aclosing

from tests.conformance.worlds import CommitsWorld
from tocsin.subjects import Stream

AFTER = 48


async def test_follower_of_a_process_that_lags_keeps_its_place() -> None:
    async with CommitsWorld().running() as world, aclosing(world.log.follow(Stream.LOG, after=AFTER)) as batches:
        assert (await anext(batches)).upto == AFTER
