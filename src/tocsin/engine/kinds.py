"""The kinds of state that stages look at."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, TypeAlias, TypeGuard

from .. import subjects, telemetry
from ..domain import dead_letter, execution, queue
from ..domain.dead_letter import DeadLetter
from ..domain.definition import JobDefinition
from ..domain.events import Defined, Message, Recorded, Shard, ShardsDefined
from ..domain.execution import Execution
from ..domain.ledger import Ledger
from ..domain.queue import Queue
from ..ports import NotAllowed, StaleRead
from ..subjects import Bucket
from .step import Reading, Ref, Scope, Sources

_log = telemetry.get_logger("tocsin.engine")

Events: TypeAlias = Sequence[Recorded[Message]]

# --- folded ------------------------------------------------------------------------------------------------------------


def _newest_event(before: Message | None, recorded: Recorded[Message]) -> Message | None:
    return before if subjects.is_foreign(recorded) else recorded.message


EXECUTION: Final = Scope("execution", execution.initial, execution.evolve)
DEAD_LETTER: Final = Scope("dead letter", dead_letter.initial, dead_letter.evolve)
QUEUE: Final = Scope("queue", queue.initial, queue.evolve)
PUBLIC_EVENT: Final[Scope[Message | None]] = Scope("public event", None, _newest_event)
"""The newest public event on a subject."""


def execution_state(job: str, execution_id: str) -> Ref[Execution]:
    """Refer to an execution."""
    return EXECUTION(subjects.execution(job, execution_id))


def dead_letter_state(job: str, id: str) -> Ref[DeadLetter]:  # noqa: A002 - the field is called so
    """Refer to a dead letter."""
    return DEAD_LETTER(subjects.dead_letter(job, id))


def queue_state(name: str) -> Ref[Queue]:
    """Refer to what operators decided about a queue."""
    return QUEUE(subjects.queue(name))


# --- read --------------------------------------------------------------------------------------------------------------


async def _facts(sources: Sources, scopes: Sequence[str]) -> Mapping[str, Events]:
    facts: dict[str, Events] = {}
    for stream in {subjects.stream_of(scope) for scope in scopes}:
        of_stream = [scope for scope in scopes if subjects.stream_of(scope) is stream]
        reads = await sources.log.load_each(*of_stream)
        facts.update(zip(of_stream, reads.facts, strict=True))
    return facts


FACTS: Final = Reading("events", _facts)
"""The events of a scope, oldest first. The read may be stale."""


async def _matching(sources: Sources, filters: Sequence[str]) -> Mapping[str, Events]:
    return dict(zip(filters, await asyncio.gather(*map(sources.log.load, filters)), strict=True))


MATCHING: Final = Reading("messages of a filter", _matching)
"""The newest message of each subject that a filter matches, oldest first. The read may be stale."""


async def _never(sources: Sources, keys: Sequence[tuple[str, datetime]]) -> Mapping[tuple[str, datetime], bool]:  # noqa: ARG001
    return dict.fromkeys(keys, False)


CANNOT_COME: Final = Reading("end of an execution that left", _never)
"""Whether an execution without a state cannot begin any more, so that it is over: the key is (scope, time of the request that names it).

Only the log of commits lets executions leave; here a state that is absent may still come.
"""


async def _untaken(sources: Sources, keys: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], bool]:  # noqa: ARG001
    return dict.fromkeys(keys, False)


TAKEN: Final = Reading("place of a stage", _untaken)
"""Whether a stage has taken an event: the key is (stage, number). Only the log of commits knows it."""


async def _tails(sources: Sources, scopes: Sequence[str]) -> Mapping[str, int]:
    return dict(zip(scopes, await sources.log.tails(*scopes), strict=True))


TAIL: Final = Reading("last sequence", _tails)
"""The last sequence in a scope or of a filter, from the stream's leader; 0: there is no message."""


async def _range(sources: Sources, keys: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], Events]:
    ranges: dict[tuple[str, int], Events] = {}
    for subject, after in keys:
        events: list[Recorded[Message]] = []
        while batch := await sources.log.read(subject, after=events[-1].sequence if events else after):
            events += batch
        ranges[subject, after] = events
    return ranges


RANGE: Final = Reading("events after", _range)
"""All events on a subject or filter after a sequence: the key is (filter, sequence)."""


async def _defined(sources: Sources, keys: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], Recorded[Defined]]:
    """Read the newest definition of each job at once, and replaced definitions by their sequence."""
    facts = await sources.log.load_each(*{subjects.definition(job): None for job, _ in keys})
    recorded = [recorded for events in facts.facts for recorded in events]
    defined = {(event.message.job, event.sequence): event for event in recorded if _is_defined(event)}
    for job, sequence in keys:
        if (job, sequence) not in defined:
            event = await sources.log.get(subjects.ledger(job), sequence)
            if event is None or not _is_defined(event):
                raise StaleRead.of(subjects.ledger(job))
            defined[job, sequence] = event
    return {key: defined[key] for key in keys}


def _is_defined(recorded: Recorded[Message]) -> TypeGuard[Recorded[Defined]]:
    """Return whether an event defines a job."""
    return isinstance(recorded.message, Defined)


async def _definitions(sources: Sources, keys: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], JobDefinition]:
    return {key: event.message.definition for key, event in (await _defined(sources, keys)).items()}


DEFINITION: Final = Reading("definition", _definitions, is_lasting=True)
"""The definition of a job that was stored at a sequence of the ledger: the key is (job, sequence)."""


async def _registration_times(sources: Sources, keys: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], datetime]:
    return {key: event.message.created_at or event.time for key, event in (await _defined(sources, keys)).items()}


REGISTERED_AT: Final = Reading("registration", _registration_times, is_lasting=True)
"""The time (UTC) of the first registration of a job whose definition was stored at a sequence of the ledger.

The key is (job, sequence).
"""


async def _counted_since(
    sources: Sources, keys: Sequence[tuple[str, int]]
) -> Mapping[tuple[str, int], datetime | None]:
    try:
        return dict(await _registration_times(sources, keys))
    except NotAllowed as error:  # rights of an older version; the executions must go on
        jobs = sorted({job for job, _ in keys})
        _log.warning("runs counted by name", action="runs-counted-by-name", jobs=jobs, exc_info=error)
        return dict.fromkeys(keys)


COUNTED_SINCE: Final = Reading("start of the count of runs", _counted_since, is_lasting=True, absent_for_s=60.0)
"""The time (UTC) since which the runs of a job are counted: as `REGISTERED_AT`.

None: this NATS user may not read the ledger. All runs of the name count, until a later read is allowed.
"""


async def _in_force(
    sources: Sources, keys: Sequence[tuple[str, int | None]]
) -> Mapping[tuple[str, int | None], tuple[JobDefinition, int] | None]:
    return await sources.ledgers.in_force_each(keys)


IN_FORCE: Final = Reading("definition in force", _in_force)
"""The definition of a job and its sequence that were in force at a sequence of the ledger (None: now).

None: there was no such job.
"""


async def _in_force_now(sources: Sources, jobs: Sequence[str]) -> Mapping[str, tuple[JobDefinition, int] | None]:
    return await sources.ledgers.in_force_now(jobs)


IN_FORCE_NOW: Final = Reading("definition in force now", _in_force_now)
"""The definition of a job and its sequence that are in force now; None: the job does not exist.

Messages of other streams have no place in the ledger. A decision that rests on this reading can come out differently on
a redelivery, so the first that is stored must stand: the guard of one scope decides.
"""


async def _shard_maps(sources: Sources, versions: Sequence[int]) -> Mapping[int, tuple[Shard, ...]]:
    maps: dict[int, tuple[Shard, ...]] = {}
    for version in versions:
        recorded = await sources.log.get(subjects.shard_map(), version) if version else None
        if version and (recorded is None or not isinstance(recorded.message, ShardsDefined)):
            raise StaleRead.of(subjects.shard_map())
        maps[version] = recorded.message.shards if recorded and isinstance(recorded.message, ShardsDefined) else ()
    return maps


SHARD_MAP: Final = Reading("shard map", _shard_maps, is_lasting=True)
"""The shards of the map that was stored at a sequence of the ledger; 0: there is no map, and there are no shards."""


async def _newest_shard_map(sources: Sources, keys: Sequence[None]) -> Mapping[None, tuple[int, tuple[Shard, ...]]]:
    scope = subjects.shard_map()
    tail, stored = await sources.log.tail(scope), await sources.log.load(scope)
    if (stored[-1].sequence if stored else 0) < tail:
        raise StaleRead.of(scope)
    maps = [(r.sequence, r.message.shards) for r in stored if isinstance(r.message, ShardsDefined)]
    return dict.fromkeys(keys, maps[-1] if maps else (0, ()))


NEWEST_SHARD_MAP: Final = Reading("newest shard map", _newest_shard_map)
"""The version of the newest shard map, and its shards. The key is None.

Messages of other streams have no place in the ledger, so the first decision that is stored must stand (`IN_FORCE_NOW`).
"""


async def _ledgers(sources: Sources, jobs: Sequence[str]) -> Mapping[str, tuple[Ledger, int]]:
    return dict(zip(jobs, await asyncio.gather(*map(sources.ledgers.load, jobs)), strict=True))


LEDGER: Final = Reading("ledger", _ledgers)
"""The ledger of a job and its last sequence. The read may be stale."""


async def _entries(
    sources: Sources, keys: Sequence[tuple[Bucket, str]]
) -> Mapping[tuple[Bucket, str], tuple[bytes, int] | None]:
    entries: dict[tuple[Bucket, str], tuple[bytes, int] | None] = {}
    for bucket in {bucket for bucket, _ in keys}:
        of_bucket = [key for key in keys if key[0] is bucket]
        values = await sources.projections.get_each(bucket, [key for _, key in of_bucket])
        entries.update(zip(of_bucket, values, strict=True))
    return entries


ENTRY: Final = Reading("KV entry", _entries)
"""A KV entry and its revision; None: the entry does not exist. The key is (bucket, key)."""


async def _now(sources: Sources, keys: Sequence[None]) -> Mapping[None, datetime]:
    return dict.fromkeys(keys, await sources.log.now())


LOG_TIME: Final = Reading("time of the log", _now)
"""The time (UTC) by the log's own clock. The key is None."""
