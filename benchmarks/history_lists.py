"""A history of a million executions: cost per recorded event, time per page.

    python -m benchmarks.history_lists sqlite:////tmp/history.db [--executions 1000000]

The database is filled unless it already holds that many executions. `postgresql://…` and `redis://…` work as well.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from tocsin import subjects
from tocsin.adapters.history import open_history
from tocsin.domain import ids
from tocsin.domain.events import (
    Admitted,
    Completed,
    Dispatched,
    Failed,
    Failure,
    Message,
    Plan,
    PlannedStep,
    Recorded,
    Started,
)
from tocsin.ports import History
from tocsin.ports.queries import ExecutionQuery
from tocsin.subjects import Stream

BATCH: Final = 4_000
ROUNDS: Final = 15
BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)
EVERY_S: Final = 3
"""Seconds between the scheduled times of two executions."""
JOBS: Final = 200
STEP: Final = PlannedStep(name="main", function="f", timeout=30)
RARE: Final = 500
"""One execution in this many failed, was started by hand, or has a rare tag."""


def facts(
    executions: int, began: datetime = BEGAN, definitions: Mapping[str, int] = MappingProxyType({})
) -> Iterator[Recorded[Message]]:
    """Yield the life of each execution, in the order of a log.

    The first is scheduled at `began`. `definitions`: the sequences of those of the jobs; a caller sees no others.
    """
    chance = random.Random(7)  # noqa: S311 - the same figures each time
    sequence = 0
    for number in range(executions):
        job, at = f"job-{number % JOBS}", began + timedelta(seconds=number * EVERY_S)
        is_rare = number % RARE == 0
        who = {"job": job, "execution_id": ids.occurrence_id(job, at)}
        what = {**who, "scheduled_time": at, "trigger": "manual" if is_rare else "cron"}
        tags = ("all", "rare") if is_rare else ("all",)
        took = timedelta(milliseconds=chance.randrange(5, 60_000))
        end = {**what, "step": "main", "attempt": 1}
        failure = Failure(type="ValueError", message=f"no rows for {number}", traceback="Traceback …")
        for after, fact in (
            (timedelta(), Admitted(**what, plan=Plan(definition=definitions.get(job, 1), steps=(STEP,), tags=tags))),
            (timedelta(), Dispatched(**end, max_attempts=1, function="f", timeout=30, token="")),
            (timedelta(milliseconds=2), Started(**who, step="main", attempt=1, delivery=1, worker="w-1")),
            (took, Failed(**end, error=failure) if is_rare else Completed(**end, result={"rows": number})),
        ):
            sequence += 1
            yield Recorded(fact, subjects.subject_of(fact), sequence, at + after)


def queries(executions: int) -> Iterator[tuple[str, ExecutionQuery]]:
    """Return the queries of operators."""
    middle = BEGAN + timedelta(seconds=executions * EVERY_S // 2)
    yield "newest", ExecutionQuery()
    yield "oldest", ExecutionQuery(sort="oldest")
    yield "last-started", ExecutionQuery(sort="last-started")
    yield "longest", ExecutionQuery(sort="longest")
    yield "of a job", ExecutionQuery(job="job-7")
    yield "of a job, the longest", ExecutionQuery(job="job-7", sort="longest")
    yield "completed", ExecutionQuery(status="completed")
    yield "failed", ExecutionQuery(status="failed")
    yield "running (none)", ExecutionQuery(status="running")
    yield "of a job, failed", ExecutionQuery(job="job-0", status="failed")
    yield "by hand", ExecutionQuery(trigger="manual")
    yield "frequent tag", ExecutionQuery(tag="all")
    yield "rare tag", ExecutionQuery(tag="rare")
    yield "rare tag, of a job", ExecutionQuery(tag="rare", job="job-0")
    yield "error text", ExecutionQuery(error="NO ROWS FOR 5")
    yield "error text (none)", ExecutionQuery(error="nothing like this")
    yield "an hour, long ago", ExecutionQuery(since=middle, until=middle + timedelta(hours=1))
    yield "failed, an hour, long ago", ExecutionQuery(status="failed", since=middle, until=middle + timedelta(hours=1))
    yield "until then, oldest", ExecutionQuery(until=middle, sort="oldest")
    yield (
        "by beginning of id",
        ExecutionQuery(id_prefix=ids.occurrence_id("job-1", BEGAN + timedelta(seconds=EVERY_S))[:13]),
    )


async def fill(
    history: History, executions: int, began: datetime = BEGAN, definitions: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Record executions up to a number."""
    place = await history.offset(Stream.LOG)
    if place >= executions * 4:
        return
    batch: list[Recorded[Message]] = []
    spent, recorded = 0.0, 0
    for fact in facts(executions, began, definitions):
        if fact.sequence <= place:
            continue
        batch.append(fact)
        if len(batch) == BATCH:
            began = time.perf_counter()
            await history.record(Stream.LOG, batch, after=place, upto=fact.sequence)
            spent += time.perf_counter() - began
            place, recorded, batch = fact.sequence, recorded + BATCH, []
    print(f"{'recording, µs a fact':<34}{spent / recorded * 1e6:>10.1f}")


async def measure(url: str, executions: int) -> None:
    """Fill the history, run the queries, print the times."""
    async with open_history(url, installation="benchmark", max_connections=4) as history:
        await fill(history, executions)
        for name, query in queries(executions):
            took = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                page = await history.executions(query)
                took.append((time.perf_counter() - began) * 1_000)
            next_page = ExecutionQuery(cursor=page.cursor, sort=query.sort) if page.cursor else None
            if next_page is not None:
                await history.executions(next_page)
            print(f"{name:<34}{statistics.median(took):>10.1f} ms{max(took):>10.1f} ms at most{len(page.rows):>6} rows")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history_lists")
    parser.add_argument("url")
    parser.add_argument("--executions", type=int, default=1_000_000)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.url, arguments.executions))


if __name__ == "__main__":
    main()
