"""Timelines of pasts that the real domain made: marks as `why` judges them, and buckets that count them."""

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.services.explain.past import Past, utc
from tests.services.explain.test_random_pasts import STARTS, Command, commands, definitions, lived
from tests.services.timeline.shown import EPOCH, buckets, marks, row
from tocsin.domain import ids
from tocsin.domain.ledger import JobNotFound
from tocsin.ports.queries import InvalidQuery
from tocsin.services.calculations import Effort
from tocsin.services.explain import judge
from tocsin.services.timeline import MAX_BUCKETS, Span, Window
from tocsin.services.timeline.marks import Buckets, marks_of
from tocsin.services.timeline.reader import gaps_of, versions_of

BERLIN = "Europe/Berlin"
STATUSES = {"pending", "running", "completed", "failed", "cancelled", "skipped", "fired"}
WIDTHS = [timedelta(seconds=15), timedelta(minutes=5), timedelta(hours=1), timedelta(days=1)]
DAY = "2026-11-20T"


def window(since: str, until: str) -> Window:
    return Window.of(utc(since), utc(until), 200)


def hourly(**more: object) -> Past:
    return Past(**more).defined(DAY + "09:30")  # type: ignore[arg-type]


@settings(max_examples=120, deadline=None)
@given(
    start=st.sampled_from(STARTS),
    first=definitions,
    then=commands,
    shift=st.integers(-3_600, 8 * 3_600),
    hours=st.integers(1, 30),
    width=st.sampled_from(WIDTHS),
)
def test_marks_agree_with_why_and_buckets_count_them(
    start: datetime, first: dict[str, object], then: list[Command], shift: int, hours: int, width: timedelta
) -> None:
    past = lived(start, first, then)
    begin = start + timedelta(seconds=shift)
    shown = Window.of(begin, begin + timedelta(hours=hours), 200)
    spans = shown.spans(width)
    listed = marks(past, shown.covered(spans))
    instants = Counter(mark.at for mark in listed)
    for mark in listed:
        assert spans[0].start <= mark.at < spans[-1].end
        if instants[mark.at] > 1 and mark.decision == "no-such-local-time":
            continue  # `why` covers the instant that fires there
        [answer] = judge(past.evidence, mark.at)
        assert answer.at == mark.at
        if mark.decision in STATUSES:
            assert (answer.verdict, answer.execution_id) == ("fired", mark.execution_id)
            assert mark.late_by == answer.late_by
        elif mark.decision == "excluded":
            assert answer.verdict in {"excluded", "future-excluded"}, mark
            assert answer.exclusion == mark.reason
        else:
            assert answer.verdict == mark.decision, mark
    counted = buckets(past, shown, width)
    assert counted.is_complete
    assert [Span(bucket.start, bucket.end) for bucket in counted.result()] == list(spans)
    for bucket in counted.result():
        here = [mark for mark in listed if bucket.start <= mark.at < bucket.end]
        expected = Counter[str]()
        for mark in here:
            expected[mark.decision] += mark.count
        if "@every" not in {str(r.definition.schedule)[:6] for r in past.evidence.regimes if r.definition}:
            assert dict(bucket.counts) == expected
        else:  # intervals count from a run that buckets do not read, so a pause may be counted from another
            assert {d: n for d, n in bucket.counts.items() if d in STATUSES} == {
                d: n for d, n in expected.items() if d in STATUSES
            }


@given(
    since=st.datetimes(EPOCH.replace(tzinfo=None), utc("2989-01-01").replace(tzinfo=None)),
    length=st.timedeltas(timedelta(microseconds=1), timedelta(days=3_660)),
    most=st.integers(2, MAX_BUCKETS),
)
def test_buckets_cover_the_window_without_overlap(since: datetime, length: timedelta, most: int) -> None:
    shown = Window.of(since, since + length, most)
    spans = shown.spans(shown.width)
    assert 1 <= len(spans) <= most
    assert spans[0].start <= shown.since < spans[0].end
    assert spans[-1].start < shown.until <= spans[-1].end
    assert all(a.end == b.start and b.end - b.start == shown.width for a, b in pairwise(spans))


@pytest.mark.parametrize(
    ("since", "until", "field"),
    [
        (DAY + "10:00", DAY + "10:00", "until"),
        (DAY + "10:00", DAY + "09:00", "until"),
        ("2026-01-01", "2036-02-01", "until"),
        ("1969-12-31T23:59", "2026-01-01", "since"),
        ("2999-12-31T00:00", "9999-12-31T23:59:59", "until"),
        ("0001-01-01T00:00+01:00", "2026-01-01", "since"),
    ],
)
def test_invalid_window_is_refused(since: str, until: str, field: str) -> None:
    with pytest.raises(InvalidQuery) as refused:
        window(since, until)
    assert refused.value.field == field


TABLE: dict[str, tuple[Past, list[tuple[str, str, dict[str, Any]]]]] = {
    "an instant fires": (
        hourly().ticked(DAY + "10:00").until(DAY + "10:30"),
        [("10:00", "completed", {"status": "completed", "late_by": 0}), ("11:00", "future", {})],
    ),
    "it fires late, by catch-up": (
        hourly().ticked(DAY + "10:20"),
        [("10:00", "completed", {"reason": "catch_up", "late_by": 1_200}), ("11:00", "future", {})],
    ),
    "instants are missed": (
        hourly(catch_up="skip").ticked(DAY + "11:20"),
        [("10:00", "missed", {"late_by": 4_800}), ("11:00", "missed", {"late_by": 1_200})],
    ),
    "the job is paused, and will stay so": (
        hourly().paused(DAY + "09:40").ticked(DAY + "10:00"),
        [("10:00", "paused", {"reason": "too loud"}), ("11:00", "future-paused", {"reason": "too loud"})],
    ),
    "the definition disables the job": (
        hourly(enabled=False).ticked(DAY + "10:00"),
        [("10:00", "disabled", {}), ("11:00", "future-disabled", {})],
    ),
    "no decision is stored yet": (
        hourly().until(DAY + "10:00:30"),
        [("10:00", "undecided", {"late_by": 30}), ("11:00", "future", {})],
    ),
    "a newer definition came before a late decision": (
        hourly().defined(DAY + "10:05", schedule="30 * * * *").ticked(DAY + "10:10"),
        [("10:00", "superseded", {}), ("10:30", "future", {}), ("11:30", "future", {})],
    ),
    "a calendar excludes the day": (
        hourly(exclude=[{"name": "fair", "days": ["2026-11-20"]}]).until(DAY + "10:30"),
        [(at, "excluded", {"reason": "2026-11-20 is a day of fair"}) for at in ("10:00", "11:00")],
    ),
    "a blackout excludes an instant": (
        hourly(blackout=[{"from": DAY + "10:00", "to": DAY + "10:01", "reason": "move"}]).ticked(DAY + "11:00"),
        [
            ("10:00", "excluded", {"reason": f"the blackout from {DAY}10:00 to {DAY}10:01 (move)"}),
            ("11:00", "completed", {}),
        ],
    ),
    "the job is deleted": (hourly().ticked(DAY + "10:00").deleted(DAY + "10:30"), [("10:00", "completed", {})]),
}


@pytest.mark.parametrize("name", TABLE)
def test_decision_of_each_instant(name: str) -> None:
    past, expected = TABLE[name]
    listed = marks(past, window(DAY + "09:00", DAY + "12:00"))
    assert [(mark.at, mark.decision) for mark in listed] == [(utc(DAY + at), decision) for at, decision, _ in expected]
    for mark, (_, _, fields) in zip(listed, expected, strict=True):
        assert {name: getattr(mark, name) for name in fields} == fields


def test_no_instant_of_a_deletion_is_missed() -> None:
    past = hourly(catch_up="once").deleted(DAY + "09:40").defined(DAY + "10:40").ticked(DAY + "12:30")
    shown = window(DAY + "09:00", DAY + "13:00")
    missed = [mark.at for mark in marks(past, shown) if mark.decision == "missed"]
    assert missed == [utc(DAY + "11:00")]
    counted = buckets(past, shown, timedelta(hours=1)).result()
    assert [bucket.start for bucket in counted if "missed" in bucket.counts] == missed


def test_nonexistent_local_time_is_a_mark() -> None:
    past = Past("30 2 * * *", BERLIN).defined("2026-03-27T12:00").ticked("2026-03-28T01:30").ticked("2026-03-29T12:00")
    listed = marks(past, window("2026-03-28", "2026-03-31"))
    assert [(mark.at, mark.decision) for mark in listed] == [
        (utc("2026-03-28T01:30"), "completed"),
        (utc("2026-03-29T01:30"), "no-such-local-time"),
        (utc("2026-03-30T00:30"), "future"),
    ]


def test_executions_on_shards_share_a_mark_by_status() -> None:
    past = hourly().ticked(DAY + "10:00")
    runs = [
        row(utc(DAY + "10:00"), status, shard=shard)
        for status, shard in (("completed", "a"), ("failed", "b"), ("completed", "c"))
    ]
    listed = marks(past, window(DAY + "10:00", DAY + "10:01"), runs)
    assert [(mark.decision, mark.count) for mark in listed] == [("completed", 2), ("failed", 1)]


def test_other_triggers_are_marks_of_their_own() -> None:
    runs = [row(utc(DAY + "10:20"), "failed", trigger="manual", execution_id="1")]
    [mark] = marks(hourly().ticked(DAY + "10:00"), window(DAY + "10:10", DAY + "10:30"), runs)
    assert (mark.decision, mark.reason, mark.execution_id, mark.status) == ("trigger", "manual", "1", "failed")


def test_instant_without_an_execution_has_fired() -> None:
    [mark] = marks(hourly().ticked(DAY + "10:00"), window(DAY + "10:00", DAY + "10:01"), [])
    assert (mark.decision, mark.status) == ("fired", None)
    assert mark.execution_id == ids.occurrence_id("job", utc(DAY + "10:00"))


def test_too_many_marks_are_not_complete() -> None:
    past = Past("* * * * * *").defined(DAY + "09:30")
    shown = window(DAY + "09:30", DAY + "19:30")
    listed, is_complete = marks_of(past.evidence, [], shown, Effort(60), most=50)
    assert (len(listed), is_complete) == (50, False)
    _, is_complete = marks_of(past.evidence, [], shown, Effort(0), most=50)
    assert not is_complete


def test_buckets_end_when_their_effort_is_spent() -> None:
    shown = window(DAY + "09:00", DAY + "19:00")
    ledger = hourly().evidence
    counted = Buckets(shown.spans(timedelta(hours=1)), Effort(0))
    counted.add_stretches(ledger.stretches(shown.since, shown.until))
    assert not counted.is_complete


def test_definitions_of_others_hide_their_instants() -> None:
    past = hourly().ticked(DAY + "10:00").deleted(DAY + "10:30").defined(DAY + "11:30").ticked(DAY + "12:00")
    first, deletion, second = (regime.fact.sequence for regime in past.evidence.regimes)
    shown = window(DAY + "09:00", DAY + "12:30")
    for seen, hours, versions in (([first], [10], [first, deletion]), ([second], [12], [second]), ([], [], [])):
        ledger = replace(past.evidence, seen=seen)
        listed, _ = marks_of(ledger, [], shown, Effort(60), most=50)
        assert [mark.at.hour for mark in listed] == hours
        assert [version.sequence for version in versions_of(ledger, shown)] == versions


def test_versions_begin_with_the_last_before() -> None:
    past = hourly().paused(DAY + "09:40").resumed(DAY + "10:40").defined(DAY + "11:40", timeout=60)
    versions = versions_of(past.evidence, window(DAY + "10:00", DAY + "11:00"))
    assert [(version.kind, version.by, version.reason) for version in versions] == [
        ("paused", "ada", "too loud"),
        ("resumed", "ada", None),
    ]
    assert versions[0].at == utc(DAY + "09:40")


def test_versions_are_in_force_from_their_requests() -> None:
    past = hourly().requested(DAY + "09:40").paused(DAY + "10:40").ticked(DAY + "10:41")
    shown = window(DAY + "09:50", DAY + "10:30")
    assert [version.at for version in versions_of(past.evidence, shown)] == [utc(DAY + "09:40")]
    assert [(mark.at, mark.decision) for mark in marks(past, shown)] == [(utc(DAY + "10:00"), "paused")]


def test_undefined_job_is_not_found() -> None:
    with pytest.raises(JobNotFound):
        _ = Past().evidence.regimes


GAPS = {
    "a leader was away": (
        hourly().gained(DAY + "09:00").released(DAY + "09:45").gained(DAY + "10:20", "two"),
        [("09:45", "10:20")],
    ),
    "it lost the lease": (
        hourly().gained(DAY + "09:00").gained(DAY + "10:20", last_sign=DAY + "09:50"),
        [("09:50", "10:20")],
    ),
    "it was killed": (
        hourly().gained(DAY + "09:00").gained(DAY + "10:20", "two", DAY + "09:59"),
        [("09:59", "10:20")],
    ),
    "no leader has led since": (
        hourly().gained(DAY + "09:00").released(DAY + "10:00").until(DAY + "10:30"),
        [("10:00", "10:30")],
    ),
    "the hand-over was quick": (
        hourly().gained(DAY + "09:00").released(DAY + "09:45").gained(DAY + "09:45:01", "two"),
        [],
    ),
    "a leader leads": (hourly().gained(DAY + "09:00"), []),
    "it ended before": (hourly().gained(DAY + "08:00").released(DAY + "08:10").gained(DAY + "09:00", "two"), []),
    "it began before": (
        hourly().gained(DAY + "08:00").released(DAY + "08:10").gained(DAY + "09:50", "two"),
        [("09:30", "09:50")],
    ),
}


@pytest.mark.parametrize("name", GAPS)
def test_times_without_a_leader(name: str) -> None:
    past, expected = GAPS[name]
    gaps = gaps_of(past.evidence.leadership, window(DAY + "09:30", DAY + "12:00"), past.now)
    assert gaps == [Span(utc(DAY + start), utc(DAY + end)) for start, end in expected]
