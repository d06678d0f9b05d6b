"""The reader of read models while events go by (I8)."""

from collections.abc import Mapping
from typing import Final, Protocol

from ...domain.events import Message, Recorded
from ...domain.history import ExecutionRecord
from ...domain.wording import counted
from ...ports import Clock, ExecutionRow, Projections
from ...subjects import Bucket, Stream
from .read_models import ReadModels, differing
from .report import Comparison, Violation

LOOKS: Final = (0.0, 0.5, 2.0)
"""Seconds before each read of KV after the events: a difference may only be late."""


class Rows(Protocol):
    """The part of `ports.History` that a comparison uses."""

    async def offset(self, stream: Stream, /) -> int:
        """See `ports.History`."""
        ...

    async def execution(self, execution_id: str, /) -> ExecutionRow | None:
        """See `ports.History`."""
        ...

    async def count(self) -> int:
        """See `ports.History`."""
        ...


class ProjectionReader:
    """One comparison.

    It starts before the events are read, takes every event, and ends with the differences.
    """

    def __init__(self, history: Rows, projections: Projections, clock: Clock) -> None:
        """Compare these read models with the events; `clock` delays further reads."""
        self._history = history
        self._projections = projections
        self._clock = clock
        self._models = ReadModels(upto=0)
        self._executions = 0
        self._definitions: list[Mapping[str, bytes]] = []
        self._locks: list[Mapping[str, bytes]] = []
        self._found: list[Violation] = []

    async def begin(self) -> None:
        """Read KV, the history's size, and its position.

        The history grows meanwhile. Read in this order, it has at most as many executions as the facts up to its position.
        """
        self._executions = await self._history.count()
        self._models = ReadModels(upto=await self._history.offset(Stream.LOG))
        await self._look()

    async def take(self, recorded: Recorded[Message]) -> None:
        """Take one more event."""
        if (record := self._models.take(recorded)) is not None:
            self._found += await self._differing(record)

    async def finish(self) -> Comparison:
        """Return the differences."""
        more = self._executions - self._models.executions
        remarks = (f"the history holds {counted(more, 'execution')} that these facts do not",) if more > 0 else ()
        return Comparison((*self._found, *await self._keys()), remarks)

    async def _differing(self, record: ExecutionRecord) -> list[Violation]:
        return list(differing(record, await self._history.execution(record.execution_id)))

    async def _keys(self) -> list[Violation]:
        found: list[Violation] = []
        for pause in LOOKS:
            if pause:
                await self._clock.sleep(pause)
            await self._look()
            found = [*self._models.definitions(self._definitions), *self._models.locks(self._locks)]
            if not found:
                break
        return found

    async def _look(self) -> None:
        self._definitions.append(await self._projections.entries(Bucket.DEFINITIONS))
        self._locks.append(await self._projections.entries(Bucket.LOCKS))
