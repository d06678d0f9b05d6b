"""A recorder's cache of the rows that it wrote.

The recorder that moved the offset last does not need to read them again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ...domain.history import ExecutionRecord
from ...domain.job_record import JobRecord

OPEN_EXECUTIONS: Final = 20_000
JOBS: Final = 100_000
"""The number of open records in memory."""

R = TypeVar("R", ExecutionRecord, JobRecord)


@dataclass(slots=True)
class RowCache(Generic[R]):
    """The records of open executions or of jobs, as they are stored.

    They are valid as long as no other recorder writes.
    """

    capacity: int
    is_over: Callable[[R], bool]
    records: OrderedDict[str, R] = field(default_factory=OrderedDict)

    def recall(self, names: Iterable[str]) -> tuple[dict[str, R], list[str]]:
        """Return the cached records of some names, and the names of the others."""
        cached, missing = dict[str, R](), list[str]()
        for name in names:
            if (record := self.records.get(name)) is None:
                missing.append(name)
            else:
                cached[name] = record
        return cached, missing

    def keep(self, records: Mapping[str, R]) -> None:
        """Remember the stored records."""
        for name, record in records.items():
            if self.is_over(record):
                self.records.pop(name, None)
            else:
                self.records[name] = record
                self.records.move_to_end(name)
        while len(self.records) > self.capacity:
            self.records.popitem(last=False)


def executions() -> RowCache[ExecutionRecord]:
    """Create a cache of executions."""
    return RowCache(OPEN_EXECUTIONS, lambda record: record.completed_at is not None)


def jobs() -> RowCache[JobRecord]:
    """Create a cache of jobs."""
    return RowCache(JOBS, lambda record: record.deleted)
