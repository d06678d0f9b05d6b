"""The counters of jobs in Redis."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast, get_args

from pydantic import TypeAdapter
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from ...domain.events import TriggerKind
from ...domain.execution_record import UNKNOWN_TRIGGER, Status
from ...domain.last_run import LastRun
from ...domain.totals import Total
from ...ports.summaries import ENDED, JobRuns
from ..history.rows import json_text
from . import keys, totals
from .keys import CHUNK

_LAST_RUN: Final[TypeAdapter[LastRun]] = TypeAdapter(LastRun)
_TRIGGERS: Final[tuple[str, ...]] = (*get_args(TriggerKind), UNKNOWN_TRIGGER)


def record(transaction: Pipeline, last: Mapping[str, LastRun]) -> None:
    """Replace the last runs of jobs in a transaction."""
    for job, run in last.items():
        transaction.hset(keys.LAST_RUNS, job, json_text(run))


async def runs(client: Redis, installation: str, jobs: Sequence[str]) -> dict[str, JobRuns] | None:
    """Return the counters of jobs; None: a rebuild has not reached its former place."""
    if not await totals.are_complete(client, installation):
        return None
    counters, running = dict[str, JobRuns](), await _running(client)
    for chunk in _chunks(jobs):
        async with client.pipeline(transaction=True) as reading:
            reading.hmget(keys.LAST_RUNS, chunk)
            for job in chunk:
                reading.hmget(keys.TOTALS, [json_text(total) for total in _totals(job)])
            last, *ends = await reading.execute()
        for job, stored, counts in zip(chunk, last, ends, strict=True):
            run = None if stored is None else _LAST_RUN.validate_json(stored)
            counters[job] = JobRuns(_ends(job, counts), running[job], run)
    return counters


def _totals(job: str) -> Iterator[Total]:
    """Yield the names of all totals of a job's executions."""
    for status in ENDED:
        for trigger in _TRIGGERS:
            yield Total("executions", job, trigger, status)


def _ends(job: str, counts: Sequence[str | None]) -> dict[Status, int]:
    ends = Counter[Any]()
    for total, count in zip(_totals(job), counts, strict=True):
        if count is not None:
            ends[total.status] += int(count)
    return dict(ends)


async def _running(client: Redis) -> Counter[str]:
    """Count the running executions of each job.

    All of them are read once, for any number of jobs. Those that wait for a retry or for a next step count too.
    """
    running = Counter[str]()
    ids = cast("list[str]", await client.zrange(keys.executions_by("status", "running"), 0, -1))
    for chunk in _chunks(ids):
        async with client.pipeline(transaction=False) as reading:
            for execution_id in chunk:
                reading.hget(keys.execution(execution_id), "job_name")
            running.update(job for job in await reading.execute() if job is not None)
    return running


def _chunks(names: Sequence[str]) -> Iterator[list[str]]:
    return (list(names[start : start + CHUNK]) for start in range(0, len(names), CHUNK))
