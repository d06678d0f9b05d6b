"""The rule by which events of a job become notifications."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import ID, JOB, NOON, admitted, first_tasks, plan, recorded, started
from tocsin.domain import execution
from tocsin.domain.definition import DefinitionError, JobDefinition, JobDependency, Notify
from tocsin.domain.events import (
    Completed,
    Failed,
    Failure,
    Message,
    OutcomeChanged,
    Planned,
    QuorumRule,
    Recorded,
)
from tocsin.domain.execution import WaitsFor
from tocsin.domain.formats import read, read_job
from tocsin.domain.notification import MAX_REASON, MAX_WHY, Kind
from tocsin.domain.notification_rule import (
    REMEMBERED,
    TimedKind,
    TimeLimit,
    changed_outcome,
    notifications,
    of_failure,
    of_limit,
    of_recovery,
    rule_of,
    time_limits,
)

OPS = Notify(channels=("ops",), on_failure=True)
PAGER = Notify(channels=("pager",), on_failure=True, on_recovery=True)
TEAM = Notify(channels=("bill.ops",), on_failure=True)
MIXED = Notify(channels=("bill.ops", "ops"), on_failure=True)


@dataclass
class Rule:
    notify: Notify
    tags: Sequence[str] = ()
    owner: str | None = None


def failed(**fields: Any) -> Failed:  # noqa: ANN401 - of an event
    return Failed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", **fields)


def held(**fields: Any) -> Planned:  # noqa: ANN401 - of a plan
    of = plan().changed(**fields)
    return Planned(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", plan=of)


def completed() -> Completed:
    return Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron")


def definition(**fields: Any) -> JobDefinition:  # noqa: ANN401 - of a definition
    return JobDefinition.model_validate({"name": JOB, "function": "f", **fields})


@pytest.mark.parametrize(
    ("fields", "rules", "rule"),
    [
        ({}, [], None),
        ({"notify": {"channels": "ops", "on_failure": True}}, [Rule(PAGER)], OPS),
        ({}, [Rule(PAGER)], PAGER),
        ({"tags": ["nightly"]}, [Rule(OPS, tags=["billing"]), Rule(PAGER, tags=["a", "nightly"])], PAGER),
        ({"tags": ["nightly"]}, [Rule(OPS, tags=["billing"])], None),
        ({"owner": "user:ada"}, [Rule(OPS, owner="user:bob"), Rule(PAGER, owner="user:ada")], PAGER),
        ({"tags": ["nightly"]}, [Rule(OPS, tags=["nightly"], owner="user:ada")], None),
        ({"notify": {}}, [Rule(PAGER)], Notify()),
        ({"name": "pay.job", "tags": ["a"]}, [Rule(TEAM, tags=["a"]), Rule(PAGER)], PAGER),
        ({"name": "bill.job"}, [Rule(TEAM)], TEAM),
        ({"name": "pay.job"}, [Rule(MIXED)], OPS),
        ({"name": "bill.job"}, [Rule(MIXED)], MIXED),
        ({"name": "pay.job"}, [Rule(Notify()), Rule(PAGER)], Notify()),
    ],
)
def test_own_rule_comes_before_defaults(fields: dict[str, Any], rules: list[Rule], rule: Notify | None) -> None:
    assert rule_of(definition(**fields), rules) == rule


@pytest.mark.parametrize(
    ("notify", "part"),
    [
        ({"on_failure": True}, "names no channel"),
        ({"channels": ["ops"]}, "names no event"),
        ({"channels": ["Ops"], "on_failure": True}, "the name of a channel"),
        ({"channels": ["a", "a"], "on_failure": True}, "each channel once"),
        ({"channels": [f"c{n}" for n in range(11)], "on_failure": True}, "at most 10"),
        ({"channels": ["ops"], "on_failur": True}, "on_failur"),
        ({"channels": ["ops"], "on_failure": "yes"}, "on_failure"),
        ({"channels": ["ops"], "late_after": "32d"}, "at most 31 days"),
        ({"channels": ["ops"], "late_after": 0}, "late_after"),
        ({"channels": ["ops"], "must_complete_by": "24:00"}, "a time of the day"),
        ({"channels": ["ops"], "must_complete_by": 420}, "must_complete_by"),
    ],
)
def test_wrong_rule_is_refused(notify: dict[str, Any], part: str) -> None:
    with pytest.raises(DefinitionError, match=part):
        read_job({"name": "a", "function": "f", "notify": notify})


@pytest.mark.parametrize(
    "document",
    [
        {"name": "a", "schedule": "@daily", "function": "f.g"},
        {"name": "a", "cron": "@daily", "type": "f.g"},
        {"job_name": "a", "cron_expression": "@daily", "function": "f.g"},
    ],
)
def test_every_format_has_the_rule(document: dict[str, Any]) -> None:
    [job] = read({"jobs": [{**document, "notify": {"channels": ["ops"], "on_failure": True}}]})
    assert job.notify == OPS


@given(st.text(max_size=2_000), st.text(max_size=300), st.lists(st.text(max_size=200), max_size=40))
def test_notification_is_bounded_and_printable(message: str, step: str, tags: list[str]) -> None:
    happening = of_failure(failed(error=Failure(type="E", message=message), step=step, attempt=1), NOON)
    for fact in notifications(happening, PAGER, tags):
        assert len(fact.reason) <= MAX_REASON
        assert len(fact.why) <= MAX_WHY
        assert len(fact.tags) <= 20
        assert all(char.isprintable() or char == "\n" for text in (fact.reason, fact.why, *fact.tags) for char in text)


def test_rule_decides_on_kinds_and_channels() -> None:
    happening = of_failure(failed(reason="timed_out"), NOON)
    assert [fact.channel for fact in notifications(happening, PAGER, ())] == ["pager"]
    assert notifications(happening, Notify(channels=("ops",), on_skip=True), ()) == ()
    assert happening.reason == "timed_out"
    recovery = of_recovery(completed(), NOON, "run-1")
    assert recovery.kind is Kind.RECOVERED
    assert "run-1" in recovery.why


EVERY = Notify(channels=("ops",), late_after=600.0, must_complete_by="07:00", duration_over=7_200.0)


@pytest.mark.parametrize(
    ("scheduled", "timezone", "by"),
    [
        (datetime(2027, 3, 1, 2, tzinfo=UTC), "UTC", datetime(2027, 3, 1, 7, tzinfo=UTC)),
        (datetime(2027, 3, 1, 7, tzinfo=UTC), "UTC", datetime(2027, 3, 2, 7, tzinfo=UTC)),
        (datetime(2027, 3, 1, 7, tzinfo=UTC), "America/New_York", datetime(2027, 3, 1, 12, tzinfo=UTC)),
        (datetime(2027, 3, 14, 3, tzinfo=UTC), "America/New_York", datetime(2027, 3, 14, 11, tzinfo=UTC)),
    ],
)
def test_deadline_is_the_next_local_time(scheduled: datetime, timezone: str, by: datetime) -> None:
    request = admitted().changed(scheduled_time=scheduled)
    times = {limit.kind: limit.until for limit in time_limits(EVERY, request, scheduled, timezone)}
    assert times == {
        "late": scheduled + timedelta(minutes=10),
        "overdue": by,
        "slow": scheduled + timedelta(hours=2),
    }


def test_deadline_that_clocks_skip_moves_forward() -> None:
    rule = Notify(channels=("ops",), must_complete_by="02:30")
    before, after = datetime(2027, 3, 14, 5, tzinfo=UTC), datetime(2027, 3, 14, 7, 30, tzinfo=UTC)
    request = admitted().changed(scheduled_time=before)
    [limit] = time_limits(rule, request, before, "America/New_York")
    assert limit.until == after


def test_trigger_has_no_deadline_of_the_day() -> None:
    request = admitted().changed(trigger="manual")
    assert [limit.kind for limit in time_limits(EVERY, request, NOON, "UTC")] == ["late", "slow"]


def test_time_zone_that_is_gone_has_no_deadline() -> None:
    assert [limit.kind for limit in time_limits(EVERY, admitted(), NOON, "Gone/City")] == ["late", "slow"]


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ((), set()),
        ((admitted(), *first_tasks(admitted())), {"late", "overdue", "slow"}),
        ((admitted(), *first_tasks(admitted()), started()), {"overdue", "slow"}),
        ((admitted(), *first_tasks(admitted()), started(), completed()), set()),
        ((admitted(), *first_tasks(admitted()), started(), failed()), {"overdue"}),
    ],
)
def test_timer_finds_what_is_not_done(facts: tuple[Message, ...], found: set[str]) -> None:
    state = execution.fold(recorded(facts))
    kinds: tuple[TimedKind, ...] = ("late", "overdue", "slow")
    timed = {kind: of_limit(TimeLimit(kind, NOON, JOB, ID), state) for kind in kinds}
    assert {kind for kind, happening in timed.items() if happening is not None} == found


WAITS: dict[WaitsFor, tuple[Message, ...]] = {
    "dependency": (held(depends_on=(JobDependency(job="load"),)),),
    "acknowledgements": (held(quorum=QuorumRule(acknowledgements=1, timeout=30, max_attempts=1)),),
    "lock": (held(),),
    "worker": (admitted(), *first_tasks(admitted())),
    "delay": (admitted(),),
}


@pytest.mark.parametrize("kind", get_args(TimedKind))
@pytest.mark.parametrize("reason", get_args(WaitsFor))
def test_timer_names_what_is_waited_for(kind: TimedKind, reason: WaitsFor) -> None:
    state = execution.fold(recorded(WAITS[reason]))
    assert execution.waits_for(state) == reason
    happening = of_limit(TimeLimit(kind, NOON, JOB, ID), state)
    assert happening is not None
    assert f"it waits for {execution.WAITS[reason]}" in happening.why


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=30), st.data())
def test_each_row_of_failures_has_one_recovery(ends: list[tuple[bool, int]], data: st.DataObject) -> None:
    """With any redelivery, the recoveries are the completions after failures."""
    log: list[Recorded[Any]] = []
    at = NOON
    for sequence, (has_failed, hours) in enumerate(ends, start=1):
        at += timedelta(hours=hours)
        log.append(Recorded(failed() if has_failed else completed(), "", sequence, at))
    outcome: OutcomeChanged | None = None
    recovered: list[int] = []
    for place, delivered in enumerate(log):
        again = data.draw(st.integers(0, place), label="delivered again")
        for each in (delivered, log[again]):
            change = changed_outcome(outcome, each.message, each)
            if change is not None and not change.is_failing:
                recovered.append(each.sequence)
            outcome = change or outcome
    expected = [
        after.sequence
        for before, after in pairwise(log)
        if isinstance(before.message, Failed) and isinstance(after.message, Completed)
    ]
    assert recovered == expected


def test_failure_is_stored_again_after_a_day() -> None:
    first = changed_outcome(None, failed(), Recorded(failed(), "", 1, NOON))
    assert first is not None
    soon = Recorded(failed(), "", 2, NOON + REMEMBERED - timedelta(seconds=1))
    later = Recorded(failed(), "", 3, NOON + REMEMBERED)
    assert changed_outcome(first, failed(), soon) is None
    assert changed_outcome(first, failed(), later) is not None
