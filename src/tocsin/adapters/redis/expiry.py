"""Removal of executions and dead letters whose retention is over."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, cast

from redis.asyncio import Redis

from ...ports.queries import microseconds
from . import keys
from .batch_writer import remove_execution
from .rows import Hash, execution_record

AT_ONCE: Final = 1_000


async def expire(client: Redis, *, now: datetime, after: timedelta) -> int:
    """Remove some expired executions and resolved dead letters; return how many."""
    own = {job: float(seconds) for job, seconds in cast("Hash", await client.hgetall(keys.RETENTIONS)).items()}
    removed = await _executions(client, keys.EXECUTIONS, now - after, but=frozenset(own))
    for job, seconds in own.items():
        removed += await _executions(client, keys.executions_by("job", job), now - timedelta(seconds=seconds))
    return removed + await _dead_letters(client, now - after)


async def _executions(client: Redis, among: str, before: datetime, *, but: frozenset[str] = frozenset()) -> int:
    removed, start = 0, 0
    while names := await _oldest(client, among, before, start):
        start += len(names)
        async with client.pipeline(transaction=False) as reading:
            for name in names:
                reading.hgetall(keys.execution(name))
            records = [execution_record(stored) for stored in await reading.execute() if stored]
        old = [
            record
            for record in records
            if record.job not in but and record.completed_at is not None and record.completed_at < before
        ]
        async with client.pipeline(transaction=True) as removing:
            for record in old:
                remove_execution(removing, record)
            await removing.execute()
        removed += len(old)
        if removed:
            break
    return removed


async def _dead_letters(client: Redis, before: datetime) -> int:
    old = await _oldest(client, keys.DEAD_LETTERS, before, 0)
    async with client.pipeline(transaction=False) as reading:
        for name in old:
            reading.hmget(keys.dead_letter(name), "resolved", "job_name")
        fields = await reading.execute()
    resolved = [(name, job) for name, (is_resolved, job) in zip(old, fields, strict=True) if is_resolved]
    async with client.pipeline(transaction=True) as removing:
        for name, job in resolved:
            removing.delete(keys.dead_letter(name))
            for sorted_set in (keys.DEAD_LETTERS, keys.UNRESOLVED, keys.dead_letters_of(job), keys.DEAD_LETTER_IDS):
                removing.zrem(sorted_set, name)
        await removing.execute()
    return len(resolved)


async def _oldest(client: Redis, among: str, before: datetime, start: int) -> Sequence[str]:
    names = await client.zrangebyscore(among, "-inf", f"({microseconds(before)}", start, AT_ONCE)
    return cast("list[str]", names)
