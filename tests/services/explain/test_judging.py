"""Every answer to "why did it (not) run?", each from a past that the real domain made."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from tests.services.explain.past import ADA, Past, utc
from tocsin.domain import ids
from tocsin.domain.ledger import JobNotFound
from tocsin.domain.replay import Gap, Verdict
from tocsin.services.explain import judge

BERLIN, LORD_HOWE, NEW_YORK = "Europe/Berlin", "Australia/Lord_Howe", "America/New_York"


def hourly(**more: object) -> Past:
    return Past(**more).defined("2026-11-20T09:30")  # type: ignore[arg-type]


DAY = "2026-11-20T"
TABLE: Mapping[str, tuple[Past, str, Verdict, Mapping[str, Any]]] = {
    "it fired in time": (
        hourly().ticked(DAY + "10:00"),
        DAY + "10:00Z",
        "fired",
        {"caught_up": False, "late_by": 0, "execution_id": ids.occurrence_id("job", utc(DAY + "10:00"))},
    ),
    "it fired in time, on another clock": (hourly().ticked(DAY + "10:00"), DAY + "11:00+01:00", "fired", {}),
    "a calendar excluded it": (
        hourly(exclude=[{"name": "fair", "days": ["2026-11-20"]}]).ticked("2026-11-21T00:00"),
        DAY + "10:00Z",
        "excluded",
        {"exclusion": "2026-11-20 is a day of fair", "moved_to": None, "count": 14},
    ),
    "a calendar excludes it, and others of its day are to come": (
        hourly(exclude=[{"name": "fair", "days": ["2026-11-20"]}]).until(DAY + "10:30"),
        DAY + "10:00Z",
        "excluded",
        {"exclusion": "2026-11-20 is a day of fair"},
    ),
    "a calendar will exclude it, and it moves": (
        hourly(
            schedule="0 9 21 11 *", exclude=[{"name": "fair", "days": ["2026-11-21"]}], shift="next_business_day"
        ).until(DAY + "10:30"),
        "2026-11-21T09:00Z",
        "future-excluded",
        {"exclusion": "2026-11-21 is a day of fair", "moved_to": utc("2026-11-23T09:00")},
    ),
    "a blackout excluded it": (
        hourly(blackout=[{"from": DAY + "10:00", "to": DAY + "10:01", "reason": "move"}]).ticked(DAY + "11:00"),
        DAY + "10:00Z",
        "excluded",
        {"exclusion": f"the blackout from {DAY}10:00 to {DAY}10:01 (move)", "count": 1},
    ),
    "it was caught up on": (
        hourly()
        .gained(DAY + "09:00")
        .ticked(DAY + "09:31")
        .gained(DAY + "10:20", "two", DAY + "09:59")
        .ticked(DAY + "10:20"),
        DAY + "10:00Z",
        "fired",
        {
            "caught_up": True,
            "late_by": 1_200,
            "gap": Gap(utc(DAY + "09:59"), utc(DAY + "10:20"), "one", "two"),
        },
    ),
    "it was missed while nobody led": (
        hourly(catch_up="skip")
        .gained(DAY + "09:00")
        .released(DAY + "09:45")
        .gained(DAY + "10:20", "two")
        .ticked(DAY + "10:20"),
        DAY + "10:00Z",
        "missed",
        {"late_by": 1_200, "gap": Gap(utc(DAY + "09:45"), utc(DAY + "10:20"), "one", "two"), "count": 1},
    ),
    "it was missed while its leader slept": (
        hourly(catch_up="skip")
        .gained(DAY + "09:00")
        .gained(DAY + "10:20", last_sign=DAY + "09:50")
        .ticked(DAY + "10:20"),
        DAY + "10:00Z",
        "missed",
        {"gap": Gap(utc(DAY + "09:50"), utc(DAY + "10:20"), "one", "one")},
    ),
    "it was missed though somebody led": (
        hourly(catch_up="skip").gained(DAY + "09:00").ticked(DAY + "10:20"),
        DAY + "10:00Z",
        "missed",
        {"gap": None},
    ),
    "the job was paused": (
        hourly().paused(DAY + "09:40").ticked(DAY + "10:00"),
        DAY + "10:00Z",
        "paused",
        {"since": utc(DAY + "09:40"), "by": ADA, "reason": "too loud"},
    ),
    "the job was paused, and edited then": (
        hourly().paused(DAY + "09:40").defined(DAY + "09:45", timeout=60).ticked(DAY + "10:00"),
        DAY + "10:00Z",
        "paused",
        {"since": utc(DAY + "09:40"), "reason": "too loud"},
    ),
    "the job was paused before it was": (
        hourly().paused(DAY + "09:40").resumed(DAY + "10:30").ticked(DAY + "11:00"),
        DAY + "11:00Z",
        "fired",
        {},
    ),
    "the definition disables it": (
        hourly(enabled=False).ticked(DAY + "10:00"),
        DAY + "10:00Z",
        "disabled",
        {"since": utc(DAY + "09:30"), "by": ADA},
    ),
    "an edit came before the decision": (
        hourly().gained(DAY + "09:00").defined(DAY + "10:05", schedule="30 * * * *").ticked(DAY + "10:10"),
        DAY + "10:00Z",
        "superseded",
        {"since": utc(DAY + "10:05"), "by": ADA},
    ),
    "the schedule does not name it": (
        hourly().ticked(DAY + "10:00"),
        DAY + "09:45Z",
        "not-scheduled",
        {"before": None, "after": utc(DAY + "10:00")},
    ),
    "the nearest instants are told": (
        hourly().ticked(DAY + "12:00"),
        DAY + "11:45Z",
        "not-scheduled",
        {"before": utc(DAY + "11:00"), "after": utc(DAY + "12:00")},
    ),
    "it runs on demand": (hourly(schedule=None), DAY + "10:00Z", "on-demand", {}),
    "nobody has decided yet, and nobody leads": (
        hourly().gained(DAY + "09:00").released(DAY + "09:50").until(DAY + "10:05"),
        DAY + "10:00Z",
        "undecided",
        {"late_by": 300, "gap": Gap(utc(DAY + "09:50"), None, "one")},
    ),
    "nobody has decided yet, and somebody leads": (
        hourly().gained(DAY + "09:00").until(DAY + "10:00:01"),
        DAY + "10:00Z",
        "undecided",
        {"late_by": 1, "gap": None},
    ),
    "it will fire": (hourly().ticked(DAY + "10:00"), DAY + "11:00Z", "future", {}),
    "it would fire, were the job not paused": (
        hourly().paused(DAY + "09:40").ticked(DAY + "10:00"),
        DAY + "11:00Z",
        "future-paused",
        {"since": utc(DAY + "09:40"), "by": ADA},
    ),
    "it would fire, were the job not disabled": (
        hourly(enabled=False).ticked(DAY + "10:00"),
        DAY + "11:00Z",
        "future-disabled",
        {"since": utc(DAY + "09:30")},
    ),
    "there was no such job yet": (
        hourly().ticked(DAY + "10:00"),
        DAY + "09:00Z",
        "before-the-job",
        {"since": utc(DAY + "09:30"), "by": ADA},
    ),
    "there was no such job any more": (
        hourly().ticked(DAY + "10:00").deleted(DAY + "10:30").until(DAY + "12:00"),
        DAY + "11:00Z",
        "after-deletion",
        {"since": utc(DAY + "10:30"), "by": ADA, "reason": "not needed"},
    ),
    "it was deleted and is there again": (
        hourly().deleted(DAY + "09:40").defined(DAY + "10:30").ticked(DAY + "11:00"),
        DAY + "11:00Z",
        "fired",
        {},
    ),
    "an interval counts from what fired before": (
        Past("@every 10m").defined(DAY + "09:30:30").ticked(DAY + "09:40:30").ticked(DAY + "09:50:30"),
        DAY + "09:50:30Z",
        "fired",
        {"before": utc(DAY + "09:40:30"), "after": utc(DAY + "10:00:30")},
    ),
    # The clocks of Berlin go from 02:00 to 03:00 on 29 March 2026 (01:00 UTC), and from 03:00 to 02:00 on 25 October.
    "the clocks skipped it": (
        Past("30 2 * * *", BERLIN).defined("2026-03-28T12:00").ticked("2026-03-29T12:00"),
        "2026-03-29T02:30",
        "no-such-local-time",
        {"local_exists": False, "skipped_local": utc("2026-03-29T02:30").replace(tzinfo=None), "before": None},
    ),
    "the clocks skipped it, and the job shifts": (
        Past("30 2 * * *", BERLIN, dst={"gap": "shift"}).defined("2026-03-28T12:00").ticked("2026-03-29T01:30"),
        "2026-03-29T02:30",
        "fired",
        {"local_exists": False, "at": utc("2026-03-29T01:30")},
    ),
    "the clocks skip it, and the schedule never named it": (
        Past("0 5 * * *", BERLIN).defined("2026-03-28T12:00").ticked("2026-03-29T12:00"),
        "2026-03-29T02:30",
        "no-such-local-time",
        {"local_exists": False, "after": utc("2026-03-29T03:00")},
    ),
    "the clocks will skip it": (
        Past("30 2 * * *", BERLIN).defined("2026-03-28T12:00"),
        "2026-03-29T02:30",
        "no-such-local-time",
        {"local_exists": False},
    ),
    # A skipped local time on an instant that fires: the `due` event covers both.
    "a step of the hour fires where another was skipped": (
        Past("*/15 * * * *", BERLIN, catch_up="all")
        .defined("2026-03-29T00:50")
        .ticked("2026-03-29T01:00")
        .ticked("2026-03-29T01:15"),
        "2026-03-29T01:15Z",
        "fired",
        {},
    ),
    "and whoever asks for what was skipped is told so": (
        Past("*/15 * * * *", BERLIN).defined("2026-03-29T00:50").ticked("2026-03-29T01:00").ticked("2026-03-29T01:15"),
        "2026-03-29T02:15",
        "no-such-local-time",
        {"local_exists": False, "skipped_local": utc("2026-03-29T02:15").replace(tzinfo=None)},
    ),
    "half an hour is skipped at Lord Howe": (
        Past("15 2 * * *", LORD_HOWE).defined("2026-10-02T12:00").ticked("2026-10-04T12:00"),
        "2026-10-04T02:15",
        "no-such-local-time",
        {"local_exists": False},
    ),
}


@pytest.mark.parametrize(("past", "at", "verdict", "expected"), TABLE.values(), ids=TABLE)
def test_an_instant_has_its_answer(past: Past, at: str, verdict: Verdict, expected: Mapping[str, Any]) -> None:
    [answer] = past.why(at)
    assert answer.verdict == verdict
    assert {name: getattr(answer, name) for name in expected} == expected


def test_repeated_local_time_has_two_answers() -> None:
    """01:30 in New York on 1 November 2026: at 05:30 UTC, and at 06:30 UTC once more."""
    past = (
        Past("30 1 * * *", NEW_YORK).defined("2026-10-31T12:00").ticked("2026-11-01T05:30").ticked("2026-11-01T12:00")
    )
    first, second = past.why("2026-11-01T01:30")
    assert (first.verdict, first.at, first.repeated) == ("fired", utc("2026-11-01T05:30"), False)
    assert (second.verdict, second.at, second.repeated) == ("not-scheduled", utc("2026-11-01T06:30"), True)


def test_a_job_that_wishes_both_fires_twice() -> None:
    past = Past("*/30 * * * *", NEW_YORK, dst={"fold": "both"}).defined("2026-11-01T05:10")
    for at in ("05:30", "06:00", "06:30"):
        past.ticked(f"2026-11-01T{at}")
    assert [answer.verdict for answer in past.why("2026-11-01T01:30")] == ["fired", "fired"]


def test_local_time_uses_the_zone_of_its_day() -> None:
    past = Past("0 9 * * *", BERLIN).defined("2026-11-20T00:00").ticked("2026-11-20T08:00")
    past.defined("2026-11-20T12:00", timezone=NEW_YORK).ticked("2026-11-21T14:00")
    assert [answer.at for answer in past.why("2026-11-21T09:00")] == [utc("2026-11-21T14:00")]
    on_the_day = [(answer.at, answer.timezone, answer.verdict) for answer in past.why("2026-11-20T09:00")]
    assert on_the_day == [
        (utc("2026-11-20T08:00"), BERLIN, "fired"),
        (utc("2026-11-20T14:00"), NEW_YORK, "missed"),
    ]


def test_missing_decision_is_a_broken_promise() -> None:
    past = hourly().ticked(DAY + "10:00").ticked(DAY + "11:00")
    past.facts = [recorded for recorded in past.facts if recorded.time != utc(DAY + "10:00")]
    [answer] = past.why(DAY + "10:00Z")
    assert answer.verdict == "unaccounted"


def test_pause_is_in_force_from_its_request() -> None:
    past = hourly().requested(DAY + "09:40").paused(DAY + "10:30").ticked(DAY + "10:31")
    [answer] = past.why(DAY + "10:00Z")
    assert (answer.verdict, answer.since, answer.by) == ("paused", utc(DAY + "09:40"), ADA)
    assert past.why(DAY + "09:35Z")[0].definition == 1


def test_definition_fires_from_its_request() -> None:
    past = Past().requested(DAY + "09:59:59").defined(DAY + "10:00:01").ticked(DAY + "10:00:02")
    assert past.why(DAY + "10:00Z")[0].verdict == "fired"
    assert past.evidence.latest() == utc(DAY + "10:00")
    [earlier] = past.why(DAY + "09:00Z")
    assert (earlier.verdict, earlier.since) == ("before-the-job", utc(DAY + "09:59:59"))


def test_late_edit_does_not_govern_earlier_decisions() -> None:
    """The ticker's clock is ahead of the log's, by what is allowed."""
    past = hourly().ticked(DAY + "10:00").defined(DAY + "09:59:58", schedule="59 * * * *")
    assert past.why(DAY + "10:00Z")[0].verdict == "fired"


def test_without_a_time_the_latest_occurrence_is_explained() -> None:
    assert hourly().ticked(DAY + "10:00").until(DAY + "10:59").evidence.latest() == utc(DAY + "10:00")
    assert hourly().until(DAY + "09:59").evidence.latest() is None
    assert hourly().deleted(DAY + "11:30").until(DAY + "18:00").evidence.latest() == utc(DAY + "11:00")
    assert Past(None).defined(DAY + "09:00").until(DAY + "10:00").evidence.latest() is None


def test_a_job_that_never_was_is_not_found() -> None:
    with pytest.raises(JobNotFound):
        judge(Past().until(DAY + "10:00").evidence, utc(DAY + "10:00"))


def test_whole_second_matches_an_instant_within_it() -> None:
    past = Past("@every 10s")
    past.store([], utc(DAY + "09:30"))
    past.defined(DAY + "09:30:00.250000").ticked(utc(DAY + "09:30:10") + timedelta(milliseconds=300))
    [answer] = past.why(DAY + "09:30:10Z")
    assert (answer.verdict, answer.at.microsecond) == ("fired", 250_000)
