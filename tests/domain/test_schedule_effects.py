"""The effect of a change on a job's time: instants come and go, and nothing of the past fires."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties import examples
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.definition_changes import MAX_INSTANTS, schedule_effects
from tocsin.domain.events import Message, Recorded
from tocsin.domain.ledger import Ledger

NOW = datetime(2026, 3, 27, 12, 0, tzinfo=UTC)
WEEK = NOW + timedelta(days=7)
START = NOW - timedelta(days=2)


def job(schedule: str | None = "0 9 * * *", **more: object) -> JobDefinition:
    return JobDefinition.model_validate({"name": "job", "schedule": schedule, "function": "f", **more})


def registered(definition: JobDefinition, *facts: Message, since: datetime = NOW - timedelta(days=30)) -> Ledger:
    """A ledger in which the job was defined a while ago, and is decided up to now."""
    state = ledger.fold([Recorded(ledger.define(ledger.initial, definition)[0], "", 1, since)])
    sequence = 2
    for fact in (*ledger.decide_instants(state, NOW), *facts):
        state = ledger.evolve(state, Recorded(fact, "", sequence, NOW))
        sequence += 1
    return state


def test_a_new_job_only_adds_instants() -> None:
    effects = schedule_effects(ledger.initial, job(), NOW, WEEK)
    assert len(effects.added) == 7
    assert (effects.removed, effects.fires_at_once) == ((), ())


def test_edit_lists_added_removed_and_kept_instants() -> None:
    effects = schedule_effects(registered(job("0 9,12 * * *")), job("0 9,18 * * *"), NOW, WEEK)
    assert {at.hour for at in effects.added} == {18}
    assert {at.hour for at in effects.removed} == {12}
    assert len(effects.added) == len(effects.removed) == 7


def test_a_deletion_removes_all() -> None:
    effects = schedule_effects(registered(job()), None, NOW, WEEK)
    assert (len(effects.added), len(effects.removed)) == (0, 7)


def test_disabled_or_paused_job_keeps_no_instants() -> None:
    assert len(schedule_effects(registered(job()), job(enabled=False), NOW, WEEK).removed) == 7
    paused = registered(job())
    [fact] = ledger.pause(paused, "job")
    paused = ledger.evolve(paused, Recorded(fact, "", 99, NOW))
    assert schedule_effects(paused, job("0 10 * * *"), NOW, WEEK).added == ()


def test_clock_changes_are_listed() -> None:
    effects = schedule_effects(ledger.initial, job("30 2 * * *", timezone="Europe/Berlin"), NOW, WEEK)
    [change] = effects.clock_changes
    assert (change.kind, change.effect, change.at.isoformat()) == ("gap", "skipped", "2026-03-29T01:00:00+00:00")


def test_frequent_job_is_compared_within_a_limit() -> None:
    effects = schedule_effects(registered(job("* * * * * *")), job("*/2 * * * * *"), NOW, WEEK)
    assert effects.until == NOW + timedelta(seconds=MAX_INSTANTS)
    assert (len(effects.added), len(effects.removed)) == (0, MAX_INSTANTS // 2)


def test_a_job_without_a_schedule_has_no_instants() -> None:
    effects = schedule_effects(registered(job()), job(None), NOW, WEEK)
    assert (effects.added, len(effects.removed), effects.clock_changes) == ((), 7, ())


def test_catch_up_of_the_past_is_announced() -> None:
    since = NOW - timedelta(hours=3)
    state = ledger.fold([Recorded(ledger.define(ledger.initial, job("@hourly"))[0], "", 1, since)])
    effects = schedule_effects(state, job("@hourly", catch_up="all"), NOW + timedelta(minutes=5), WEEK)
    assert [at.hour for at in effects.fires_at_once] == [10, 11]


SCHEDULES = st.sampled_from(["* * * * *", "0 9 * * *", "*/7 * * * *", "@every 90s", "@daily", "59 11 27 3 *"])
POLICIES = st.sampled_from(["once", "skip", "all"])


@given(before=SCHEDULES, after=SCHEDULES, policy=POLICIES, silence=st.integers(0, 7_200))
@settings(max_examples=examples(60), deadline=None)
def test_no_edit_fires_anything_of_the_past(before: str, after: str, policy: str, silence: int) -> None:
    """Missed instants without a leader: an edit of the schedule makes none of the new instants due."""
    silent_since = NOW - timedelta(seconds=silence)
    state = ledger.fold([Recorded(ledger.define(ledger.initial, job(before, catch_up=policy))[0], "", 1, START)])
    for sequence, fact in enumerate(ledger.decide_instants(state, silent_since), start=2):
        state = ledger.evolve(state, Recorded(fact, "", sequence, silent_since))
    assert schedule_effects(state, job(after, catch_up=policy), NOW, WEEK).fires_at_once == ()
