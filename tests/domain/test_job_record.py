"""A job as its ledger's facts leave it in the history."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.domain.given import NOON, admitted, recorded
from tests.domain.test_ledger import job
from tocsin.domain import ids, job_record, ledger
from tocsin.domain.events import Actor, Defined, Deleted, Due, Message, Passed, Paused, Resumed
from tocsin.domain.job_record import JobRecord

ADA, GRACE = Actor(identity="ada"), Actor(identity="grace")
LONG_AGO = NOON - timedelta(days=100)


def at(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


def defined(schedule: str | None = "0 * * * *", **more: Any) -> Defined:  # noqa: ANN401 - fields
    fields = {name: more.pop(name) for name in ("by", "created_at", "created_by", "paused") if name in more}
    return Defined(job="nightly", definition=job(schedule, **more), **fields)


def due(hour: int) -> Due:
    return Due(job="nightly", scheduled_time=NOON.replace(hour=hour), definition=1)


def passed(hour: int) -> Passed:
    until = NOON.replace(hour=hour)
    return Passed(job="nightly", start=NOON, until=until, reason="missed", count=1, definition=1)


PAUSED, RESUMED, DELETED = (
    Paused(job="nightly", definition=1),
    Resumed(job="nightly", definition=1),
    Deleted(job="nightly"),
)


def after(*facts: Message) -> JobRecord:
    return job_record.fold({}, recorded(facts))["nightly"]


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ((defined(),), "ENABLED"),
        ((defined(enabled=False),), "DISABLED"),
        ((defined(), PAUSED), "PAUSED"),
        ((defined(), PAUSED, RESUMED), "ENABLED"),
        ((defined(enabled=False), PAUSED), "PAUSED"),
        ((defined(paused=True),), "PAUSED"),
        ((defined(), DELETED), "DELETED"),
        ((defined(), PAUSED, DELETED), "DELETED"),
        ((defined(), PAUSED, DELETED, defined("30 * * * *")), "ENABLED"),
        ((due(11),), "ENABLED"),
    ],
)
def test_a_job_has_a_state(facts: Sequence[Message], state: str) -> None:
    assert after(*facts).state == state


@pytest.mark.parametrize(
    ("schedule", "kind"),
    [
        ("0 * * * *", "RECURRING"),
        ("at 2027-03-01T09:00", "ONE_TIME"),
        ("AT 2027-03-01T09:00", "ONE_TIME"),
        ("@at 2027-03-01T09:00", "ONE_TIME"),
        ("once at 2027-03-01 09:00", "ONE_TIME"),
        ("2027-03-01T09:00:00Z", "ONE_TIME"),
        ("at 9am every monday", "RECURRING"),
        ("@every 1h", "RECURRING"),
        ("@every 1h until 2027-03-01T09:00", "RECURRING"),
        (None, None),
    ],
)
def test_a_schedule_fires_once_or_again(schedule: str | None, kind: str | None) -> None:
    assert after(defined(schedule)).schedule_type == kind


@pytest.mark.parametrize("fact", [due(13), passed(13)])
@pytest.mark.parametrize("schedule", ["at {}", "0 * * * * until {}", "@every 1s until {}"])
def test_job_whose_schedule_ends_is_disabled(schedule: str, fact: Message) -> None:
    once = defined(schedule.format(f"{NOON.replace(hour=13):%Y-%m-%dT%H:%MZ}"))
    before, over = after(once), after(once, fact)
    assert (before.state, over.state, over.next_run_time) == ("ENABLED", "DISABLED", None)
    assert before.regime != over.regime
    assert after(once, fact, defined()).state == "ENABLED"


def test_new_registration_begins_a_new_interval() -> None:
    often, fired = defined("@every 7h"), Due(job="nightly", scheduled_time=at(2), definition=1)
    record = after(often, fired, DELETED, often)
    assert (record.created_at, record.next_run_time) == (at(4), at(4) + timedelta(hours=7))


def test_without_a_definition_no_kind_is_known() -> None:
    assert after(due(11)).schedule_type is None


def test_the_first_definition_says_who_and_when() -> None:
    record = after(defined(by=ADA), defined("30 * * * *", by=GRACE))
    assert (record.created_at, record.created_by, record.changed_at) == (at(1), "ada", at(2))
    assert record.id == ids.job_id("nightly", at(1))
    assert record.definition == job("30 * * * *")


def test_times_are_those_of_the_ledger() -> None:
    """A request that waited is in force from its own time."""
    facts = recorded([defined("@every 1h").changed(since=at(-900)), PAUSED.changed(since=at(-600))])
    state, row = ledger.fold(facts), job_record.fold({}, facts)["nightly"]
    assert (row.created_at, row.changed_at, row.anchor) == (at(-900), at(-600), at(-900))
    assert row.id == ids.job_id("nightly", at(-900))
    assert (row.created_at, row.changed_at) == (state.created_at, state.current and state.current.since)
    [one] = job_record.fold({}, facts[:1]).values()
    assert one.next_run_time == ledger.next_fire_time(ledger.fold(facts[:1]), NOON) == at(2_700)
    assert job_record.fold({"nightly": row}, recorded([DELETED.changed(since=at(-60))]))["nightly"].changed_at == at(
        -60
    )


def test_a_later_definition_repeats_the_first_creator() -> None:
    record = after(defined(by=GRACE, created_at=LONG_AGO, created_by="ada"))
    assert (record.created_at, record.created_by) == (LONG_AGO, "ada")


def test_a_deleted_job_is_not_paused() -> None:
    assert not after(defined(), PAUSED, DELETED).paused


def test_a_job_that_comes_back_is_new() -> None:
    record = after(defined(by=ADA), DELETED, defined(by=GRACE))
    assert (record.created_at, record.created_by, record.deleted) == (at(3), "grace", False)


def test_new_registration_forgets_the_last_run() -> None:
    fired = Due(job="nightly", scheduled_time=at(2), definition=1)
    assert after(defined(), fired, defined("30 * * * *")).last_scheduled == at(2)
    assert after(defined(), fired, DELETED).last_scheduled == at(2)
    assert after(defined(), fired, DELETED, defined()).last_scheduled is None


def test_a_time_fact_before_its_definition_creates_nothing() -> None:
    record = after(due(11), defined(by=ADA))
    assert (record.created_at, record.created_by) == (at(2), "ada")


@pytest.mark.parametrize("fact", [PAUSED, RESUMED, DELETED, defined()])
def test_every_definition_fact_is_a_change(fact: Message) -> None:
    assert after(defined(), fact).changed_at == at(2)


def test_time_facts_leave_the_regime() -> None:
    assert after(defined(), due(13), passed(14)).regime == after(defined()).regime
    assert after(defined(), PAUSED).regime != after(defined()).regime


def test_time_is_decided_up_to_the_latest() -> None:
    record = after(defined(), due(15), passed(17), due(14), passed(16))
    assert (record.decided_until, record.last_scheduled) == (NOON.replace(hour=17), NOON.replace(hour=14))


@pytest.mark.parametrize(
    ("facts", "hour"),
    [
        ((defined(),), 13),
        ((defined(), due(13)), 14),
        ((defined(), passed(15)), 16),
        ((defined(), due(11)), 13),
        ((defined(), PAUSED), None),
        ((defined(enabled=False),), None),
        ((defined(), DELETED), None),
        ((defined(None),), None),
        ((due(11),), None),
    ],
)
def test_the_next_run_follows_what_is_decided(facts: Sequence[Message], hour: int | None) -> None:
    assert after(*facts).next_run_time == (None if hour is None else NOON.replace(hour=hour))


def test_an_interval_counts_from_the_last_run() -> None:
    assert after(defined("@every 1h")).next_run_time == at(1) + timedelta(hours=1)
    last = Due(job="nightly", scheduled_time=at(90), definition=1)
    assert after(defined("@every 1h"), last).next_run_time == at(90) + timedelta(hours=1)


def test_what_is_known_is_carried_on() -> None:
    known = {"nightly": after(defined(by=ADA)), "other": after(defined())}
    found = job_record.fold(known, recorded([PAUSED, admitted(), RESUMED], start=at(10)))
    assert set(found) == {"nightly"}
    assert (found["nightly"].created_by, found["nightly"].paused) == ("ada", False)
    assert found["nightly"].changed_at == at(13)
    assert known["nightly"].changed_at == at(1)


def test_only_facts_of_ledgers_change_jobs() -> None:
    other = Due(job="hourly", scheduled_time=NOON, definition=1)
    assert job_record.jobs_of(recorded([admitted(), PAUSED, other])) == {"nightly", "hourly"}
    assert job_record.jobs_of(recorded([admitted()])) == set()


def test_a_definition_may_be_left_out() -> None:
    record = after(defined())
    lean = record.without_definition()
    assert (lean.definition, lean.timetable, lean.next_run_time) == (None, record.timetable, record.next_run_time)
    assert lean.without_definition() is lean
