"""Calendars of job files: lists, iCalendar files and public holidays, and what is refused."""

import sys
from datetime import date
from pathlib import Path

import pytest

from tocsin.adapters.files import load
from tocsin.adapters.files.icalendar_days import MAX_BYTES, MAX_RECURRING, days_of_file
from tocsin.domain.definition import DefinitionError, DefinitionProblem

TODAY = date(2026, 11, 20)
JOB = "jobs: [{name: a, schedule: '@daily', function: f, exclude: [c]}]"


def loaded(folder: Path, calendar: str) -> tuple[str, ...]:
    path = folder / "jobs.yaml"
    path.write_text(f"calendars:\n  c: {calendar}\n{JOB}\n", "utf-8")
    (job,) = load(path, today=TODAY)
    return job.exclude[0].days


def problem(folder: Path, calendar: str) -> DefinitionProblem:
    with pytest.raises(DefinitionError) as error:
        loaded(folder, calendar)
    return error.value.problems[0]


def ics(*events: str) -> bytes:
    blocks = [f"BEGIN:VEVENT\nUID:{n}\nSUMMARY:day {n}\n{event}\nEND:VEVENT" for n, event in enumerate(events, 1)]
    lines = "\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:test", *blocks, "END:VCALENDAR", ""])
    return lines.replace("\n", "\r\n").encode()


def days(*events: str) -> list[date]:
    return sorted(days_of_file(ics(*events), "c.ics", date(2026, 1, 1), date(2027, 12, 31)))


def refused(*events: str) -> DefinitionProblem:
    with pytest.raises(DefinitionError) as error:
        days(*events)
    return error.value.problems[0]


def test_list_is_sorted_and_joined(tmp_path: Path) -> None:
    assert loaded(tmp_path, "[2026-12-26, 2026-12-24/2026-12-25, 2026-12-26]") == ("2026-12-24/2026-12-26",)


def test_holidays_of_countries(tmp_path: Path) -> None:
    czech = loaded(tmp_path, "{country: CZ, until: 2026-12-31}")
    assert "2026-12-24/2026-12-26" in czech
    assert "2026-04-03" in czech
    assert czech[-1] == "2026-12-24/2026-12-26"
    assert "2026-11-26" in loaded(tmp_path, "{country: US}")
    assert "2026-03-31" in loaded(tmp_path, "{country: US, subdivision: CA}")


def test_calendars_of_all_files_are_known(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(JOB, "utf-8")
    (tmp_path / "b.yaml").write_text("calendars: {c: {weekdays: [sunday, saturday]}}", "utf-8")
    (job,) = load(tmp_path, today=TODAY)
    assert job.exclude[0].weekdays == ("saturday", "sunday")
    (tmp_path / "c.yaml").write_text("calendars: {c: [2026-12-24]}", "utf-8")
    with pytest.raises(DefinitionError) as error:
        load(tmp_path, today=TODAY)
    assert error.value.problems[0].code == "duplicate-name"


@pytest.mark.parametrize(
    ("calendar", "code", "field"),
    [
        ("[2026-02-30]", "invalid-value", ""),
        ("[2026-12-26/2026-12-24]", "invalid-value", ""),
        ("[]", "invalid-value", ""),
        ("5", "wrong-type", ""),
        ("{country: XX}", "unknown-choice", "country"),
        ("{country: CZ, subdivision: NY}", "unknown-choice", "subdivision"),
        ("{country: CZ, until: 2999-12-31}", "out-of-range", "until"),
        ("{ics: missing.ics}", "file-not-found", ""),
        ("{ics: 5}", "wrong-type", "ics"),
        ("{day: [2026-12-24]}", "unknown-field", "day"),
        ("{days: [2026-12-24], until: 2026-01-01}", "invalid-value", ""),
    ],
)
def test_calendar_is_refused(tmp_path: Path, calendar: str, code: str, field: str) -> None:
    found = problem(tmp_path, calendar)
    assert (found.code, found.field) == (code, field)
    assert found.job == 'calendar "c"'


def test_unknown_calendar_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(JOB, "utf-8")
    with pytest.raises(DefinitionError) as error:
        load(tmp_path, today=TODAY)
    assert [(p.code, p.field, p.value) for p in error.value.problems] == [("unknown-calendar", "exclude[0]", '"c"')]


def test_events_of_days() -> None:
    assert days("DTSTART;VALUE=DATE:20261224\nDTEND;VALUE=DATE:20261227") == [date(2026, 12, d) for d in (24, 25, 26)]
    yearly = "DTSTART;VALUE=DATE:20000704\nRRULE:FREQ=YEARLY\nEXDATE;VALUE=DATE:20270704"
    assert days(yearly) == [date(2026, 7, 4)]
    monday = "DTSTART;VALUE=DATE:20250526\nRRULE:FREQ=YEARLY;BYMONTH=5;BYDAY=-1MO"
    assert days(monday) == [date(2026, 5, 25), date(2027, 5, 31)]
    assert days("DTSTART;VALUE=DATE:20260101\nSTATUS:CANCELLED") == []


@pytest.mark.parametrize(
    ("event", "field", "code"),
    [
        ("DTSTART:20261224T090000Z", "DTSTART", "invalid-value"),
        ("SUMMARY:no start", "DTSTART", "invalid-value"),
        ("DTSTART;VALUE=DATE:00010101\nRRULE:FREQ=DAILY", "DTSTART", "out-of-range"),
        ("DTSTART;VALUE=DATE:20260101\nDTEND;VALUE=DATE:99991231", "DTEND", "too-large"),
        ("DTSTART;VALUE=DATE:20260101\nDTEND;VALUE=DATE:20200101", "DTEND", "out-of-range"),
        ("DTSTART;VALUE=DATE:20260101\nDURATION:-P5D", "DURATION", "out-of-range"),
        ("DTSTART;VALUE=DATE:20260101\nRDATE;VALUE=PERIOD:20260201T000000Z/P9999D", "RDATE", "not-supported"),
        ("DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=SECONDLY", "RRULE", "not-supported"),
        ("DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=DAILY;BYHOUR=1,2,3", "RRULE", "not-supported"),
        ("DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "RRULE", "not-supported"),
        ("DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=DAILY;INTERVAL=0", "RRULE", "out-of-range"),
        ("DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=YEARLY;INTERVAL=-1", "RRULE", "out-of-range"),
    ],
)
def test_event_is_refused_with_its_field(event: str, field: str, code: str) -> None:
    found = refused("DTSTART;VALUE=DATE:20260101", event)
    assert found.field.startswith("event 2 (")
    assert found.field.endswith(f", {field}")
    assert (found.code, found.source) == (code, "c.ics")


def test_broken_property_is_refused_with_its_event() -> None:
    found = refused("DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=YEARLY;INTERVAL=9999999999999")
    assert found.field.startswith("event 1 (")
    assert (found.code, found.source) == ("invalid-value", "c.ics")


def test_many_recurring_events_are_refused() -> None:
    event = "DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"
    assert refused(*[event] * (MAX_RECURRING + 1)).code == "too-large"


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "invalid-value"),
        ("FREQ=YEARLY;BYWEEKNO=1;BYMONTH=7", "invalid-value"),
        ("FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=30;UNTIL=20300101", "invalid-value"),
        ("FREQ=DAILY;INTERVAL=7;BYDAY=MO", "invalid-value"),
        ("FREQ=DAILY", "too-large"),
    ],
)
def test_work_of_rules_is_bounded(rule: str, code: str) -> None:
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    events = [f"DTSTART;VALUE=DATE:19000102\nRRULE:{rule}"] * MAX_RECURRING
    sys.setprofile(count)
    try:
        found = refused(*events)
    finally:
        sys.setprofile(None)
    assert (found.code, found.field.rpartition(", ")[2]) == (code, "RRULE")
    assert calls < 6_000_000


@pytest.mark.parametrize(
    ("events", "field"),
    [
        (["DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=DAILY"] * MAX_RECURRING, "event 69 ("),
        (["DTSTART;VALUE=DATE:20260101\nDURATION:P366D"] * 2_000, ""),
        (["DTSTART;VALUE=DATE:20260101\nDURATION:P366D\nRRULE:FREQ=DAILY"] * 10, ""),
    ],
)
def test_days_of_a_file_are_bounded(events: list[str], field: str) -> None:
    found = refused(*events)
    assert found.code == "too-large"
    assert found.field.startswith(field)


@pytest.mark.parametrize("end", ["COUNT=3", "UNTIL=20260103", "UNTIL=20260103T000000Z"])
def test_rules_that_end_count_to_their_end(end: str) -> None:
    rules = [f"DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=DAILY;{end}"] * MAX_RECURRING
    assert set(days(*rules)) == {date(2026, 1, day) for day in (1, 2, 3)}


def test_rules_of_a_century_are_expanded() -> None:
    yearly = [f"DTSTART;VALUE=DATE:1900{n % 12 + 1:02}01\nRRULE:FREQ=YEARLY" for n in range(MAX_RECURRING)]
    assert len(days(*yearly)) == 2 * MAX_RECURRING
    leap = "DTSTART;VALUE=DATE:20000229\nRRULE:FREQ=YEARLY;COUNT=30"
    assert sorted(days_of_file(ics(leap), "c.ics", date(2027, 1, 1), date(2028, 12, 31))) == [date(2028, 2, 29)]


def test_file_that_is_no_calendar(tmp_path: Path) -> None:
    (tmp_path / "c.ics").write_bytes(b"BEGIN:VCALENDAR\r\nnonsense\r\n")
    assert problem(tmp_path, "{ics: c.ics}").code == "invalid-value"
    (tmp_path / "c.ics").write_bytes(b"x" * (MAX_BYTES + 1))
    assert problem(tmp_path, "{ics: c.ics}").code == "file-too-large"
