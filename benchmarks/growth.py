"""W5: throughput with much behind it: executions that are over, in the log and in the history.

They are stored as the domain decides them, six messages each, and every durable begins behind them, as it does behind what
was archived. The history has recorded them before anything is measured.
"""

import asyncio
from itertools import islice
from typing import Final

from benchmarks.replay import executions
from benchmarks.system import RECORDER, USUAL, initialized, running, server
from benchmarks.throughput import throughput
from tocsin import bootstrap, subjects
from tocsin.bootstrap import Installation
from tocsin.subjects import Bucket, Stream

SIZES: Final = (0, 100_000, 1_000_000)
BETWEEN_SYNCS: Final = 10_000
"""Messages that are published before the server is waited for."""


async def growth(sync_always: bool) -> dict[str, float]:  # noqa: FBT001 - as every workload
    """Executions a second behind each number of them, and each in relation to the first."""
    found: dict[str, float] = {}
    for size in SIZES:
        found[f"executions_per_second ({size:,} before)"] = await _measure(size, sync_always=sync_always)
    nothing, *rest = found.values()
    return found | {f"ratio ({size:,} before)": rate / nothing for size, rate in zip(SIZES[1:], rest, strict=True)}


async def _measure(size: int, *, sync_always: bool) -> float:
    async with server(sync_always=sync_always) as (settings, nats), initialized(settings) as installation:
        if size:
            await _fill(installation, size)
            async with running(installation, (RECORDER,), nats=nats), installation.history() as history:
                while await history.count() < size:  # noqa: ASYNC110 - a database does not signal
                    await asyncio.sleep(0.5)
        async with running(installation, USUAL, nats=nats) as system:
            return (await throughput(system))["executions_per_second"]


async def _fill(installation: Installation, size: int) -> None:
    connection, names = installation.connection, installation.names
    stream = names.stream(Stream.LOG)
    stored = 0
    for messages in islice(executions(), size):
        for message in messages:
            await connection.client.publish(names.to_wire(subjects.subject_of(message)), message.encode())
            stored += 1
            if stored % BETWEEN_SYNCS == 0:
                await connection.client.flush(timeout=60)
    await connection.client.flush(timeout=60)
    while (state := await _state(installation))["messages"] < stored:  # noqa: ASYNC110 - nor does a stream
        await asyncio.sleep(0.1)
    # Every durable begins behind what was stored: as it is behind what an archive took away.
    await installation.projections.put(
        Bucket.CURSORS, subjects.cursor(Stream.LOG), str(state["last_seq"]).encode(), expect=None
    )
    for durable in (await connection.manage(f"CONSUMER.NAMES.{stream}"))["consumers"]:
        await connection.manage(f"CONSUMER.DELETE.{stream}.{durable}")
    await bootstrap.initialize(installation)


async def _state(installation: Installation) -> dict[str, int]:
    name = installation.names.stream(Stream.LOG)
    state: dict[str, int] = (await installation.connection.manage(f"STREAM.INFO.{name}"))["state"]
    return state
