"""Ids: the same id for the same thing, in the order of time, from every process."""

import json
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import NOON
from tocsin.domain import ids

INSTANTS = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds
TEXT = st.text(max_size=20)


def on_shard(job: str, shard: str) -> str:
    return ids.shard_execution_id(ids.occurrence_id(job, NOON), shard)


@given(TEXT, INSTANTS, TEXT)
def test_id_is_a_uuid_7_of_the_instant(job: str, at: datetime, shard: str) -> None:
    occurrence = ids.occurrence_id(job, at)
    for uuid in (UUID(occurrence), UUID(ids.shard_execution_id(occurrence, shard))):
        assert (uuid.version, uuid.variant) == (7, "specified in RFC 4122")
        assert uuid.int >> 80 == (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@given(st.tuples(TEXT, TEXT), st.tuples(TEXT, TEXT))
def test_different_things_have_different_ids(one: tuple[str, str], other: tuple[str, str]) -> None:
    same = one == other
    assert (ids.trigger_id(*one, NOON) == ids.trigger_id(*other, NOON)) == same
    assert (on_shard(*one) == on_shard(*other)) == same


def test_a_trigger_never_uses_up_a_scheduled_instant() -> None:
    assert ids.trigger_id("nightly", NOON.isoformat(), NOON) != ids.occurrence_id("nightly", NOON)


@given(INSTANTS, INSTANTS)
def test_ids_sort_by_time(one: datetime, other: datetime) -> None:
    if abs(one - other) >= timedelta(milliseconds=1):
        assert (ids.occurrence_id("a", one) < ids.occurrence_id("a", other)) == (one < other)


@given(st.lists(TEXT, min_size=1, max_size=4))
def test_draw_is_in_range_and_deterministic(parts: list[str]) -> None:
    drawn = ids.draw(*parts)
    assert -1 <= drawn < 1
    assert ids.draw(*parts) == drawn


def test_a_token_needs_the_key() -> None:
    assert ids.report_token(b"one", "id", "step", 1) != ids.report_token(b"other", "id", "step", 1)
    assert ids.report_token(b"one", "id", "step", 1) != ids.report_token(b"one", "id", "step", 2)


@pytest.mark.parametrize(
    ("publisher", "message_id", "answer_id"),
    [
        ("", "order-17", "order-17"),
        ("", "api.order-17", "api%2Eorder-17"),
        ("", None, "seq-7"),
        ("", "seq-8", "seq%2D8"),
        ("", "x" * 129, "seq-7"),
        (None, "order-17", "api.order-17"),
        ("shop", "order-17", "shop.order-17"),
    ],
)
def test_an_answer_names_its_publisher(publisher: str | None, message_id: str | None, answer_id: str) -> None:
    assert ids.answer_id(publisher, message_id, 7) == answer_id


@given(st.lists(st.none() | st.integers() | TEXT))
def test_keyed_digest_is_that_of_json(parts: list[str | int | None]) -> None:
    expected = blake2b(json.dumps(parts).encode(), key=b"key", digest_size=16).hexdigest()
    assert ids.keyed_digest(b"key", *parts) == expected
