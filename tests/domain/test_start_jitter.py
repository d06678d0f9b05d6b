"""The jitter of a job: the door, the draw, and everything that must not take a delayed start for a late one."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.domain.given import ID, JOB, KEY, NOON, admitted, plan, recorded, started
from tocsin.domain import execution, execution_plan, history, ids, lock, recovery
from tocsin.domain.definition import JobDefinition, Notify
from tocsin.domain.events import Admitted, Due, Plan, Recorded, Trigger, TriggerSource
from tocsin.domain.execution import Phase
from tocsin.domain.fan_out import on_each_shard
from tocsin.domain.formats import read_job
from tocsin.domain.notification_rule import time_limits
from tocsin.domain.recovery import Policy
from tocsin.domain.start_jitter import start_delay
from tocsin.domain.totals import Total, growth_of_log

DELAY = 120.0
DELAYED = plan().changed(start_delay=DELAY, start_at=NOON + timedelta(seconds=DELAY))
SECOND = timedelta(seconds=1)


def job(**more: object) -> JobDefinition:
    return JobDefinition.model_validate({"name": JOB, "schedule": "0 3 * * *", "function": "f", **more})


def due(at: datetime = NOON, **more: Any) -> Due:  # noqa: ANN401 - fields
    return Due(job=JOB, scheduled_time=at, definition=7, **more)


def delay_of(plan_: Plan) -> float:
    assert plan_.start_delay is not None
    return plan_.start_delay


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"schedule": "0 3 * * *"}, 0.0),
        ({"schedule": "0 3 * * *", "jitter": 0}, 0.0),
        ({"schedule": "0 3 * * *", "jitter": "5m"}, 300.0),
        ({"schedule": "*/5 * * * *", "jitter": "4m59s"}, 299.0),
        ({"schedule": "@every 10s", "jitter": 9.5}, 9.5),
        ({"schedule": "at 2031-03-01T09:00", "jitter": "24h"}, 86_400.0),
        ({"schedule": "0 3 29 2 *", "jitter": "24h"}, 86_400.0),
        ({"schedule": "0 0 1 1 * from 2031-06-01T00:00 until 2032-06-01T00:00", "jitter": "24h"}, 86_400.0),
        ({"schedule": "0 3 * * * from 9998-12-31T00:00", "jitter": "5m"}, 300.0),
        ({"schedule": "0 3 * * * until 0002-01-02T00:00", "jitter": "5m"}, 300.0),
    ],
)
def test_jitter_is_less_than_the_interval(fields: Mapping[str, object], seconds: float) -> None:
    assert read_job({"name": "a", "function": "f", **fields}).jitter == seconds


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"jitter": "5m"}, "exclusive-fields", "give the job a schedule"),
        ({"schedule": "0 3 * * *", "jitter": "24h1s"}, "out-of-range", "at most 24h"),
        ({"schedule": "0 3 * * *", "jitter": "24h"}, "out-of-range", "less than 24h"),
        ({"schedule": "*/5 * * * *", "jitter": "5m"}, "out-of-range", "less than 5m"),
        ({"schedule": "*/5 * * * * until 2027-01-01T00:00", "jitter": "5m"}, "out-of-range", "less than 5m"),
        (
            {"schedule": "*/5 * * * * from 2026-01-01T00:00 until 2026-01-01T00:05", "jitter": "5m"},
            *("out-of-range", "less than 5m"),
        ),
        ({"schedule": "*/5 * * * * from 9998-12-31T00:00", "jitter": "5m"}, "out-of-range", "less than 5m"),
        ({"schedule": "*/5 * * * * until 0002-01-02T00:00", "jitter": "5m"}, "out-of-range", "less than 5m"),
        ({"schedule": "0,59 * * * *", "jitter": "5m"}, "out-of-range", "less than 1m"),
        ({"schedule": "@every 10s", "jitter": 10}, "out-of-range", "less than 10s"),
        ({"schedule": "0 3 * * *", "timezone": "Europe/Berlin", "jitter": "23h30m"}, "out-of-range", "less than 23h"),
    ],
)
def test_jitter_beyond_the_interval_is_refused(fields: Mapping[str, object], code: str, reason: str) -> None:
    with pytest.raises(ValidationError) as refused:
        JobDefinition.model_validate({"name": "a", "function": "f", **fields})
    error = refused.value.errors()[0]["ctx"]["error"]
    assert [(problem.field, problem.code) for problem in error.problems] == [("jitter", code)]
    assert reason in str(error)


@given(st.uuids().map(str), st.floats(0.001, 86_400.0))
def test_delay_is_drawn_once_from_the_id(execution_id: str, jitter: float) -> None:
    delay = start_delay(execution_id, jitter)
    assert 0 <= delay < jitter
    assert delay == start_delay(execution_id, jitter)
    assert delay * 1_000 == pytest.approx(round(delay * 1_000))


def test_delays_are_spread_evenly() -> None:
    instants = [NOON + timedelta(days=n) for n in range(2_000)]
    tenths = [int(start_delay(ids.occurrence_id(JOB, at), 10.0)) for at in instants]
    assert {tenth: 150 < tenths.count(tenth) < 250 for tenth in tenths} == dict.fromkeys(range(10), True)


@pytest.mark.parametrize("policy", ["skip", "allow"])
@pytest.mark.parametrize("late", [timedelta(), timedelta(hours=5)])
def test_start_counts_from_the_decision(policy: str, late: timedelta) -> None:
    definition = job(jitter="5m", overlap_policy=policy)
    first = execution_plan.from_due(due(catch_up=bool(late)), definition, NOON + late)
    assert first.plan.start_delay == start_delay(ids.occurrence_id(JOB, NOON), 300.0)
    assert first.plan.start_at == NOON + late + timedelta(seconds=delay_of(first.plan))
    assert execution_plan.from_due(due(catch_up=bool(late)), definition, NOON + late) == first


@pytest.mark.parametrize("trigger", ["manual", "api", "replay"])
def test_other_triggers_start_at_once(trigger: TriggerSource) -> None:
    request = Recorded(Trigger(trigger=trigger), f"trigger.{JOB}", 12, NOON, "m")
    resolved = execution_plan.from_trigger(request, job(jitter="5m"), 7).plan
    assert (resolved.start_at, resolved.start_delay) == (None, None)


def test_each_shard_draws_its_own_delay() -> None:
    definition = job(jitter="5m", partition="all_shards")
    first = execution_plan.from_due(due(), definition, NOON)
    runs = [on_each_shard(first, shard, definition.jitter) for shard in ("eu-1", "eu-2")]
    assert [run.plan.start_delay for run in runs] == [start_delay(run.execution_id, 300.0) for run in runs]
    assert all(run.plan.start_at == NOON + timedelta(seconds=delay_of(run.plan)) for run in runs)


def test_plan_without_jitter_stores_what_it_did() -> None:
    assert b"start" not in execution_plan.from_due(due(), job(), NOON).plan.encode()


def test_first_task_waits_for_the_start() -> None:
    admission = admitted(DELAYED)
    assert isinstance(execution.admit_and_dispatch(admission, key=KEY), Admitted)
    state = execution.fold(recorded([admission]))
    assert execution.dispatch(state, key=KEY) == []
    assert [(step.phase, step.next_attempt_at) for step in state.steps.values()] == [(Phase.RETRYING, DELAYED.start_at)]
    assert execution.waits_for(state) == "delay"
    assert execution.dispatch_missing(state, at=NOON + timedelta(seconds=DELAY - 1), key=KEY) == []
    [task] = execution.dispatch_missing(state, at=NOON + timedelta(seconds=DELAY), key=KEY)
    assert task.attempt == 1


def test_waiting_execution_is_cancelled_for_good() -> None:
    state = execution.fold(recorded([admitted(DELAYED)]))
    [(step, attempt, until)] = execution.retry_times(state)
    assert until == DELAYED.start_at
    over = execution.fold(recorded([*execution.cancel(state)]), state)
    assert over.is_over
    assert execution.dispatch_retry(over, step, attempt, key=KEY) == []


def test_wait_for_the_start_is_no_loss() -> None:
    facts = [Recorded(admitted(DELAYED), f"execution.{JOB}.{ID}.admitted", 1, NOON)]
    findings = recovery.examine(facts, now=NOON + timedelta(days=1), policy=Policy())
    assert findings is not None
    assert findings.stalled == ()


def test_execution_timeout_begins_at_the_start() -> None:
    limited = DELAYED.changed(execution_timeout=60.0)
    facts = [Recorded(admitted(limited), f"execution.{JOB}.{ID}.admitted", 1, NOON)]
    over = [recovery.examine(facts, now=NOON + timedelta(seconds=at), policy=Policy()) for at in (179, 180)]
    assert [findings is not None and findings.is_expired for findings in over] == [False, True]


def test_limits_count_from_a_later_admission() -> None:
    later = NOON + timedelta(seconds=DELAY + 300)
    limited = admitted(DELAYED.changed(execution_timeout=60.0))
    facts = [Recorded(limited, f"execution.{JOB}.{ID}.admitted", 1, later)]
    over = [recovery.examine(facts, now=later + at * SECOND, policy=Policy()) for at in (59, 60)]
    assert [findings is not None and findings.is_expired for findings in over] == [False, True]
    [slow] = time_limits(Notify(channels=("ops",), duration_over=7_200.0), limited, later, "UTC")
    assert slow.until == later + timedelta(seconds=7_200)


def test_lock_lives_longer_by_the_delay() -> None:
    assert lock.ttl(admitted(DELAYED)) == lock.ttl(admitted()) + DELAY


def test_notifications_wait_for_the_start() -> None:
    rule = Notify(channels=("ops",), late_after=600.0, duration_over=7_200.0)
    times = {limit.kind: limit.until for limit in time_limits(rule, admitted(DELAYED), NOON, "UTC")}
    plain = {limit.kind: limit.until for limit in time_limits(rule, admitted(), NOON, "UTC")}
    assert times == {kind: until + timedelta(seconds=DELAY) for kind, until in plain.items()}


def test_lateness_does_not_count_the_delay() -> None:
    facts = [
        Recorded(admitted(DELAYED), "", 1, NOON),
        Recorded(started(), "", 2, NOON + timedelta(seconds=DELAY + 0.2)),
    ]
    before = history.fold({}, facts[:1])
    after = history.fold(before, facts[1:])
    assert after[ID].start_delay_ms == DELAY * 1_000
    grown = growth_of_log(before, after, facts[1:], [])
    assert grown.of_registered[Total("lateness", label="0.25")] == 1
    assert grown.of_registered[Total("lateness_ms")] == 200
