"""The use of a namespace in a day."""

import pytest

from tests.domain.given import NOON, admitted
from tocsin.domain import daily_use
from tocsin.domain.daily_use import DailyUse, Need
from tocsin.domain.events import Namespace, Planned, validated


def test_next_day_begins_with_nothing() -> None:
    use = DailyUse("2026-03-01").plus(Need(2, 300))
    assert use.on("2026-03-01") == DailyUse("2026-03-01", 2, 300)
    assert use.on("2026-03-02") == DailyUse("2026-03-02")


@pytest.mark.parametrize("entry", [None, b"", b"[]", b"{}", b'{"day": 1}', b'{"day": "2999-01-01", "bytes": 7}'])
def test_wrong_entry_counts_nothing(entry: bytes | None) -> None:
    assert daily_use.read(entry, NOON) == DailyUse(NOON.date().isoformat())


def test_execution_that_waits_is_stored_twice() -> None:
    quota, first = Namespace(name="payments", bytes_per_day=1), admitted()
    waiting = validated(Planned, first.document(exclude={"type", "fence", "recovered_at"}))
    assert daily_use.need_of(first, 3, quota).bytes == 3 * len(first.encode())
    assert daily_use.need_of(waiting, 1, quota).bytes == 2 * len(waiting.encode())
