"""Facts as they come, of both streams, in one sequence."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from .. import subjects
from ..domain.events import Message, Recorded
from ..ports import Batch, EventLog
from ..subjects import DecodeError, Stream

_AHEAD: Final = 16


def filters(job: str | None = None) -> dict[Stream, tuple[str, ...]]:
    """The filters over the facts of a job, or of all: what was decided, not what was asked or announced."""
    name = job or subjects.ANY
    return {
        Stream.LEDGER: (subjects.ledger(name),),
        Stream.LOG: (
            subjects.execution(name, subjects.ANY),
            subjects.lock(name),
            subjects.lock(name, subjects.ANY),
            subjects.dead_letter(name, subjects.ANY),
        ),
    }


async def newest(log: EventLog, job: str | None = None) -> dict[Stream, int]:
    """The last sequence of each stream that holds a fact of a job, or of all."""
    return {stream: max([await _newest(log, one) for one in some]) for stream, some in filters(job).items()}


async def follow(
    log: EventLog, job: str | None = None, *, after: Mapping[Stream, int]
) -> AsyncGenerator[Recorded[Message], None]:
    """Every fact behind the given sequences, for ever; each stream in its order, the two as they come."""
    ahead: asyncio.Queue[Batch | BaseException] = asyncio.Queue(_AHEAD)

    async def read(stream: Stream, some: tuple[str, ...]) -> None:
        try:
            async for batch in log.follow(stream, *some, after=after.get(stream, 0)):
                await ahead.put(batch)
        except Exception as error:  # noqa: BLE001 - raised again below, in the reader's own task
            await ahead.put(error)

    readers = [asyncio.create_task(read(stream, some)) for stream, some in filters(job).items()]
    try:
        while True:
            batch = await ahead.get()
            if isinstance(batch, BaseException):
                raise batch
            for recorded in batch.messages:
                yield recorded
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _newest(log: EventLog, one: str) -> int:
    try:
        found = await log.last(one)
    except DecodeError as error:
        return error.sequence or 0
    return found.sequence if found else 0
