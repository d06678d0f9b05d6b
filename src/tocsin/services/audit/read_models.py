"""The read models equal the events (I8): the history, KV `definitions` and KV `locks`.

The history is compared up to its own position in the log. KV may lag behind the events, or be ahead of the events read so far. It is
read before and after, and is correct if one of the reads is.

Memory: the record of each open execution, and the ledger of each job.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from ...domain import history, ledger
from ...domain.events import ExecutionFact, LedgerFact, Message, PolicyDefined, Recorded
from ...domain.execution_record import ExecutionRecord
from ...domain.job_record import Registration
from ...domain.ledger import Ledger
from ...domain.text import counted
from ...ports import Clock, ExecutionRow, Projections
from ...subjects import Bucket, Stream, token
from . import check
from .check import Comparison, Key, Violation

_FIELDS: Final = ("status", "trigger", "scheduled_time", "completed_at", "attempt", "worker", "error", "duration_ms")
_OPEN: Final = frozenset({"pending", "running"})


class ReadModels:
    """Folds the content of all read models."""

    def __init__(self, *, upto: int) -> None:
        """Compare the history up to the sequence `upto` of the log."""
        self._upto = upto
        self._open: dict[Key, ExecutionRecord] = {}
        self._over: set[Key] = set()
        self._ledgers: dict[str, Ledger] = {}
        self.executions = 0

    def take(self, recorded: Recorded[Message]) -> ExecutionRecord | None:
        """Take one more event; return the expected record of an ended execution."""
        match recorded.message:
            case ExecutionFact() if recorded.sequence <= self._upto:
                return self._execution(recorded, check.key_of(recorded.message))
            case LedgerFact() as fact:
                self._ledgers[fact.job] = ledger.evolve(self._ledgers.get(fact.job, ledger.initial), recorded)
            case _:
                pass
        return None

    def _execution(self, recorded: Recorded[Message], key: Key) -> ExecutionRecord | None:
        if key in self._over:
            return None
        if key not in self._open:
            self.executions += 1
        record = history.evolve(self._open.get(key), recorded)
        if record is None or record.status in _OPEN:
            if record is not None:
                self._open[key] = record
            return None
        self._open.pop(key, None)
        self._over.add(key)
        return record

    def has(self, key: Key) -> bool:
        return key in self._open or key in self._over

    def definitions(self, looks: Sequence[Mapping[str, bytes]]) -> Iterator[Violation]:
        """Return the keys of KV `definitions` that differed from the ledgers at every read."""
        expected = {
            token(job): (job, registration.encode())
            for job, state in self._ledgers.items()
            if (registration := Registration.of(state)) is not None
        }
        for key in sorted(expected.keys() | {key for look in looks for key in look}):
            job, value = expected.get(key, (key, None))
            shown = [look.get(key) for look in looks]
            if value not in shown:
                yield Violation("I8", check.job(job), f"KV `definitions` {_otherwise(value, shown[-1])}")

    def locks(self, looks: Sequence[Mapping[str, bytes]]) -> Iterator[Violation]:
        """Return keys of KV `locks` with a finished holder at every read.

        A held lock may be missing there.
        """
        over = {execution_id for _, execution_id in self._over} - {execution_id for _, execution_id in self._open}
        for key in sorted(looks[-1]):
            holders = {_holder(look.get(key)) for look in looks}
            if holders <= over:
                yield Violation("I8", key, f"KV `locks` shows {_holder(looks[-1][key])} as its holder, which is over")


def differing(record: ExecutionRecord, row: ExecutionRow | None) -> Iterator[Violation]:
    """Return the fields of the history that differ from the events of an execution."""
    entity = check.execution(record.job, record.execution_id)
    if row is None:
        yield Violation("I8", entity, f"the history does not show it, and it {_verb(record.status)}")
        return
    if row.job_name != record.job:
        yield Violation("I8", entity, f"the history shows it as one of {row.job_name}")
    for field in _FIELDS:
        shown, expected = getattr(row, field), getattr(record, field)
        if shown != expected:
            yield Violation("I8", entity, f"the history shows `{field}` as {shown}, and its facts say {expected}")


def _otherwise(value: bytes | None, shown: bytes | None) -> str:
    if value is None:
        return "shows it, but the job does not exist"
    return "does not show it" if shown is None else "shows it otherwise than its ledger says"


def _holder(value: bytes | None) -> str:
    return "" if value is None else str(json.loads(value).get("execution_id"))


def _verb(status: str) -> str:
    return status if status in {"completed", "failed"} else f"was {status}"


LOOKS: Final = (0.0, 0.5, 2.0)
"""Seconds before each read of KV after the events: a difference may only be late."""


class Rows(Protocol):
    """The part of `ports.History` that a comparison uses."""

    async def offset(self, stream: Stream, /) -> int: ...

    async def execution(self, execution_id: str, /) -> ExecutionRow | None: ...

    async def count(self) -> int: ...


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
        self._missing: dict[str, list[Violation]] = {}
        """The differences of executions whose beginning the history does not have."""
        self._shared = 0
        """Executions that the history leaves out, because another job had their ids first."""
        self._was_off = False
        """A policy kept the history from recording executions, at least for a time."""

    async def begin(self) -> None:
        """Read KV, the history's size, and its position.

        The history grows meanwhile. Read in this order, it has at most as many executions as the facts up to its position.
        """
        self._executions = await self._history.count()
        self._models = ReadModels(upto=await self._history.offset(Stream.LOG))
        await self._look()

    async def take(self, recorded: Recorded[Message]) -> None:
        if isinstance(recorded.message, PolicyDefined) and recorded.message.enable_job_history is False:
            self._was_off = True
        if (record := self._models.take(recorded)) is not None:
            row = await self._history.execution(record.execution_id)
            if row is not None and row.job_name != record.job and self._models.has((row.job_name, row.execution_id)):
                self._shared += 1
            elif row is None or (row.definition is None and record.definition is not None):
                self._missing[record.execution_id] = list(differing(record, row))
            else:
                self._found += differing(record, row)

    async def finish(self) -> Comparison:
        extra = self._executions - (self._models.executions - self._shared)
        remarks: tuple[str, ...] = ()
        if extra > 0:
            remarks = (f"the history holds {counted(extra, 'execution')} that these facts do not",)
        if self._shared:
            number = counted(self._shared, "execution")
            remarks += (f"the history leaves out {number}, because another job had an execution of the same id first",)
        missing = [violation for violations in self._missing.values() for violation in violations]
        if missing and self._was_off:
            number = counted(len(self._missing), "execution")
            remarks += (f"the history lacks {number}, or their beginning: a policy switched it off for a time",)
            missing = []
        return Comparison((*missing, *self._found, *await self._keys()), remarks)

    async def _keys(self) -> list[Violation]:
        violations: list[Violation] = []
        for pause in LOOKS:
            if pause:
                await self._clock.sleep(pause)
            await self._look()
            violations = [*self._models.definitions(self._definitions), *self._models.locks(self._locks)]
            if not violations:
                break
        return violations

    async def _look(self) -> None:
        self._definitions.append(await self._projections.entries(Bucket.DEFINITIONS))
        self._locks.append(await self._projections.entries(Bucket.LOCKS))
