"""Count the messages and bytes of one execution and of one registered job.

Each shape of an execution runs on an installation of its own, once for each of some jobs, as a schedule starts it, with a lock. The bytes
of a stream are those that the server counts, before compression.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from pydantic import JsonValue

from benchmarks.part import FUNCTION
from benchmarks.servers import initialized, servers
from tocsin import Context, Worker, bootstrap
from tocsin.bootstrap import Installation
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition, Step
from tocsin.subjects import Bucket, Stream

STREAMS: Final = (Stream.LEDGER, Stream.LOG, Stream.REQUESTS, Stream.REPORTS, Stream.TIMERS)
"""Those that grow with the executions, and are moved into the archive."""
BUCKETS: Final = (Bucket.DEFINITIONS, Bucket.LOCKS)
WITHIN: Final = 300.0
"""Seconds for one sample."""
_CONCURRENCY: Final = 50
_LEAD_S: Final = 4.0
"""Seconds from the registration of the jobs to their instant."""
_NOT_RUN: Final = frozenset({"screener", "mq_bridge", "archiver", "notary"})

Stored: TypeAlias = dict[str, tuple[int, int]]
"""The messages and the bytes of each stream and bucket."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The steps of an execution, and the bytes of its input and of each result."""

    steps: int = 1
    input: int = 0
    result: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """The messages and bytes of one execution, and of one registered job."""

    execution: Mapping[str, tuple[float, float]]
    job: Mapping[str, tuple[float, float]]


async def sample(shape: Shape, *, jobs: int) -> Sample:
    """Return the messages and bytes of an execution of a shape, and of its job.

    Raises:
        TimeoutError: the executions did not complete.
    """
    async with servers() as nats, initialized(nats.settings) as installation, _running(installation, shape):
        before = await settled(installation)
        start = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=_LEAD_S)
        for number in range(jobs):
            for fact in ledger.define(ledger.initial, _definition(number, shape, start)):
                await installation.log.append(fact, expect=0)
        async with asyncio.timeout(WITHIN):
            defined = await stored(installation, once=lambda found: found[Bucket.DEFINITIONS][0] >= jobs)
        async with asyncio.timeout(WITHIN):
            while await _number(installation, "execution.*.*.completed.locked") < jobs:  # noqa: ASYNC110 - a stream does not signal
                await asyncio.sleep(0.2)
            after = await settled(installation)
    grown, registered_ = _difference(after, defined, jobs), _difference(defined, before, jobs)
    # The lock's entry appears with the first execution, and belongs to the job.
    return Sample(
        {name: grown[name] for name in STREAMS},
        {name: (grown if name == Bucket.LOCKS else registered_)[name] for name in (Stream.LEDGER, *BUCKETS)},
    )


async def stored(installation: Installation, *, once: Any = None) -> Stored:  # noqa: ANN401 - a condition on the result
    """Return the content of streams and buckets, as soon as it meets a condition."""
    names = installation.names
    wires = {stream: names.stream(stream) for stream in STREAMS} | {b: names.bucket_stream(b) for b in BUCKETS}
    while True:
        states = {
            name: (await installation.connection.manage(f"STREAM.INFO.{on}"))["state"] for name, on in wires.items()
        }
        found = {str(name): (state["messages"], state["bytes"]) for name, state in states.items()}
        if once is None or once(found):
            return found
        await asyncio.sleep(0.1)


@asynccontextmanager
async def _running(installation: Installation, shape: Shape) -> AsyncIterator[None]:
    """All stages in this process, beside a worker with results of the shape."""
    worker, ready = Worker(concurrency=_CONCURRENCY), asyncio.Event()
    answer = "x" * shape.result if shape.result else None

    @worker.task(FUNCTION)
    async def handler(_: Context) -> str | None:
        return answer

    stages = [stage for stage in bootstrap.STAGE_NAMES if stage not in _NOT_RUN]
    tasks = [asyncio.create_task(bootstrap.run_stages(installation, stages, ready=ready))]
    await ready.wait()
    async with bootstrap.worker_connection(installation, worker.options) as connection:
        tasks.append(asyncio.create_task(worker.serve(connection)))
        while not await installation.projections.entries(Bucket.AGENTS):  # noqa: ASYNC110 - a bucket does not signal
            await asyncio.sleep(0.1)
        try:
            yield
        finally:
            worker.stop()
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _definition(number: int, shape: Shape, at: datetime) -> JobDefinition:
    """Return a job with one instant."""
    schedule = f"at {at:%Y-%m-%dT%H:%M:%S}"
    body: dict[str, JsonValue] = {"data": "x" * shape.input} if shape.input else {}
    name = f"measured-job-{number:03}"
    if shape.steps == 1:
        return JobDefinition(name=name, schedule=schedule, function=FUNCTION, input=body)
    chain = tuple(
        Step(name=f"step-{step}", function=FUNCTION, depends_on=(f"step-{step - 1}",) if step else ())
        for step in range(shape.steps)
    )
    return JobDefinition(name=name, schedule=schedule, dag=chain, input=body)


async def settled(installation: Installation) -> Stored:
    """Return the content of streams and buckets when nothing more is stored.

    The public event of a start follows the start.
    """
    found = await stored(installation)
    while True:
        await asyncio.sleep(1)
        before, found = found, await stored(installation)
        if before == found:
            return found


async def _number(installation: Installation, subjects: str) -> int:
    request = json.dumps({"subjects_filter": installation.names.to_wire(subjects)}).encode()
    answer = await installation.connection.manage(f"STREAM.INFO.{installation.names.stream(Stream.LOG)}", request)
    return sum((answer["state"].get("subjects") or {}).values())


def _difference(after: Stored, before: Stored, number: int) -> dict[str, tuple[float, float]]:
    return {name: tuple((a - b) / number for a, b in zip(after[name], before[name], strict=True)) for name in after}  # type: ignore[misc]
