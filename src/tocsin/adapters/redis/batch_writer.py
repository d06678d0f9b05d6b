"""Recording of a batch of facts in one Redis transaction."""

from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast

from pydantic_core import from_json
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import WatchError

from ...domain import dead_letter, history, job_record
from ...domain.events import Message, Recorded
from ...domain.execution_counts import count_changes, count_key
from ...domain.execution_record import ExecutionRecord, last_runs
from ...domain.totals import growth_of_ledger, growth_of_log
from ...ports.queries import microseconds
from ...subjects import Stream
from ..history.rows import LetterKeys, RecorderCache, offset_conflict
from . import counts, keys, summaries, totals
from .keys import Hash, execution_record, read_each


class BatchWriter:
    """Recorder of an installation's streams, with one batch of each stream at a time."""

    def __init__(self, client: Redis, installation: str) -> None:
        self._client = client
        self._installation = installation
        self._cache = RecorderCache()

    async def record(
        self, stream: Stream, messages: Sequence[Recorded[Message]], *, after: int, upto: int, opens: bool = True
    ) -> None:
        place = keys.place(self._installation, stream)
        self._cache.begin(stream, after)
        async with self._client.pipeline(transaction=True) as transaction:
            await transaction.watch(place)
            if int(await transaction.get(place) or 0) != after:
                raise offset_conflict(stream, after)
            try:
                if stream is Stream.LEDGER:
                    await self._record_jobs(transaction, messages)
                else:
                    await self._record_executions(transaction, messages, opens=opens)
                transaction.set(place, upto)
                await transaction.execute()
            except WatchError:
                self._cache.forget(stream)
                raise offset_conflict(stream, after) from None
            except BaseException:
                self._cache.forget(stream)
                raise
        self._cache.committed(stream, upto)

    async def _record_executions(
        self, transaction: Pipeline, messages: Sequence[Recorded[Message]], *, opens: bool
    ) -> None:
        known, missing = self._cache.executions.recall(history.executions_of(messages))
        for stored in await _executions_of(self._client, missing):
            known[stored["execution_id"]] = keys.execution_record(stored)
        changed = history.fold(known, messages, opens=opens)
        letters, resolved = dead_letter.dead_letters(messages), dead_letter.resolved(messages)
        letter_keys = LetterKeys(await self._letter_jobs(LetterKeys.candidates({*letters, *resolved})))
        growth = growth_of_log(known, changed, messages, letters.values())
        total_names = await totals.known_names(self._client, growth, self._cache)
        transaction.multi()  # type: ignore[no-untyped-call]
        for name, record in changed.items():
            _write_execution(transaction, record, known.get(name))
        for letter_name, letter in letters.items():
            _write_dead_letter(transaction, letter, letter_keys.of(*letter_name))
        for job, letter_id in resolved:
            key = letter_keys.of(job, letter_id)
            transaction.hset(keys.dead_letter(key), "resolved", "1")
            transaction.zrem(keys.UNRESOLVED, key)
        counts.change(transaction, count_changes(known, changed.values()))
        summaries.record(transaction, last_runs(known, changed.values()))
        totals.add(transaction, growth, total_names, self._cache)
        self._cache.executions.keep(changed)

    async def _record_jobs(self, transaction: Pipeline, messages: Sequence[Recorded[Message]]) -> None:
        names = list(job_record.jobs_of(messages))
        known, _ = self._cache.jobs.recall(names)
        stored = await self._stored_jobs(names)
        known |= {name: keys.job_record(job) for name, job in stored.items() if name not in known}
        changed = job_record.fold(known, messages)
        transaction.multi()  # type: ignore[no-untyped-call]
        for name, record in changed.items():
            definition = record.definition.model_dump(mode="json", exclude_none=True) if record.definition else None
            before = stored[name]["definition"] if name in stored else None
            if record.definition is not None and record.definition.retention is not None:
                transaction.hset(keys.RETENTIONS, name, record.definition.retention)
            elif record.definition is not None:
                transaction.hdel(keys.RETENTIONS, name)
            transaction.hset(keys.JOBS, name, keys.job_text(record, definition or before))
        counts.record_passed(transaction, messages)
        totals.add(transaction, growth_of_ledger(messages), {}, self._cache)
        self._cache.jobs.keep({name: record.without_definition() for name, record in changed.items()})

    async def _letter_jobs(self, candidates: Sequence[str]) -> dict[str, str]:
        jobs = await read_each(
            self._client, candidates, lambda reading, key: reading.hget(keys.dead_letter(key), "job_name")
        )
        return {key: job for key, job in zip(candidates, jobs, strict=True) if job is not None}

    async def _stored_jobs(self, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        if not names:
            return {}
        texts = await self._client.hmget(keys.JOBS, list(names))
        return {name: from_json(text) for name, text in zip(names, texts, strict=True) if text is not None}


async def _executions_of(client: Redis, ids: Sequence[str]) -> list[Hash]:
    """Return the hashes of some executions, if they exist."""
    hashes = await read_each(client, ids, lambda reading, name: reading.hgetall(keys.execution(name)))
    return [stored for stored in hashes if stored]


def remove_execution(transaction: Pipeline, record: ExecutionRecord) -> None:
    name = record.execution_id
    transaction.delete(keys.execution(name))
    for sorted_set in _scores(record):
        transaction.zrem(sorted_set, name)
    transaction.zrem(keys.ended(record.status), keys.ended_member(record))
    if (key := count_key(record)) is not None:
        counts.change(transaction, {key: -1})


def _write_execution(transaction: Pipeline, record: ExecutionRecord, before: ExecutionRecord | None) -> None:
    name, key = record.execution_id, keys.execution(record.execution_id)
    scores, old_scores = _scores(record), {} if before is None else _scores(before)
    transaction.hset(key, mapping=keys.execution_hash(record))
    for sorted_set in old_scores.keys() - scores.keys():
        transaction.zrem(sorted_set, name)
    if record.completed_at is not None:
        ended_at = microseconds(keys.aware(record.completed_at))
        transaction.zadd(keys.ended(record.status), {keys.ended_member(record): ended_at})
    for sorted_set, score in scores.items():
        if old_scores.get(sorted_set) != score:
            transaction.zadd(sorted_set, {name: score})


def _scores(record: ExecutionRecord) -> dict[str, int]:
    """Return the sorted sets that contain an execution, with its score in each."""
    scores = dict.fromkeys(_sets(record), microseconds(keys.aware(record.scheduled_time)))
    scores |= {keys.EXECUTION_IDS: 0, keys.STARTED: microseconds(keys.aware(record.started_at))}
    if record.queue is not None and (state := record.job_state) is not None:
        ended_at = 0 if record.completed_at is None else microseconds(keys.aware(record.completed_at))
        scores[keys.in_queue(record.queue, state)] = ended_at
    if record.duration_ms is not None:
        scores[keys.DURATION] = record.duration_ms
    return scores


def _sets(record: ExecutionRecord) -> Iterator[str]:
    yield keys.EXECUTIONS
    yield keys.executions_by("job", record.job)
    yield keys.executions_by("status", record.status)
    yield keys.executions_by("trigger", record.trigger)
    for tag in record.tags:
        yield keys.executions_by("tag", tag)
    if record.occurrence_id is not None:
        yield keys.executions_by("occurrence", record.occurrence_id)
    if record.error is not None:
        yield keys.WITH_ERROR
    if record.status in {"completed", "failed"}:
        yield keys.results_of(record.job, record.status)


def _write_dead_letter(transaction: Pipeline, letter: dead_letter.Letter, key: str) -> None:
    transaction.hset(keys.dead_letter(key), mapping=keys.dead_letter_hash(letter))
    transaction.zadd(keys.DEAD_LETTER_IDS, {key: 0})
    at = microseconds(keys.aware(getattr(letter.message, "last_attempt", letter.time)))
    for sorted_set in (keys.DEAD_LETTERS, keys.UNRESOLVED, keys.dead_letters_of(letter.message.job)):
        transaction.zadd(sorted_set, {key: at})


AT_ONCE: Final = 1_000


async def expire(client: Redis, *, now: datetime, after: timedelta) -> int:
    """Remove some expired executions and resolved dead letters; return how many."""
    stored = cast("Hash", await client.hgetall(keys.RETENTIONS))
    cutoffs = {job: now - timedelta(seconds=float(seconds)) for job, seconds in stored.items()}
    removed = await _executions(client, keys.EXECUTIONS, now - after, but=cutoffs)
    for job, cutoff in cutoffs.items():
        removed += await _executions(client, keys.executions_by("job", job), cutoff)
    removed += await _dead_letters(client, now - after)
    newest = max((now - after, *cutoffs.values()))
    removed += await counts.expire_passed(client, lambda job: cutoffs.get(job, now - after), newest)
    if not removed:
        await totals.forget_jobs(client)
    return removed


async def _executions(client: Redis, among: str, before: datetime, *, but: Container[str] = ()) -> int:
    start = 0
    while names := await _oldest(client, among, before, start):
        start += len(names)
        records = [execution_record(stored) for stored in await _executions_of(client, names)]
        old = [
            record
            for record in records
            if record.job not in but and record.completed_at is not None and record.completed_at < before
        ]
        async with client.pipeline(transaction=True) as removing:
            for record in old:
                remove_execution(removing, record)
            await removing.execute()
        if old:
            return len(old)
    return 0


async def _dead_letters(client: Redis, before: datetime) -> int:
    old = await _oldest(client, keys.DEAD_LETTERS, before, 0)
    fields = await read_each(
        client, old, lambda reading, name: reading.hmget(keys.dead_letter(name), "resolved", "job_name")
    )
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
