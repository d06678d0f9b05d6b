"""Implementation of `ports.summaries` in Redis."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, cast

from pydantic_core import from_json
from redis.asyncio import Redis

from ...domain.events import ENDED_STATES, OPEN_STATES, JobState
from ...domain.execution_record import Status
from ...domain.namespaces import is_within
from ...ports import DeadLetterRow
from ...ports.queries import DeadLetterQuery, Page, every, microseconds
from ...ports.summaries import ENDED, MAX_ERROR, End, EndCounts, ExecutionHead, JobRuns, LetterHead, QueueCounts
from ..history.ends import counted
from . import keys
from .keys import execution_head
from .runs import runs

ListDeadLetters: TypeAlias = Callable[[DeadLetterQuery], Awaitable[Page[DeadLetterRow]]]

MAX_EXAMINED: Final = 100_000
"""Executions that are looked at to find those of some namespaces. A reader of a small namespace sees none that come after more of others."""
STATES: Final[tuple[JobState, ...]] = (*OPEN_STATES, *sorted(ENDED_STATES))

_MINUTE_US: Final = 60_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS: Final = (
    *("job_name", "execution_id", "trigger", "status", "scheduled_time", "started_at", "completed_at"),
    *("duration_ms", "definition", "error"),
)


class RedisSummaries:
    """The summaries of a history in Redis."""

    def __init__(self, client: Redis, dead_letters: ListDeadLetters, installation: str) -> None:
        self._client = client
        self._dead_letters = dead_letters
        self._installation = installation

    async def runs(self, jobs: Sequence[str]) -> Mapping[str, JobRuns] | None:
        """See `ports.HistorySummaries`."""
        return await runs(self._client, self._installation, jobs)

    async def ends(
        self, since: datetime, *, limit: int, by_job: bool, namespaces: Collection[str] | None = None
    ) -> EndCounts:
        """See `ports.HistorySummaries`."""
        ends: dict[Status, Counter[End]] = {}
        for status in ENDED:
            pairs = await self._newest(status, limit, since=since, namespaces=namespaces)
            ends[status] = Counter(_end(member, score) if by_job else End(_minute(score)) for member, score in pairs)
        return counted(ends, since, limit)

    async def of_queue(self, queue: str, since: datetime) -> QueueCounts:
        """See `ports.HistorySummaries`."""
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
        """See `ports.HistorySummaries`."""
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
        """See `ports.HistorySummaries`."""
        async with self._client.pipeline(transaction=False) as reading:
            for job in jobs:
                reading.zrevrange(keys.executions_by("job", job), 0, limit - 1)
            ids = await reading.execute()
        heads = {head.execution_id: head for head in await self._heads([name for of_job in ids for name in of_job])}
        return {job: [heads[name] for name in of_job if name in heads] for job, of_job in zip(jobs, ids, strict=True)}

    async def letters(self, query: DeadLetterQuery, *, limit: int) -> Sequence[LetterHead]:
        """See `ports.HistorySummaries`."""
        heads = list[LetterHead]()
        pages = replace(query, cursor=None, limit=min(limit, keys.CHUNK))
        async for row in every(self._dead_letters, pages):
            heads.append(_letter_head(row))
            if len(heads) == limit:
                break
        return heads

    async def failed_jobs(
        self, *, failures: int, limit: int, namespaces: Collection[str] | None = None
    ) -> Sequence[str]:
        """See `ports.HistorySummaries`."""
        last: dict[str, float] = {}
        for member, score in await self._newest("failed", failures, namespaces=namespaces):
            last.setdefault(from_json(member)[1], score)
        return sorted(last, key=lambda job: (-last[job], job))[:limit]

    async def _newest(
        self, status: Status, limit: int, *, namespaces: Collection[str] | None, since: datetime | None = None
    ) -> Sequence[tuple[str, float]]:
        """Return the newest ends of a status with their times."""
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
        heads = list[ExecutionHead]()
        for begin in range(0, len(ids), keys.CHUNK):
            async with self._client.pipeline(transaction=False) as reading:
                for name in ids[begin : begin + keys.CHUNK]:
                    reading.hmget(keys.execution(name), *_FIELDS)
                rows: list[list[Any]] = await reading.execute()
            heads += [execution_head(dict(zip(_FIELDS, row, strict=True))) for row in rows if row[0] is not None]
        return heads


def _letter_head(row: DeadLetterRow) -> LetterHead:
    error = None if row.last_error is None else row.last_error[:MAX_ERROR]
    return LetterHead(row.id, row.job_name, error, row.first_attempt, row.last_attempt, row.definition)


def _end(member: str, score: float) -> End:
    _, job, definition = from_json(member)
    return End(_minute(score), job, definition)


def _minute(score: float) -> datetime:
    return _EPOCH + timedelta(microseconds=int(score) // _MINUTE_US * _MINUTE_US)
