"""Counts, passed spans and durations of a job in Redis."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from pydantic_core import from_json
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from ...domain.events import MISSED_REASONS, Message, Passed, Recorded
from ...domain.execution_counts import NO_DEFINITION, PERIOD, CountKey, counted_status, period_of, start_of
from ...ports import Duration, ExecutionCount, ExecutionRow, PassedSpan
from ...ports.queries import CountQuery, microseconds
from ..history.rows import json_text
from . import keys
from .keys import Hash, read_each

AT_ONCE: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TAKE: Final = """
if redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2]) <= 0 then redis.call('HDEL', KEYS[1], ARGV[1]) end
"""
"""Decreases a count, and removes it if nothing is left."""


def change(transaction: Pipeline, changes: Mapping[CountKey, int]) -> None:
    for (job, *rest), amount in changes.items():
        field = json_text(rest)
        if amount > 0:
            transaction.hincrby(keys.counts_of(job), field, amount)
        else:
            transaction.eval(_TAKE, 1, keys.counts_of(job), field, str(amount))


def record_passed(transaction: Pipeline, messages: Iterable[Recorded[Message]]) -> None:
    """Record spans of missed and superseded instants in a transaction."""
    for recorded in messages:
        fact = recorded.message
        if isinstance(fact, Passed) and fact.reason in MISSED_REASONS and fact.count:
            start, until = (microseconds(keys.aware(time)) for time in (fact.start, fact.until))
            member = json_text([start, fact.reason, fact.count, fact.definition, fact.job])
            transaction.zadd(keys.passed_of(fact.job), {member: until})
            transaction.zadd(keys.PASSED, {member: until})


async def kept_counts(client: Redis, query: CountQuery) -> list[ExecutionCount]:
    """Return the numbers of ended executions in spans of time."""
    stored = cast("Hash", await client.hgetall(keys.counts_of(query.job)))
    since, until, periods = period_of(query.since), period_of(query.until), query.width // PERIOD
    totals = Counter[tuple[int, int, str, str]]()
    for field, total in stored.items():
        period, definition, trigger, status = from_json(field)
        if since <= period < until:
            totals[period // periods * periods, definition, trigger, status] += int(total)
    return [
        ExecutionCount(start_of(period), None if definition == NO_DEFINITION else definition, trigger, status, total)
        for (period, definition, trigger, status), total in totals.items()
    ]


async def counted_rows(rows: AsyncIterator[ExecutionRow], width: timedelta) -> list[ExecutionCount]:
    totals = Counter[tuple[datetime, int | None, str, str]]()
    async for row in rows:
        start = _EPOCH + (row.scheduled_time - _EPOCH) // width * width
        totals[start, row.definition, row.trigger, counted_status(row.status, row.reason)] += 1
    return [ExecutionCount(*key, count) for key, count in totals.items()]


async def passed(client: Redis, job: str, since: datetime, until: datetime, *, limit: int) -> Sequence[PassedSpan]:
    """Return the spans of a job that overlap [since, until), oldest first."""
    spans = list[PassedSpan]()
    least, offset = microseconds(since), 0
    while len(spans) < limit:
        members = await client.zrangebyscore(keys.passed_of(job), least, "+inf", offset, AT_ONCE, withscores=True)
        offset += len(members)
        read = [_span(member, int(score)) for member, score in cast("list[tuple[str, float]]", members)]
        spans += [span for span in read if span.start < until]
        if len(read) < AT_ONCE or read[-1].start >= until:
            break
    return sorted(spans, key=lambda span: (span.until, span.start, span.reason))[:limit]


def _span(member: str, until: int) -> PassedSpan:
    start, reason, count, definition, _ = from_json(member)
    return PassedSpan(_time(start), _time(until), reason, count, definition)


def _time(score: int) -> datetime:
    return _EPOCH + timedelta(microseconds=score)


async def durations(
    client: Redis, job: str, spans: Sequence[tuple[datetime, datetime]], *, limit: int
) -> Sequence[Sequence[Duration]]:
    return [await _durations(client, job, microseconds(start), microseconds(end), limit) for start, end in spans]


async def _durations(client: Redis, job: str, start: int, end: int, limit: int) -> Sequence[Duration]:
    durations, offset = list[Duration](), 0
    while len(durations) < limit:
        names = cast(
            "list[str]",
            await client.zrangebyscore(keys.executions_by("job", job), start, f"({end}", offset, AT_ONCE),
        )
        offset += len(names)
        for definition, duration in await read_each(
            client, names, lambda reading, name: reading.hmget(keys.execution(name), "definition", "duration_ms")
        ):
            if duration is not None:
                durations.append(Duration(None if definition is None else int(definition), int(duration)))
        if len(names) < AT_ONCE:
            break
    return durations[:limit]


async def expire_passed(client: Redis, cutoff_of: Callable[[str], datetime], newest_cutoff: datetime) -> int:
    """Remove some spans that ended before the cutoff of their job; return their number."""
    offset = 0
    while True:
        members = await client.zrangebyscore(
            keys.PASSED, "-inf", f"({microseconds(newest_cutoff)}", offset, AT_ONCE, withscores=True
        )
        pairs = cast("list[tuple[str, float]]", members)
        old = [(member, job) for member, score in pairs if _time(int(score)) < cutoff_of(job := from_json(member)[4])]
        if old:
            async with client.pipeline(transaction=True) as removing:
                for member, job in old:
                    removing.zrem(keys.PASSED, member)
                    removing.zrem(keys.passed_of(job), member)
                await removing.execute()
            return len(old)
        if len(pairs) < AT_ONCE:
            return 0
        offset += len(pairs)
