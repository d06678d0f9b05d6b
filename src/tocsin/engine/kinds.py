"""The kinds of state that stages look at."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, TypeAlias

from .. import subjects
from ..domain import dead_letter, execution, queue
from ..domain.dead_letter import DeadLetter
from ..domain.definition import JobDefinition
from ..domain.events import Message, Recorded, Shard
from ..domain.execution import Execution
from ..subjects import Bucket
from .step import Reading, Ref, Scope, Sources

Events: TypeAlias = Sequence[Recorded[Message]]

EXECUTION: Final = Scope("execution", execution.initial, execution.evolve, is_over=lambda state: state.is_over)
DEAD_LETTER: Final = Scope("dead letter", dead_letter.initial, dead_letter.evolve)
QUEUE: Final = Scope("queue", queue.initial, queue.evolve)
PUBLIC_EVENT: Final[Scope[Message | None]] = Scope("public event", None, lambda _, recorded: recorded.message)
"""The newest public event on a subject."""


def execution_state(job: str, execution_id: str) -> Ref[Execution]:
    """Refer to an execution."""
    return EXECUTION(subjects.execution(job, execution_id))


def dead_letter_state(job: str, id: str) -> Ref[DeadLetter]:  # noqa: A002 - the field is called so
    """Refer to a dead letter."""
    return DEAD_LETTER(subjects.dead_letter(job, id))


FACTS: Final[Reading[str, Events]] = Reading("events")
"""The events of a scope, oldest first."""
RANGE: Final[Reading[tuple[str, int], Events]] = Reading("events after")
"""The events on a subject or filter after a number: the key is (filter, number)."""
CANNOT_COME: Final[Reading[tuple[str, datetime], bool]] = Reading("end of an execution that left")
"""Whether an execution without a state cannot begin any more, so that it is over: the key is (scope, time of the request that names it)."""
TAKEN: Final[Reading[tuple[str, int], bool]] = Reading("place of a stage")
"""Whether a stage has taken an event: the key is (stage, number)."""
TAKEN_BEFORE: Final[Reading[tuple[str, str, int], bool]] = Reading("inputs before a place")
"""Whether a stage has taken all inputs of a stream before a sequence: the key is (stage, stream, sequence)."""
DEFINITION: Final[Reading[tuple[str, int], JobDefinition]] = Reading("definition")
"""The definition of a job that an event stored: the key is (job, number)."""
REGISTERED: Final[Reading[tuple[str, int], tuple[datetime, datetime]]] = Reading("registration")
"""The times (UTC) from which the first registration of a job with a definition is in force and was stored: the key is (job, number)."""
IN_FORCE: Final[Reading[tuple[str, int | None], tuple[JobDefinition, int] | None]] = Reading("definition in force")
"""The definition of a job and its number that were in force at an event; None: there was no job.

The key is (job, number), without a number for now.
"""
SHARD_MAP: Final[Reading[int, tuple[Shard, ...]]] = Reading("shard map")
"""The shards of the map that an event stored, by its number; 0: there is no map, and there are no shards."""
NEWEST_SHARD_MAP: Final[Reading[None, tuple[int, tuple[Shard, ...]]]] = Reading("newest shard map")
"""The version of the newest shard map, and its shards. The key is None."""
LOG_TIME: Final[Reading[None, datetime]] = Reading("time of the log")
"""The time (UTC) by the log's own clock. The key is None."""


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
