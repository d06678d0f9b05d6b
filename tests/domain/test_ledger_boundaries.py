"""The ledger at its limits: seconds that count, what facts repeat, what is forgotten."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.domain.given import admitted, recorded
from tests.domain.test_ledger import COMMANDS, SECOND, Log, at, due, job, passed
from tocsin.domain import ledger
from tocsin.domain.events import Actor, Due, Passed
from tocsin.domain.ledger import JobNotFound, Ledger, instants

ADA = Actor(identity="ada", source="cli")
GRACE = Actor(identity="grace")
MISSED_IN_THE_GAP = datetime(2027, 3, 14, 7, 30, tzinfo=UTC)
"""02:30 in New York on the day on which the clocks leave it out, by the offset before."""


def defined(begin: str = "09:30:00", schedule: str | None = "0 * * * *", **more: object) -> Log:
    """A ledger with one definition."""
    log = Log()
    log.define(job(schedule, **more), at(begin))
    return log


@pytest.mark.parametrize(("now", "catch_up"), [("10:00:02", False), ("10:00:03", True)])
def test_two_seconds_late_is_punctual(now: str, *, catch_up: bool) -> None:
    assert due(defined().tick(at(now))) == [(at("10:00:00"), catch_up)]


def test_clock_behind_the_watermark_decides_nothing_again() -> None:
    log = defined(schedule="* * * * *")
    log.tick(at("10:00:00"))
    assert list(ledger.decide_instants(log.state, at("09:50:00"))) == []


def test_a_punctual_instant_survives_a_new_schedule() -> None:
    log = defined()
    log.define(job("30 * * * *"), at("10:00:01"))
    assert due(log.tick(at("10:00:02"))) == [(at("10:00:00"), False)]


@pytest.mark.parametrize(("now", "fires"), [("10:30:00", True), ("10:30:01", False)])
def test_an_instant_fires_until_its_starting_deadline(now: str, *, fires: bool) -> None:
    assert bool(due(defined(starting_deadline=1800).tick(at(now)))) is fires


@pytest.mark.parametrize(("now", "oldest"), [("10:30:00", "10:20:00"), ("10:30:01", "10:21:00")])
def test_a_missed_instant_fires_up_to_its_age(now: str, oldest: str) -> None:
    log = defined(schedule="* * * * *", catch_up="all", catch_up_max_age=600)
    assert due(log.tick(at(now)))[0][0] == at(oldest)


@pytest.mark.parametrize(("policy", "fired"), [("once", 1), ("all", 0)])
def test_the_greatest_age_concerns_catch_up_all(policy: str, fired: int) -> None:
    log = defined(catch_up=policy, catch_up_max_age=600)
    assert len(due(log.tick(at("12:30:00")))) == fired


@pytest.mark.parametrize("change", [{"enabled": False}, {"timezone": "Asia/Kolkata"}, {"dst": {"gap": "shift"}}])
def test_a_missed_instant_of_another_schedule_is_superseded(change: dict[str, Any]) -> None:
    log = defined()
    log.define(job(**change), at("10:00:30"))
    facts = log.tick(at("10:05:00"))
    assert (passed(facts), due(facts)) == ([("superseded", 1, at("10:00:00"))], [])


@pytest.mark.parametrize("beyond", [1, 5, 9, 10, 11])
def test_the_newest_fire_across_two_decisions(beyond: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of ten, with instants of the first and of the second decision."""
    monkeypatch.setattr(instants, "MAX_INSTANTS_PER_DECISION", 20)
    log = defined(schedule="* * * * *", catch_up="all", catch_up_limit=10)
    last = at("09:30:00") + timedelta(minutes=20 + beyond)
    facts = log.tick(last + 30 * SECOND)
    assert due(facts) == [(last - timedelta(minutes=9 - n), True) for n in range(10)]
    assert sum(count for _, count, _ in passed(facts)) == 10 + beyond


def test_an_ordinary_instant_skips_no_local_time() -> None:
    [fact] = defined().tick(at("10:00:00"))
    assert isinstance(fact, Due)
    assert not fact.dst_skip


def test_a_skipped_time_marks_a_single_instant() -> None:
    log = Log()
    log.define(job("0 1,2,3 * * *", timezone="America/New_York", catch_up="all"), datetime(2027, 3, 14, 5, tzinfo=UTC))
    facts = log.tick(datetime(2027, 3, 14, 7, 0, 1, tzinfo=UTC))
    assert [fact.dst_skip for fact in facts if isinstance(fact, Due)] == [False, True]


def test_a_skipped_time_is_no_missed_one() -> None:
    log = Log()
    log.define(job("30 1,2 * * *", timezone="America/New_York", catch_up="skip"), datetime(2027, 3, 14, 5, tzinfo=UTC))
    facts = log.tick(datetime(2027, 3, 14, 12, tzinfo=UTC))
    found = [(fact.reason, fact.count, fact.scheduled_times) for fact in facts if isinstance(fact, Passed)]
    assert found == [("missed", 1, ()), ("dst_skip", 1, (MISSED_IN_THE_GAP,))]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_who_and_why(command: str) -> None:
    log = defined()
    if command == "resume":
        log.store(ledger.pause(log.state, "nightly"), at("09:31:00"))
    [fact] = getattr(ledger, command)(log.state, "nightly", by=ADA, reason="a test")
    assert (fact.job, fact.by, fact.reason, fact.previous) == ("nightly", ADA, "a test", len(log.facts))


def test_a_definition_says_who_and_why() -> None:
    log = defined()
    [fact] = ledger.define(log.state, job("30 * * * *"), by=ADA, reason="a test")
    assert (fact.by, fact.reason, fact.previous, fact.paused) == (ADA, "a test", 1, False)


def test_each_fact_names_the_fact_before() -> None:
    log = defined()
    log.store(ledger.pause(log.state, "nightly"), at("09:31:00"))
    log.define(job("30 * * * *"), at("09:32:00"))
    log.store(ledger.resume(log.state, "nightly"), at("09:33:00"))
    log.store(ledger.delete(log.state, "nightly"), at("09:34:00"))
    log.define(job(), at("09:35:00"))
    assert [getattr(fact.message, "previous", None) for fact in log.facts] == [0, 1, 2, 3, 4, 5]
    assert [getattr(fact.message, "definition", None) for fact in log.facts][1:4:2] == [1, 3]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_deleted_job_takes_no_command(command: str) -> None:
    log = defined()
    log.store(ledger.delete(log.state, "nightly"), at("09:40:00"))
    with pytest.raises(JobNotFound) as refusal:
        COMMANDS[command](log.state, "nightly")
    assert refusal.value.job == "nightly"


def test_later_definitions_keep_the_first_creator() -> None:
    log = Log()
    log.store(ledger.define(log.state, job(), by=ADA), at("09:30:00"))
    assert (log.state.created_at, log.state.created_by) == (at("09:30:00"), "ada")
    for minute in (31, 32):
        log.store(ledger.define(log.state, job(f"{minute} * * * *"), by=GRACE), at(f"09:{minute}:00"))
        assert (log.state.created_at, log.state.created_by) == (at("09:30:00"), "ada")


def test_an_unknown_creator_stays_unknown() -> None:
    log = defined()
    log.store(ledger.define(log.state, job("30 * * * *"), by=GRACE), at("09:40:00"))
    assert (log.state.created_at, log.state.created_by) == (at("09:30:00"), None)


def test_a_job_defined_after_a_deletion_is_new() -> None:
    log = Log()
    log.store(ledger.define(log.state, job(), by=ADA), at("09:30:00"))
    log.store(ledger.delete(log.state, "nightly"), at("09:31:00"))
    assert (log.state.created_at, log.state.created_by) == (None, None)
    log.store(ledger.define(log.state, job(), by=GRACE), at("09:32:00"))
    assert (log.state.created_at, log.state.created_by) == (at("09:32:00"), "grace")


@pytest.mark.parametrize(("edited", "known"), [("09:59:59", {2}), ("10:00:00", {2}), ("10:00:01", {1, 2})])
def test_a_definition_is_forgotten_once_decided(edited: str, known: set[int]) -> None:
    log = defined()
    log.define(job(timeout=60), at(edited))
    facts = log.tick(at("10:00:01"))
    assert len(facts) == 1
    assert set(log.state.definitions) == {regime.definition for regime in log.state.regimes} == known


def test_only_regimes_of_undecided_time_are_kept() -> None:
    log = defined()
    for number in range(6):
        log.store((ledger.resume if number % 2 else ledger.pause)(log.state, "nightly"), at(f"10:{number}0:30"))
    log.tick(at("10:59:00"))
    log.tick(at("11:00:00"))
    assert [(regime.fact, regime.paused) for regime in log.state.regimes] == [(7, False)]
    assert set(log.state.definitions) == {1}


def test_a_fact_of_another_kind_changes_nothing() -> None:
    state = defined().state
    assert ledger.fold(recorded([admitted()]), state) is state


@pytest.mark.parametrize(
    "fact",
    [
        Due(job="nightly", scheduled_time=at("10:00:00"), definition=1),
        Passed(job="nightly", start=at("09:00:00"), until=at("10:00:00"), reason="missed", count=1, definition=1),
    ],
)
def test_a_time_fact_alone_names_job_and_watermark(fact: Due | Passed) -> None:
    state = ledger.fold(recorded([fact]))
    assert (state.job, state.watermark) == ("nightly", at("10:00:00"))


def test_the_next_instant_follows_the_watermark() -> None:
    log = defined()
    log.tick(at("11:00:00"))
    assert ledger.next_instant(log.state, at("09:40:00")) == at("12:00:00")
    assert ledger.next_instant(log.state, at("12:00:00")) == at("13:00:00")


def test_a_definition_of_later_is_looked_at_then() -> None:
    log = defined()
    log.define(job("30 * * * *"), at("09:40:00"))
    assert ledger.next_instant(log.state, at("09:35:00")) == at("09:40:00")
    assert ledger.next_instant(log.state, at("09:40:00")) == at("10:30:00")


@pytest.mark.parametrize(
    "state",
    [ledger.initial, defined(schedule=None).state, defined(schedule="@every 5m", enabled=False).state],
    ids=["no job", "no schedule", "disabled"],
)
def test_without_a_schedule_nothing_will_fire(state: Ledger) -> None:
    assert ledger.next_fire_time(state, at("09:40:00")) is None


def test_without_a_job_there_is_no_next_instant() -> None:
    assert ledger.next_instant(ledger.initial, at("09:40:00")) is None


def test_adjoining_spans_share_their_ends() -> None:
    log = defined(catch_up="skip")
    log.store(ledger.pause(log.state, "nightly"), at("11:30:00"))
    log.store(ledger.resume(log.state, "nightly"), at("13:30:00"))
    spans = [fact for fact in log.tick(at("15:30:00") + timedelta(seconds=1)) if isinstance(fact, Passed)]
    assert [(span.reason, span.count) for span in spans] == [("missed", 2), ("paused", 2), ("missed", 2)]
    assert all(one.until == other.start for one, other in pairwise(spans))
    assert spans[0].start == at("09:30:00")
