"""Implementation of `ports.summaries` in Redis."""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import add
from typing import Any, Final, TypeAlias, cast, get_args

from pydantic import TypeAdapter
from pydantic_core import from_json
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from ...domain.events import ENDED_STATES, OPEN_STATES, JobState, TriggerKind
from ...domain.execution_record import UNKNOWN_TRIGGER, LastRun, Recoveries, Status
from ...domain.namespaces import is_within
from ...domain.text import error_pattern
from ...domain.totals import Total
from ...ports import DeadLetterRow
from ...ports.queries import DeadLetterQuery, Page, every, microseconds
from ...ports.summaries import (
    ENDED,
    MAX_STREAK,
    End,
    EndCounts,
    ExecutionHead,
    HandOver,
    HandOverCount,
    HandOvers,
    JobRuns,
    LetterGroup,
    LetterGroups,
    QueueCounts,
    Streak,
)
from ..history.rows import json_text
from ..sql.summaries import counted
from . import keys, totals
from .keys import CHUNK, execution_head, read_each

ListDeadLetters: TypeAlias = Callable[[DeadLetterQuery], Awaitable[Page[DeadLetterRow]]]

MAX_EXAMINED: Final = 100_000
"""Executions that are looked at to find those of some namespaces. A reader of a small namespace sees none that come after more of others."""
MAX_GROUPED: Final = 10_000
"""Dead letters that are read to group them."""
STATES: Final[tuple[JobState, ...]] = (*OPEN_STATES, *sorted(ENDED_STATES))

_MINUTE_US: Final = 60_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS: Final = (
    *("job_name", "execution_id", "trigger", "status", "scheduled_time", "started_at", "completed_at"),
    *("duration_ms", "definition", "error"),
)

_HANDED_OVER: Final = (
    *("job_name", "definition", "status", "was_handed_over", "recoveries", "completed_at", "scheduled_time"),
)

_LAST_RUN: Final[TypeAdapter[LastRun]] = TypeAdapter(LastRun)
_TRIGGERS: Final[tuple[str, ...]] = (*get_args(TriggerKind), UNKNOWN_TRIGGER)


def record(transaction: Pipeline, last: Mapping[str, LastRun]) -> None:
    for job, run in last.items():
        transaction.hset(keys.LAST_RUNS, job, json_text(run))


def _totals(job: str) -> list[Total]:
    return [Total("executions", job, trigger, status) for status in ENDED for trigger in _TRIGGERS]


def _ends(job: str, counts: Sequence[str | None]) -> dict[Status, int]:
    ends = Counter[Any]()
    for total, count in zip(_totals(job), counts, strict=True):
        if count is not None:
            ends[total.status] += int(count)
    return dict(ends)


async def _running(client: Redis) -> Counter[str]:
    """Count the running executions of each job.

    All are read once, for any number of jobs. Executions that wait for a retry or for a next step count too.
    """
    ids = cast("list[str]", await client.zrange(keys.executions_by("status", "running"), 0, -1))
    jobs = await read_each(client, ids, lambda reading, name: reading.hget(keys.execution(name), "job_name"))
    return Counter(job for job in jobs if job is not None)


class RedisSummaries:
    """The summaries of a history in Redis."""

    def __init__(self, client: Redis, dead_letters: ListDeadLetters, installation: str) -> None:
        self._client = client
        self._dead_letters = dead_letters
        self._installation = installation

    async def runs(self, jobs: Sequence[str]) -> Mapping[str, JobRuns] | None:
        if not await totals.are_complete(self._client, self._installation):
            return None
        counters, running = dict[str, JobRuns](), await _running(self._client)
        for chunk in (list(jobs[start : start + CHUNK]) for start in range(0, len(jobs), CHUNK)):
            async with self._client.pipeline(transaction=True) as reading:
                reading.hmget(keys.LAST_RUNS, chunk)
                for job in chunk:
                    reading.hmget(keys.TOTALS, [*map(json_text, _totals(job))])
                last, *ends = await reading.execute()
            for job, stored, counts in zip(chunk, last, ends, strict=True):
                run = None if stored is None else _LAST_RUN.validate_json(stored)
                counters[job] = JobRuns(_ends(job, counts), running[job], run)
        return counters

    async def ends(
        self, since: datetime, *, limit: int, by_job: bool, namespaces: Collection[str] | None = None
    ) -> EndCounts:
        ends: dict[Status, Counter[End]] = {}
        for status in ENDED:
            pairs = await self._newest(status, limit, since=since, namespaces=namespaces)
            ends[status] = Counter(_end(member, score) if by_job else End(_minute(score)) for member, score in pairs)
        return counted(ends, since, limit)

    async def of_queue(self, queue: str, since: datetime) -> QueueCounts:
        async with self._client.pipeline(transaction=True) as reading:
            for state in STATES:
                reading.zcard(keys.in_queue(queue, state))
                reading.zcount(keys.in_queue(queue, state), microseconds(since), "+inf")
            numbers = cast("list[int]", await reading.execute())
        all_and_new = dict(zip(STATES, zip(numbers[::2], numbers[1::2], strict=True), strict=True))
        return QueueCounts(
            {state: number for state, (number, _) in all_and_new.items() if number},
            {state: new for state, (_, new) in all_and_new.items() if new},
        )

    async def oldest(
        self, status: Status, *, limit: int, namespaces: Collection[str] | None = None
    ) -> Sequence[ExecutionHead]:
        of_status, heads, begin = keys.executions_by("status", status), list[ExecutionHead](), 0
        while len(heads) < limit and begin < MAX_EXAMINED:
            ids = cast("list[str]", await self._client.zrange(of_status, begin, begin + limit - 1))
            found = await self._heads(ids)
            heads += [head for head in found if namespaces is None or is_within(head.job_name, namespaces)]
            if namespaces is None or len(ids) < limit:
                break
            begin += limit
        return heads[:limit]

    async def newest_of(self, jobs: Sequence[str], *, limit: int) -> Mapping[str, Sequence[ExecutionHead]]:
        ids = await read_each(
            self._client, jobs, lambda reading, job: reading.zrevrange(keys.executions_by("job", job), 0, limit - 1)
        )
        heads = {head.execution_id: head for head in await self._heads([name for of_job in ids for name in of_job])}
        return {job: [heads[name] for name in of_job if name in heads] for job, of_job in zip(jobs, ids, strict=True)}

    async def hand_overs(
        self, since: datetime, *, limit: int, job: str | None = None, namespaces: Collection[str] | None = None
    ) -> HandOvers:
        among = keys.EXECUTIONS if job is None else keys.executions_by("job", job)
        ids = await self._client.zrevrangebyscore(among, "+inf", microseconds(since), 0, MAX_EXAMINED)
        count, earliest = 0, since
        groups = dict[HandOver, HandOverCount]()
        for begin in range(0, len(ids), keys.CHUNK):
            for row in await self._fields(cast("list[str]", ids[begin : begin + keys.CHUNK]), _HANDED_OVER):
                earliest = datetime.fromisoformat(str(row["scheduled_time"]))
                if namespaces is None or is_within(str(row["job_name"]), namespaces):
                    group, recoveries = _hand_over(row)
                    before = groups.get(group, HandOverCount(0, Recoveries()))
                    sums = Recoveries(*map(add, before.recoveries, recoveries))
                    groups[group] = HandOverCount(before.executions + 1, sums)
                    count += 1
                if count == limit:
                    return HandOvers(earliest, groups)
        return HandOvers(earliest if len(ids) == MAX_EXAMINED else since, groups)

    async def streaks(self, jobs: Sequence[str]) -> Mapping[str, Streak]:
        successes: list[list[tuple[str, float]]] = await read_each(
            self._client,
            jobs,
            lambda reading, job: reading.zrevrange(keys.results_of(job, "completed"), 0, 0, withscores=True),
        )
        async with self._client.pipeline(transaction=True) as reading:
            for job, success in zip(jobs, successes, strict=True):
                failed, at = keys.results_of(job, "failed"), int(success[0][1]) if success else None
                reading.zcard(failed)
                reading.zcount(failed, "-inf", "-inf" if at is None else f"({at}")
                # Executions with one scheduled time, such as those of shards, are in the order of their ids.
                reading.zrangebyscore(failed, *(("(0", 0) if at is None else (at, at)))
            numbers = await reading.execute()
        places: dict[str, tuple[int, int]] = {}
        for job, success, number, before, ties in zip(
            jobs, successes, numbers[::3], numbers[1::3], numbers[2::3], strict=True
        ):
            place = before + sum(success[0][0] > tie for tie in ties)
            if place < number:
                places[job] = place, number - place
        return await self._streaks_at(places)

    async def _streaks_at(self, places: Mapping[str, tuple[int, int]]) -> Mapping[str, Streak]:
        """Return the streaks of jobs from the rank of the first failure, and their number."""
        async with self._client.pipeline(transaction=False) as reading:
            for job, (rank, _) in places.items():
                reading.zrange(keys.results_of(job, "failed"), rank, rank)
                reading.zrange(keys.results_of(job, "failed"), -1, -1)
            ids = [name for names in await reading.execute() for name in names]
        heads = {head.execution_id: head for head in await self._heads(ids)}
        ends = zip(places.items(), ids[::2], ids[1::2], strict=False)
        return {
            job: Streak(heads[first], heads[last], min(number, MAX_STREAK))
            for (job, (_, number)), first, last in ends
            if first in heads and last in heads
        }

    async def letter_groups(self, query: DeadLetterQuery, *, limit: int, by_definition: bool = False) -> LetterGroups:
        """See `ports.HistorySummaries`. Only the newest `MAX_GROUPED` dead letters are grouped."""
        members = defaultdict[tuple[object, ...], list[DeadLetterRow]](list)
        pages, read = replace(query, sort="newest", cursor=None, limit=keys.CHUNK), 0
        async for row in every(self._dead_letters, pages):
            read += 1
            if read > MAX_GROUPED:
                break
            part = (row.definition, row.first_attempt if row.definition is None else None) if by_definition else ()
            members[row.job_name, error_pattern(row.last_error or ""), *part].append(row)
        groups = [_group(of_group, by_definition=by_definition) for of_group in members.values()]
        groups.sort(key=lambda group: (-group.count, -group.last.timestamp(), group.job_name, group.pattern))
        return LetterGroups(groups[:limit], is_complete=read <= MAX_GROUPED and len(groups) <= limit)

    async def failed_jobs(
        self, *, failures: int, limit: int, namespaces: Collection[str] | None = None
    ) -> Sequence[str]:
        last: dict[str, float] = {}
        for member, score in await self._newest("failed", failures, namespaces=namespaces):
            last.setdefault(from_json(member)[1], score)
        return sorted(last, key=lambda job: (-last[job], job))[:limit]

    async def _newest(
        self, status: Status, limit: int, *, namespaces: Collection[str] | None, since: datetime | None = None
    ) -> Sequence[tuple[str, float]]:
        least = "-inf" if since is None else str(microseconds(since))
        ends, begin = list[tuple[str, float]](), 0
        while len(ends) < limit and begin < MAX_EXAMINED:
            page = cast(
                "list[tuple[str, float]]",
                await self._client.zrevrangebyscore(keys.ended(status), "+inf", least, begin, limit, withscores=True),
            )
            ends += [end for end in page if namespaces is None or is_within(from_json(end[0])[1], namespaces)]
            if namespaces is None or len(page) < limit:
                break
            begin += limit
        return ends[:limit]

    async def _heads(self, ids: Sequence[str]) -> list[ExecutionHead]:
        return [execution_head(row) for row in await self._fields(ids, _FIELDS)]

    async def _fields(self, ids: Sequence[str], names: Sequence[str]) -> list[dict[str, str | None]]:
        """Return some fields of the executions that exist. The first is never absent."""
        rows = await read_each(self._client, ids, lambda reading, name: reading.hmget(keys.execution(name), *names))
        return [dict(zip(names, row, strict=True)) for row in rows if row[0] is not None]


def _group(members: Sequence[DeadLetterRow], *, by_definition: bool) -> LetterGroup:
    newest = members[0]
    return LetterGroup(
        job_name=newest.job_name,
        pattern=error_pattern(newest.last_error or ""),
        count=len(members),
        first=members[-1].last_attempt,
        last=newest.last_attempt,
        example=newest.id,
        definition=newest.definition if by_definition else None,
        first_attempt=newest.first_attempt if by_definition and newest.definition is None else None,
    )


def _hand_over(row: Mapping[str, str | None]) -> tuple[HandOver, Recoveries]:
    recoveries = Recoveries(*from_json(row["recoveries"] or "[]"))
    is_recovering = row["completed_at"] is None and recoveries.tried > recoveries.successful + recoveries.failed
    definition = None if row["definition"] is None else int(row["definition"])
    status, was_handed_over = cast("Status", row["status"]), row["was_handed_over"] is not None
    return HandOver(str(row["job_name"]), definition, status, was_handed_over, is_recovering), recoveries


def _end(member: str, score: float) -> End:
    _, job, definition = from_json(member)
    return End(_minute(score), job, definition)


def _minute(score: float) -> datetime:
    return _EPOCH + timedelta(microseconds=int(score) // _MINUTE_US * _MINUTE_US)
