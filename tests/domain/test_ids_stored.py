"""Ids and draws that logs hold already: a newer version makes the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import NOON
from tocsin.domain import ids

PARTS = st.lists(st.text(max_size=8), min_size=1, max_size=4)


def public_id(publisher: str, *, key: str | None = None, message_id: str | None = None) -> str:
    return ids.public_trigger_id(publisher, "nightly", NOON, key=key, message_id=message_id, sequence=7)


@pytest.mark.parametrize(
    ("made", "stored"),
    [
        (ids.occurrence_id("nightly", NOON), "01a1f8d3-ea00-7547-a8c6-412a2da51ca4"),
        (ids.shard_execution_id(ids.occurrence_id("nightly", NOON), "a"), "01a1f8d3-ea00-72d8-b7c4-4e663dee0ec0"),
        (ids.passed_id("nightly", NOON), "01a1f8d3-ea00-7530-a6e2-19f1ff33cb42"),
        (ids.trigger_id("nightly", "m", NOON), "01a1f8d3-ea00-7ee0-94f7-0351e9384d15"),
        (ids.sequence_trigger_id("nightly", 7, NOON), "01a1f8d3-ea00-7ac8-8d3f-5749a26ea67b"),
        (public_id("shop", key="m"), "016f5e66-e800-7764-a4b0-409d798e1449"),
        (public_id("shop", message_id="m"), "01a1f8d3-ea00-7c9d-aa8c-f3869f0c7679"),
        (public_id(""), "01a1f8d3-ea00-7a98-b057-f9df3396f134"),
        (ids.replay_id("nightly", "letter", 2, NOON), "01a1f8d3-ea00-7f76-9d31-0797010d7823"),
        (ids.backfill_id("nightly", "november", NOON), "01a1f8d3-ea00-7e61-9ca0-f129c2edd079"),
        (ids.event_id("missed", "nightly", NOON, "a"), "01a1f8d3-ea00-7b9d-981b-297771baffa1"),
        (ids.job_id("nightly", NOON), "01a1f8d3-ea00-799d-9da3-b3341b0e8d73"),
    ],
)
def test_an_id_is_as_it_was_stored(made: str, stored: str) -> None:
    assert made == stored


def test_a_token_is_as_it_was_stored() -> None:
    assert ids.report_token(b"key", "id", "main", 1) == "5ddbe0abc90d437899e3d9be8105ec11"


def test_a_fingerprint_is_as_it_was_stored() -> None:
    assert ids.fingerprint(b"key") == "6b9ea3db83632776"


@pytest.mark.parametrize(
    ("parts", "drawn"),
    [
        (("a",), 0.9516190897498171),
        (("nightly", "main", "1"), 0.07028522832210715),
        (("nightly", "main", "2"), 0.21356614433951404),
    ],
)
def test_a_draw_is_as_it_was(parts: tuple[str, ...], drawn: float) -> None:
    assert ids.draw(*parts) == pytest.approx(drawn, abs=1e-15)


def test_draws_fill_their_range() -> None:
    drawn = [ids.draw(str(number)) for number in range(1000)]
    assert -1 <= min(drawn) < -0.99
    assert 0.98 < max(drawn) < 1


@given(PARTS, PARTS)
def test_kinds_of_ids_never_meet(one: list[str], other: list[str]) -> None:
    job, name = one[0], other[0]
    made = [
        ids.occurrence_id(job, NOON),
        ids.passed_id(job, NOON),
        ids.trigger_id(job, name, NOON),
        ids.keyed_trigger_id(job, name),
        *(
            ids.public_trigger_id(publisher, job, NOON, key=key, message_id=message_id, sequence=7)
            for publisher in ("", "shop")
            for key, message_id in ((name, None), (None, name or "-"), (None, None))
        ),
        ids.sequence_trigger_id(job, 7, NOON),
        ids.replay_id(job, name, 1, NOON),
        ids.backfill_id(job, name, NOON),
        ids.shard_execution_id(ids.occurrence_id(job, NOON), name),
        ids.event_id("missed", job, NOON, name),
        ids.job_id(job, NOON),
    ]
    assert len(set(made)) == len(made)
