"""Waiting until everything in a simulation waits, or has ended."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, Final, TypeVar

from ..adapters.memory.clock import ManualClock
from .loop_time import LoopTime
from .watchdog import Watchdog
from .worker_process import Handling

T = TypeVar("T")
BUSY_ROUNDS: Final = 100_000
"""Turns of the event loop in one moment, after which the simulation gives up."""
THREAD_POLL_S: Final = 0.0005
END_POLL_S: Final = 0.01
CLEANUP_S: Final = 60.0
"""Simulated seconds that async handlers may take to end after they were cancelled."""
CLEANUP_WAKES: Final = 10_000
"""Moments in that time at which something may go on."""
CLEANUP_LIMIT_S: Final = 1.0
"""Seconds of the machine's time that they may wait for something outside of the simulation."""


class StuckError(Exception):
    """Something does not come to rest; the text says what, and what to change."""


async def rest(time: LoopTime, handling: Handling | None, thread_limit: float, watchdog: Watchdog) -> None:
    """Let every task of a simulation run until it waits, and every sync handler end.

    `thread_limit`: seconds of the machine's time that a sync handler may run. `watchdog`: ends an async handler that gives no turn.
    """
    try:
        await _rest(time, handling, thread_limit, watchdog)
    finally:
        watchdog.rest()


async def _rest(time: LoopTime, handling: Handling | None, thread_limit: float, watchdog: Watchdog) -> None:
    for _ in range(BUSY_ROUNDS):
        calls = time.calls
        watchdog.turn()
        await asyncio.sleep(0)
        if handling is not None and (name := handling.held_up_by):
            raise StuckError(
                f"the {name} has run for {thread_limit:g} s without a turn for anything else. Wait by `await` in its loops, "
                "or make it a sync handler"
            )
        if handling is not None and (name := handling.too_fast):
            raise StuckError(
                f"the async handler {name} wakes up so often that the simulated time hardly passes, such as by `await asyncio.sleep(0.001)` in a "
                "loop. Wait longer between two looks, or for an event"
            )
        if time.calls != calls:
            continue
        if handling is None or not handling.in_threads:
            return
        await _wait_for_threads(time, handling, thread_limit, watchdog)
    raise StuckError(
        "something never rests: a handler repeats `await asyncio.sleep(0)`, or calls itself again without a pause. Wait for an event "
        "or some time instead"
    )


async def _wait_for_threads(time: LoopTime, handling: Handling, limit: float, watchdog: Watchdog) -> None:
    """Wait until a sync handler ends or schedules something, by the time of the machine."""
    calls, loop = time.calls, asyncio.get_running_loop()
    end = loop.time() + limit
    while handling.in_threads and time.calls == calls:
        if loop.time() > end:
            names = ", ".join(sorted(set(handling.in_threads.values())))
            raise StuckError(
                f"the sync handler {names} has run for {limit:g} s of real time. The simulation cannot move the time of a thread: "
                "replace what it waits for in the test, or make it async and wait by asyncio.sleep"
            )
        watchdog.turn()
        await asyncio.sleep(THREAD_POLL_S)


async def stop(
    clock: ManualClock,
    time: LoopTime,
    handling: Handling | None,
    tasks: Collection["asyncio.Task[None]"],
    watchdog: Watchdog,
) -> frozenset[str]:
    """Cancel the tasks of a simulation; return what did not end.

    Handlers, and then the tasks that they started, may clean up. Those that do not end get no further turn, because otherwise neither the test nor its event loop would end.
    """
    for task in tasks:
        task.cancel()
    stubborn: frozenset[str] = frozenset()
    if handling is not None:
        held_up_before = handling.held_up_by  # which the test knows already
        if not await _is_stopped(clock, time, tasks, watchdog, lambda: handling.running > 0):
            stubborn |= {f"async handler {name}" for name in handling.abandon()}
        handling.started.cancel()
        if not await _is_stopped(clock, time, handling.started.all, watchdog, lambda: bool(handling.started)):
            names = await _watched(handling.started.abandon(), watchdog)
            stubborn |= {f"task {name}" for name in names}
        if (name := handling.held_up_by) is not None and name != held_up_before:
            stubborn |= {name}
    await _watched(asyncio.gather(*tasks, return_exceptions=True), watchdog)
    return stubborn


async def _watched(ends: Awaitable[T], watchdog: Watchdog) -> T:
    """Wait for ends, where code may compute that ignores each of its ends."""
    waiting = asyncio.ensure_future(ends)
    try:
        while not waiting.done():
            watchdog.turn()
            await asyncio.wait({waiting}, timeout=END_POLL_S)
    finally:
        watchdog.rest()
    return waiting.result()


async def _is_stopped(
    clock: ManualClock,
    time: LoopTime,
    tasks: Collection["asyncio.Task[Any]"],
    watchdog: Watchdog,
    is_running: Callable[[], bool],
) -> bool:
    """Let tasks clean up, also by waiting; return whether everything has ended."""
    end = clock.monotonic() + CLEANUP_S
    with suppress(StuckError):
        for _ in range(CLEANUP_WAKES):
            if not is_running() and all(task.done() for task in tasks):
                return True
            await rest(time, None, CLEANUP_LIMIT_S, watchdog)
            alarm = clock.next_alarm()
            if alarm is None or clock.monotonic() + alarm > end:
                break
            clock.advance(alarm)
        else:
            return False
        if tasks:
            await asyncio.wait(tasks, timeout=CLEANUP_LIMIT_S)
    return not is_running() and all(task.done() for task in tasks)
