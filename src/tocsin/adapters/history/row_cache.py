"""What a recorder remembers of the rows that it wrote: whoever moved the place the last time need not read them again."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ...domain.history import ExecutionRecord
from ...domain.job_record import JobRecord

OPEN_EXECUTIONS: Final = 20_000
JOBS: Final = 100_000
"""How many records of what is still going on are kept in memory."""

R = TypeVar("R", ExecutionRecord, JobRecord)


@dataclass(slots=True)
class RowCache(Generic[R]):
    """The records of what is not over, as they are stored, for as long as nobody else stores any."""

    capacity: int
    is_over: Callable[[R], bool]
    records: OrderedDict[str, R] = field(default_factory=OrderedDict)

    def recall(self, names: Iterable[str]) -> tuple[dict[str, R], list[str]]:
        """The records of some names as far as they are remembered, and the names of the others."""
        found, missing = dict[str, R](), list[str]()
        for name in names:
            if (record := self.records.get(name)) is None:
                missing.append(name)
            else:
                found[name] = record
        return found, missing

    def keep(self, records: Mapping[str, R]) -> None:
        """Remember what is stored now."""
        for name, record in records.items():
            if self.is_over(record):
                self.records.pop(name, None)
            else:
                self.records[name] = record
                self.records.move_to_end(name)
        while len(self.records) > self.capacity:
            self.records.popitem(last=False)


def executions() -> RowCache[ExecutionRecord]:
    """A memory of executions."""
    return RowCache(OPEN_EXECUTIONS, lambda record: record.completed_at is not None)


def jobs() -> RowCache[JobRecord]:
    """A memory of jobs."""
    return RowCache(JOBS, lambda record: record.deleted)
