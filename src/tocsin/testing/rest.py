"""Waiting until everything in a simulation waits."""

import asyncio
from typing import Final

from .loop_time import LoopTime
from .worker_process import Handling

BUSY_ROUNDS: Final = 100_000
"""Turns of the event loop in one moment, after which the simulation gives up."""
THREAD_POLL_S: Final = 0.0005


class StuckError(Exception):
    """Something does not come to rest; the text says what, and what to change."""


async def rest(time: LoopTime, handling: Handling | None, thread_limit: float) -> None:
    """Let every task of a simulation run until it waits, and every sync handler end.

    `thread_limit`: seconds of the machine's time that a sync handler may run.

    Raises:
        StuckError: that does not happen.
    """
    for _ in range(BUSY_ROUNDS):
        calls = time.calls
        await asyncio.sleep(0)
        if time.calls != calls:
            continue
        if handling is None or not handling.in_threads:
            return
        await _wait_for_threads(time, handling, thread_limit)
    raise StuckError(
        "something never rests: a handler repeats `await asyncio.sleep(0)`, or calls itself again without a pause. Wait for an event "
        "or some time instead"
    )


async def _wait_for_threads(time: LoopTime, handling: Handling, limit: float) -> None:
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
        await asyncio.sleep(THREAD_POLL_S)
