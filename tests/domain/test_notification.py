from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain import ids
from tocsin.domain.notification import MEANINGS, Kind, Notification, bounded

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


@given(st.text(max_size=40), st.integers(1, 20))
def test_bounded_text_is_printable_and_short(text: str, limit: int) -> None:
    shown = bounded(text, limit)
    assert len(shown) <= limit
    assert all(char.isprintable() or char == "\n" for char in shown)


def test_cut_text_says_so() -> None:
    assert bounded("abcdef", 4) == "abc…"
    assert bounded(" abcd ", 4) == "abcd"


def test_every_kind_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Kind)


def test_id_is_the_same_for_the_same_decision() -> None:
    first = ids.notification_id("report", NOON, Kind.FAILED, "ops", "run-1")
    assert first == ids.notification_id("report", NOON, Kind.FAILED, "ops", "run-1")
    assert ids.is_execution_id(first)


@pytest.mark.parametrize(
    "other",
    [
        ("load", Kind.FAILED, "ops", "run-1"),
        ("report", Kind.SLOW, "ops", "run-1"),
        ("report", Kind.FAILED, "pager", "run-1"),
        ("report", Kind.FAILED, "ops", "run-2"),
    ],
)
def test_ids_of_other_notifications_differ(other: tuple[str, Kind, str, str]) -> None:
    job, kind, channel, about = other
    assert ids.notification_id(job, NOON, kind, channel, about) != ids.notification_id(
        "report", NOON, Kind.FAILED, "ops", "run-1"
    )


def test_title_counts_the_others() -> None:
    notification = Notification(id="1", channel="ops", job="report", kind=Kind.FAILED, at=NOON)
    assert notification.title == "report failed"
    grouped = Notification(id="1", channel="ops", job="report", kind=Kind.FAILED, at=NOON, others=1_200)
    assert grouped.title == "report failed (and 1,200 more)"
