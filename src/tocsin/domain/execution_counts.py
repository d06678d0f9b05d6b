"""Numbers of ended executions by job and time.

The history keeps them beside its rows, so that a long time is counted at once. An execution is counted when it ends, until
its row expires. Thus the counts always equal the ended rows.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from .execution_record import ExecutionRecord

PERIOD: Final = timedelta(minutes=5)
"""The width of a count. The offset of each time zone is a multiple, so that local days consist of whole periods."""
NO_DEFINITION: Final = -1
"""Stands for the definition of an execution whose definition is unknown."""

ANNOUNCED: Final = "announced"
"""The counted status of a skip that only announces an instant that did not fire.

The job was paused or disabled, or the clocks skipped the local time, so the schedule itself has their number.
"""
ANNOUNCEMENTS: Final = frozenset({"disabled", "dst_skip"})
"""The reasons of such skips."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class CountKey(NamedTuple):
    """The executions that are counted together. `period`: the number of the period since 1970."""

    job: str
    period: int
    definition: int
    trigger: str
    status: str


def period_of(at: datetime) -> int:
    """Return the number of the period of an instant, in UTC by default."""
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // PERIOD


def start_of(period: int) -> datetime:
    return _EPOCH + period * PERIOD


def counted_status(status: str, reason: str | None) -> str:
    """Return the status under which an execution is counted."""
    return ANNOUNCED if status == "skipped" and reason in ANNOUNCEMENTS else status


def count_key(record: ExecutionRecord) -> CountKey | None:
    """Return the count to which an execution belongs; None: it has not ended."""
    if record.completed_at is None:
        return None
    definition = NO_DEFINITION if record.definition is None else record.definition
    status = counted_status(record.status, record.reason)
    return CountKey(record.job, period_of(record.scheduled_time), definition, record.trigger, status)


def count_changes(before: Mapping[str, ExecutionRecord], after: Iterable[ExecutionRecord]) -> dict[CountKey, int]:
    """Return the changes of counts; `before` holds the earlier records by id."""
    changes = Counter[CountKey]()
    for record in after:
        old = before.get(record.execution_id)
        old_key, new_key = None if old is None else count_key(old), count_key(record)
        if old_key == new_key:
            continue
        if old_key is not None:
            changes[old_key] -= 1
        if new_key is not None:
            changes[new_key] += 1
    return {key: change for key, change in changes.items() if change}
