"""Places of calls that may stay open without a token."""

import asyncio

from tests.system.running import DEADLINE
from tocsin.adapters.grpc.open_calls import Places


async def held(places: Places, seconds: float | None) -> bool:
    """Hold a place until it is taken or its time is over."""
    try:
        async with places.place(seconds):
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
            while not all(call.cancelling() for call in expiring):
                await asyncio.sleep(0)
            async with places.place(None), places.place(None):
                assert await asyncio.gather(*expiring) == [True, True]
        calls = [asyncio.create_task(held(places, None)) for _ in range(3)]
        assert await calls[0]  # only the third needs a place of another
        assert not any(call.done() for call in calls[1:])
        for call in calls[1:]:
            call.cancel()
