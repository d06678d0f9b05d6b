"""Places of calls that may stay open without a token."""

import asyncio

from tests.system.running import DEADLINE
from tocsin.adapters.grpc.server import Places

HERE, THERE = "192.0.2.1", "192.0.2.2"


async def held(places: Places, seconds: float | None, address: str = HERE) -> bool:
    """Hold a place until it is taken or its time is over."""
    try:
        async with places.place(address, seconds):
            await asyncio.Event().wait()
    except TimeoutError:
        return True
    return False


async def test_new_call_meets_an_expiring_call() -> None:
    """The oldest call expires in the turn of the loop in which a new call needs its place."""
    places = Places(2)
    async with asyncio.timeout(DEADLINE):
        for _ in range(3):
            expiring = [asyncio.create_task(held(places, 0)) for _ in range(2)]
            while not all(call.cancelling() for call in expiring):  # noqa: ASYNC110 - it must be this turn
                await asyncio.sleep(0)
            async with places.place(HERE, None), places.place(HERE, None):
                assert await asyncio.gather(*expiring) == [True, True]
        calls = [asyncio.create_task(held(places, None)) for _ in range(3)]
        assert await calls[0]  # only the third needs a place of another
        assert not any(call.done() for call in calls[1:])
        for call in calls[1:]:
            call.cancel()


async def test_busiest_address_loses_its_oldest_call() -> None:
    places = Places(3)
    async with asyncio.timeout(DEADLINE):
        calls = [asyncio.create_task(held(places, None, address)) for address in (THERE, *[HERE] * 6)]
        assert await asyncio.gather(*calls[1:5]) == [True] * 4
        remaining = [calls[0], *calls[5:]]
        assert not any(call.done() for call in remaining)
        for call in remaining:
            call.cancel()
