"""Follow the facts of both streams, and on request the public events, in one sequence."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from .. import subjects
from ..domain.events import Message, Recorded
from ..ports import Batch, EventLog
from ..subjects import DecodeError, Stream

_AHEAD: Final = 16


def filters(job: str | None = None, *, public: bool = False) -> dict[Stream, tuple[str, ...]]:
    """Return the filters over facts; `public`: and public events."""
    name = job or subjects.ANY
    public_events = [subjects.public_event(subjects.ANY, name), subjects.answers(name)] if public else []
    return {
        Stream.LEDGER: (subjects.ledger(name),),
        Stream.LOG: (
            subjects.execution(name, subjects.ANY),
            subjects.lock(name),
            subjects.lock(name, subjects.ANY),
            subjects.dead_letter(name, subjects.ANY),
            *public_events,
        ),
    }


async def newest(log: EventLog, job: str | None = None, *, public: bool = False) -> dict[Stream, int]:
    """Return the last sequence in each stream that `filters` covers."""
    patterns = filters(job, public=public)
    return {stream: max([await _newest(log, scope) for scope in scopes]) for stream, scopes in patterns.items()}


async def follow(
    log: EventLog, job: str | None = None, *, after: Mapping[Stream, int], public: bool = False
) -> AsyncGenerator[Recorded[Message], None]:
    """Yield facts after the given sequences until the caller stops; with `public`, public events too.

    Each stream keeps its order; the streams are mixed as facts arrive.
    """
    ahead: asyncio.Queue[Batch | BaseException] = asyncio.Queue(_AHEAD)

    async def read(stream: Stream, scopes: tuple[str, ...]) -> None:
        try:
            async for batch in log.follow(stream, *scopes, after=after.get(stream, 0)):
                await ahead.put(batch)
        except Exception as error:  # noqa: BLE001 - raised again below, in the consumer's task
            await ahead.put(error)

    readers = [asyncio.create_task(read(stream, scopes)) for stream, scopes in filters(job, public=public).items()]
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


async def _newest(log: EventLog, scope: str) -> int:
    try:
        newest = await log.last(scope)
    except DecodeError as error:
        return error.sequence or 0
    return newest.sequence if newest else 0
