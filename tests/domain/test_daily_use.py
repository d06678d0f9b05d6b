"""The bytes of a day: each event counts once, on the day on which the log stored it."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from tests.domain.given import ID, JOB, NOON, admitted, first_tasks, recorded
from tocsin.domain import daily_use
from tocsin.domain.events import Completed, Message, Namespace, Planned, Recorded, validated

DONE = Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step="main", attempt=1)
SIZE = len(DONE.encode())


def events(*times: datetime, first: int = 1) -> list[Recorded[Message]]:
    [one] = recorded([DONE])
    return [Recorded(DONE, one.subject, number, time) for number, time in enumerate(times, first)]


def counted(entry: bytes | None, *times: datetime, first: int = 1) -> bytes:
    after = daily_use.with_later(entry, events(*times, first=first))
    assert after is not None
    return after


def test_events_of_the_day_add_up() -> None:
    entry = counted(None, NOON, NOON)
    assert daily_use.later_bytes(entry, NOON) == 2 * SIZE
    entry = counted(entry, NOON, NOON, NOON, first=2)  # the second event is read again
    assert daily_use.later_bytes(entry, NOON) == 4 * SIZE
    assert daily_use.with_later(entry, events(NOON, NOON)) is None


def test_next_day_begins_with_nothing() -> None:
    tomorrow = NOON + timedelta(days=1)
    entry = counted(None, NOON)
    assert daily_use.later_bytes(entry, tomorrow) == 0
    entry = counted(entry, tomorrow, first=2)
    assert daily_use.later_bytes(entry, tomorrow) == SIZE
    assert daily_use.later_bytes(entry, NOON) == SIZE  # the clock of this process is behind
    entry = counted(entry, NOON, first=3)  # an event of yesterday that is read late
    assert daily_use.later_bytes(entry, tomorrow) == SIZE
    assert msgspec.json.decode(entry)["sequence"] == 3


def test_days_are_those_of_utc() -> None:
    entry = counted(None, datetime(2026, 3, 1, 23, 59, tzinfo=UTC))
    assert daily_use.later_bytes(entry, datetime.fromisoformat("2026-03-02T00:30:00+02:00")) == SIZE


@pytest.mark.parametrize(
    "entry",
    [b"", b"[]", b"{}", b'{"day": 1}', b'{"day": "2999-01-01", "bytes": 7}', b'{"day": "0001-01-01", "bytes": 7}'],
)
def test_wrong_entry_is_replaced(entry: bytes) -> None:
    assert daily_use.later_bytes(entry, NOON) == 0
    assert daily_use.later_bytes(counted(entry, NOON), NOON) == SIZE


def test_first_events_do_not_count_later() -> None:
    assert daily_use.counts_later(DONE)
    assert daily_use.counts_later(first_tasks(admitted())[0])
    assert not daily_use.counts_later(admitted())


def test_execution_that_waits_is_stored_twice() -> None:
    quota, first = Namespace(name="payments", bytes_per_day=1), admitted()
    waiting = validated(Planned, first.document(exclude={"type", "fence", "recovered_at"}))
    assert daily_use.need_of(first, 3, quota).bytes == 3 * len(first.encode())
    assert daily_use.need_of(waiting, 1, quota).bytes == 2 * len(waiting.encode())
