"""Ledgers in little memory, and definitions of which only the timetable is read: both decide as the whole does."""

from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.test_ledger import CHANGES, INTERVALS, SECOND, Log, at, job
from tests.properties import examples
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Actor, Defined, Message, Recorded
from tocsin.domain.ledger import Ledgers, Lookahead, Timetable, read_timetable
from tocsin.domain.ledger.timetables import TimetableFields
from tocsin.domain.schedule import parse
from tocsin.domain.schedule.instants import CalendarRule


def lean(recorded: Recorded[Message]) -> Recorded[Message]:
    """Return an event as the ticker reads it."""
    event = read_timetable(recorded.message.encode()) if isinstance(recorded.message, Defined) else None
    return Recorded(event or recorded.message, recorded.subject, recorded.sequence, recorded.time)


@given(st.lists(st.tuples(CHANGES | INTERVALS, st.integers(1, 5000)), max_size=15))
@settings(max_examples=examples(200), deadline=None)
def test_kept_ledger_is_what_was_folded(changes: list[tuple[tuple[str, JobDefinition | None], int]]) -> None:
    log, kept = Log(), Ledgers()
    log.define(job(), at("00:00:00"))
    log.change(changes, at("00:00:00"))
    for recorded in log.facts:
        state, _ = kept["nightly"]
        state = ledger.evolve(state, lean(recorded))
        kept.put("nightly", state, recorded.sequence)
        if len(state.regimes) == 1 and ledger.missing_fact(state) is None:
            expected = ledger.next_instant(state, state.regimes[0].since)
            assert kept.next_instant("nightly", Lookahead()) == expected
        else:
            with pytest.raises(LookupError):
                kept.next_instant("nightly", Lookahead())
    assert kept["nightly"] == (ledger.without_definitions(log.state), log.facts[-1].sequence)
    assert kept.sequence("nightly") == log.facts[-1].sequence
    assert list(kept) == ["nightly"]


def test_kept_interval_counts_from_its_registration() -> None:
    log, kept = Log(), Ledgers()
    log.define(job("@every 5m", catch_up="skip"), at("09:20:00"))
    log.tick(at("09:25:00"))
    log.store(ledger.delete(log.state, "nightly"), at("09:26:00"))
    log.define(job("@every 5m", catch_up="skip"), at("09:33:00"))
    log.tick(at("09:40:00"))  # the instant of 9:38 is missed
    kept.put("nightly", log.state, len(log.facts))
    assert kept.plain("nightly") is not None
    assert kept.next_instant("nightly", Lookahead()) == at("09:43:00")


def test_unknown_job_has_the_initial_ledger() -> None:
    assert Ledgers()["nightly"] == (ledger.initial, 0)
    assert Ledgers().sequence("nightly") == 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"timezone": "Europe/Berlin", "enabled": False, "dag": [], "tags": ["x"], "meta": {"a": [1]}},
        {"dst": {"gap": "shift", "fold": "both"}, "catch_up": "all", "catch_up_limit": 7},
        {"catch_up_max_age": 60, "starting_deadline": 1.5, "schedule": None},
    ],
)
def test_timetable_is_read_from_a_definition(fields: dict[str, object]) -> None:
    definition = job(**{"schedule": "0 7 * * *", **fields})  # type: ignore[arg-type]
    event = Defined(job="nightly", definition=definition, previous=3, paused=True, by=Actor(identity="ada"), reason="r")
    read = read_timetable(event.encode())
    assert read is not None
    assert Timetable.of(read.definition) is Timetable.of(definition)
    assert (read.job, read.previous, read.paused) == ("nightly", 3, True)


def test_timetable_has_the_defaults_of_definitions() -> None:
    for name, field in TimetableFields.model_fields.items():
        assert field.get_default() == JobDefinition.model_fields[name].get_default()
    days = dict.fromkeys(("exclude", "only", "blackout", "shift"), "days")
    other_names = {"partition": "is_divided", **days}
    read = {other_names.get(name, name) for name in TimetableFields.model_fields}
    assert read == set(Timetable.__dataclass_fields__)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"v":2,"type":"defined","job":"a","definition":{}}',
        b'{"v":1,"type":"paused","job":"a","definition":{}}',
        b'{"v":1,"type":"defined","job":"a","definition":{"catch_up":"twice"}}',
        b'{"v":1,"type":"defined","job":"a","definition":{"dst":{"gap":"jump"}}}',
        b'{"v":1,"type":"defined","job":"a","definition":{"starting_deadline":0}}',
        b'{"v":1,"type":"defined","job":"a","definition":{"schedule":5}}',
        b'{"v":1,"type":"defined","job":"a","previous":-1,"definition":{}}',
    ],
)
def test_body_that_does_not_fit_is_left_alone(body: bytes) -> None:
    assert read_timetable(body) is None


def test_jobs_with_one_schedule_share_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[datetime] = []
    search = CalendarRule.next_after

    def counted(rule: CalendarRule, after: datetime, anchor: datetime, /) -> datetime | None:
        searches.append(after)
        return search(rule, after, anchor)

    monkeypatch.setattr(CalendarRule, "next_after", counted)
    lookahead, daily = Lookahead(), parse("0 7 * * *", "America/New_York")
    for second in range(1_000):
        after = at("00:00:00") + second * SECOND
        assert lookahead.next_at(daily, after, after) == at("12:00:00")
    assert len(searches) == 1
