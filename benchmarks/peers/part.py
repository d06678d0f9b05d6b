"""One process of a peer, under the interpreter that has its library.

    python -m benchmarks.peers.part worker      (its assignment is in the environment)

The part `client` drives the workload. It prints a line when the warm-up is over, starts when a line comes in, and prints its
results.
"""

import asyncio
import json
import random
import sys
import time
from contextlib import suppress
from typing import Final

from benchmarks.peers.peer import WARM_UP, Assignment, Client, peer
from benchmarks.peers.starts import Starts

IN_FLIGHT: Final = 256
"""Tasks that are enqueued concurrently, if the library can."""
PAUSES: Final = (0.01, 1.01)
"""Range of seconds between two single tasks, drawn at random so that a poll may be near or far."""
PATIENCE: Final = 120.0
"""Seconds after the instant of W1 until a job without a start counts as missed."""


async def drive(assignment: Assignment) -> None:
    """Run the client."""
    starts = Starts(assignment.starts)
    async with peer(assignment.peer).client(assignment) as client:
        await asyncio.gather(*(client.enqueue(f"warm-{number}") for number in range(WARM_UP)))
        await starts.until("warm", WARM_UP)
        while await client.completed() < WARM_UP:  # noqa: ASYNC110 - stores do not signal
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(json.dumps(await _WORKLOADS[assignment.workload](assignment, client, starts)), flush=True)


async def _fire_lag(assignment: Assignment, _: Client, starts: Starts) -> dict[str, object]:
    due = assignment.due or 0.0
    with suppress(TimeoutError):  # what is missing is counted
        async with asyncio.timeout(due - time.time() + PATIENCE):
            await starts.until("job", assignment.number)
    await asyncio.sleep(1)  # for what starts twice
    begun = starts.of("job")
    return {"lags": [start.at - due for start in begun], "distinct": len({start.key for start in begun})}


async def _throughput(assignment: Assignment, client: Client, _: Starts) -> dict[str, object]:
    began = time.perf_counter()
    for first in range(0, assignment.number, IN_FLIGHT):
        numbers = range(first, min(first + IN_FLIGHT, assignment.number))
        await asyncio.gather(*(client.enqueue(f"task-{number}") for number in numbers))
    while await client.completed() < WARM_UP + assignment.number:  # noqa: ASYNC110 - stores do not signal
        await asyncio.sleep(0.1)
    return {"seconds": time.perf_counter() - began}


async def _latency(assignment: Assignment, client: Client, starts: Starts) -> dict[str, object]:
    waits = []
    for number in range(assignment.number):
        began = time.perf_counter()
        await client.enqueue(f"lone-{number}")
        waits.append((await starts.until_begun(f"lone-{number}")).monotonic - began)
        await asyncio.sleep(random.uniform(*PAUSES))  # noqa: S311 - nothing is guarded
    return {"waits": waits}


_WORKLOADS: Final = {"W1": _fire_lag, "W2": _throughput, "W3": _latency}


def main() -> None:
    """Run the part that the command line names."""
    assignment, [part] = Assignment.received(), sys.argv[1:]
    if part == "client":
        asyncio.run(drive(assignment))
    else:
        peer(assignment.peer).run(part, assignment)


if __name__ == "__main__":
    main()
