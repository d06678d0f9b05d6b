"""The clock of the memory world: nothing passes by itself."""

import asyncio
from datetime import timedelta

from tocsin.testing import START, ManualClock, settle


async def test_it_stands_still_until_it_is_moved() -> None:
    clock = ManualClock()
    assert (clock.now(), clock.monotonic()) == (START, 0.0)
    clock.advance(1.5)
    assert (clock.now(), clock.monotonic()) == (START + timedelta(seconds=1.5), 1.5)


async def test_clock_set_back_keeps_its_monotonic_time() -> None:
    clock = ManualClock()
    clock.advance(60)
    clock.step(-3600)
    assert (clock.now(), clock.monotonic()) == (START + timedelta(seconds=60 - 3600), 60.0)


async def test_alarms_ring_in_their_order_at_their_time() -> None:
    clock, rung = ManualClock(), list[tuple[str, float]]()

    def alarm(name: str) -> None:
        rung.append((name, clock.monotonic()))

    def first() -> None:
        alarm("first")
        clock.after(0.5, lambda: alarm("between"))

    clock.after(3, lambda: alarm("third"))
    clock.at(START + timedelta(seconds=2), lambda: alarm("second"))
    clock.after(1, first)
    clock.after(2.5, lambda: alarm("never")).cancel()
    assert clock.next_alarm() == 1.0
    clock.advance(10)

    assert rung == [("first", 1.0), ("between", 1.5), ("second", 2.0), ("third", 3.0)]
    assert clock.next_alarm() is None


async def test_setting_the_clock_wakes_only_waits_for_instants() -> None:
    clock, rung = ManualClock(), list[str]()
    clock.at(START + timedelta(hours=1), lambda: rung.append("instant"))
    clock.after(3600, lambda: rung.append("span"))
    clock.step(3600)
    assert rung == ["instant"]
    clock.advance(3600)
    assert rung == ["instant", "span"]


async def test_sleepers_wake_in_order_and_act_in_turn() -> None:
    clock, seen = ManualClock(), list[tuple[int, float]]()

    async def every(seconds: int) -> None:
        while True:
            await clock.sleep(seconds)
            seen.append((seconds, clock.monotonic()))

    tasks = [asyncio.create_task(every(seconds)) for seconds in (2, 3)]
    await clock.run(6)
    for task in tasks:
        task.cancel()
    await settle()

    assert seen == [(2, 2.0), (3, 3.0), (2, 4.0), (3, 6.0), (2, 6.0)]
    assert clock.next_alarm() is None


async def test_sleeper_may_be_cancelled_as_it_wakes() -> None:
    clock = ManualClock()
    sleeping = asyncio.create_task(clock.sleep(1))
    await settle()
    sleeping.cancel()
    clock.advance(2)
    assert isinstance((await asyncio.gather(sleeping, return_exceptions=True))[0], asyncio.CancelledError)
