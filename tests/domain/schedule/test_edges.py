"""Schedules at the edges: foreign characters, times that never exist, and zones within phrases."""

from datetime import UTC, datetime, timedelta

import pytest

from tocsin.domain import ledger
from tocsin.domain.definition import DefinitionError
from tocsin.domain.formats import read
from tocsin.domain.schedule import DstPolicy, ScheduleError, check_fires, explain, next_instants, parse, zone_in
from tocsin.domain.schedule.timezones import Zone

NOW = datetime(2026, 11, 23, tzinfo=UTC)
NEVER = "30 2 * 3 0L"
"""02:30 on the last Sunday of March, the hour that the clocks of Berlin skip."""
BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("0 0 * * \u017fun", 8),  # a long s, which becomes S in capitals
        ("0 0 * * fr\u0131", 10),  # a dotless i, which becomes I in capitals
        ("0\x1c0 * * *", 1),
        ("0\x1d0 * * *", 1),
        ("0\x1e0 * * *", 1),
        ("0 0 * * *\x1f", 9),
        ("0\x850 * * *", 1),
        ("0\u00a00 * * *", 1),
        ("0 0 * * *\x00", 9),
        ("\uff15 0 * * *", 0),
        ("every \u017funday at 9am", 6),
        ("@every 1\u00a0h", 8),
    ],
)
def test_foreign_characters_are_refused(text: str, at: int) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse(text)
    assert (caught.value.code, caught.value.start) == ("invalid-expression", at)
    assert f"U+{ord(text[at]):04X}" in caught.value.problem


def test_blanks_of_ascii_separate_fields() -> None:
    assert parse(" 0\t9  * * 1-5\r\n").expressions == ("0 9 * * 1-5",)


@pytest.mark.parametrize("dst", [DstPolicy(), DstPolicy(fold="both")])
def test_search_for_skipped_times_ends_soon(monkeypatch: pytest.MonkeyPatch, dst: DstPolicy) -> None:
    spans = 0
    span = Zone.span

    def counted(self: Zone, instant: int) -> object:
        nonlocal spans
        spans += 1
        return span(self, instant)

    monkeypatch.setattr(Zone, "span", counted)
    schedule = parse(NEVER, BERLIN, dst=dst)
    assert next_instants(schedule, NOW, 3) == []
    assert spans < 100
    with pytest.raises(ScheduleError) as caught:
        check_fires(schedule, NOW)
    assert caught.value.code == "never-fires"


def test_skipped_times_that_shift_fire() -> None:
    schedule = parse(NEVER, BERLIN, dst=DstPolicy(gap="shift"))
    check_fires(schedule, NOW)
    assert next_instants(schedule, NOW, 1) == [datetime(2027, 3, 28, 1, 30, tzinfo=UTC)]


def test_times_skipped_for_many_years_are_found() -> None:
    """New York skipped 02:30 on the last Sunday of April from 1976 until 1986."""
    start = datetime(1976, 1, 1, tzinfo=UTC)
    [first] = next_instants(parse("30 2 * 4 0L", "America/New_York"), start, 1)
    assert first == datetime(1987, 4, 26, 6, 30, tzinfo=UTC)


def test_explanation_of_what_never_fires_is_refused() -> None:
    with pytest.raises(ScheduleError) as caught:
        explain(NEVER, BERLIN, NOW)
    assert caught.value.code == "never-fires"


def test_job_that_never_fires_is_refused() -> None:
    [definition] = read({"jobs": [{"name": "j", "function": "f", "schedule": NEVER, "timezone": BERLIN}]})
    with pytest.raises(DefinitionError) as caught:
        ledger.define(ledger.initial, definition, now=NOW)
    [problem] = caught.value.problems
    assert (problem.field, problem.code) == ("schedule", "never-fires")


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("every Monday at 9am UTC", "UTC"),
        ("every Monday at 9am utc", "UTC"),
        ("every day at 18:00 in Europe/Berlin ", BERLIN),
        ("every Monday at 9am", None),
        ("every Monday at 9am CET", None),
        ("UTC", None),
        ("at 2027-03-01T09:00", None),
        ("0 9 * * MON", None),
    ],
)
def test_zone_of_a_phrase_is_found(text: str, zone: str | None) -> None:
    assert zone_in(text) == zone


def test_phrase_may_name_the_zone_of_its_schedule() -> None:
    with_zone, without = (parse(text, BERLIN) for text in ("every monday at 9am Europe/Berlin", "every monday at 9am"))
    assert with_zone.expressions == without.expressions == ("0 9 * * 1",)
    assert next_instants(with_zone, NOW, 3) == next_instants(without, NOW, 3)


def test_two_zones_are_contradictory() -> None:
    with pytest.raises(ScheduleError) as caught:
        parse("every monday at 9am UTC", BERLIN)
    assert (caught.value.code, caught.value.start, caught.value.length) == ("contradictory-timezone", 20, 3)


def test_definition_takes_the_zone_of_its_phrase() -> None:
    """The example of hip-62: `every Monday at 9am UTC`."""
    written = {"name": "j", "function": "f", "schedule": "every Monday at 9am Asia/Tokyo"}
    [definition] = read({"jobs": [written]})
    assert definition.timezone == "Asia/Tokyo"
    with pytest.raises(DefinitionError) as caught:
        read({"jobs": [{**written, "timezone": "UTC"}]})
    assert [(one.field, one.code) for one in caught.value.problems] == [("schedule", "contradictory-timezone")]


def test_explanation_takes_the_zone_of_the_phrase() -> None:
    explanation = explain("every Monday at 9am Asia/Tokyo", None, NOW)
    assert explanation.timezone == "Asia/Tokyo"
    assert explanation.next[0].local.utcoffset() == timedelta(hours=9)
    assert explain("every Monday at 9am", None, NOW).timezone == "UTC"
