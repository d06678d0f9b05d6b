"""Replays with other schedules, policies, limits and workers."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from tests.services.what_if.history import History
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import AgentGranted, Namespace, NamespacesDefined, QueueGrant, Recorded
from tocsin.domain.what_if import WhatIfReport
from tocsin.ports.queries import InvalidQuery
from tocsin.services import what_if
from tocsin.services.jobs import Registry
from tocsin.services.what_if import Question, WhatIf
from tocsin.settings import Queue
from tocsin.settings.model import QueueRate

MIDNIGHT = datetime(2026, 5, 11, tzinfo=UTC)
HOURLY = {"name": "report", "schedule": "0 * * * *", "function": "f", "overlap_policy": "skip"}


async def recorded(*rules: Mapping[str, Any], minutes: float = 90, wait: float = 1.0, **more: Any) -> History:  # noqa: ANN401
    """Return six hours in which each run takes some minutes, from 00:00 to 06:30."""
    rules = rules or (HOURLY,)
    history = History(
        *(Random(0), 6.5),
        rules=tuple(map(dict, rules)),
        durations=(minutes * 60,),
        waits=(wait,),
        start=MIDNIGHT,
        **more,
    )
    await history.record()
    return history


async def ask(
    history: History,
    *rules: Mapping[str, Any],
    queues: Mapping[str, Queue] | None = None,
    **fields: Any,  # noqa: ANN401
) -> WhatIfReport:
    """Replay the history with other definitions."""
    log, clock = history.world.log, history.world.clock
    definitions = tuple(JobDefinition.model_validate(rule) for rule in rules)
    jobs = await Registry(log, history.world.projections, clock).jobs() if "capacity" in fields else ()
    window = {"since": MIDNIGHT, "until": history.now} | fields
    return await WhatIf(log, history.world.past, queues=queues or {}).ask(Question(definitions, **window), jobs)


async def test_overlap_policy_allow_would_skip_nothing() -> None:
    history = await recorded()
    report = await ask(history, {**HOURLY, "overlap_policy": "allow"})
    [job] = report.jobs
    assert (job.before.skipped, job.after.skipped) == ({"overlap_skip": 3}, {})
    assert (job.before.outcomes, job.after.outcomes) == (
        {"completed": 2, "running": 1, "skipped": 3},
        {"completed": 4, "running": 2},
    )
    assert job.after.overlaps == 5
    assert [change.after.is_estimated for change in job.differences.first] == [True, True, True]
    assert job.differences.count == 3


async def test_enqueued_executions_would_wait_for_the_recorded_durations() -> None:
    history = await recorded()
    report = await ask(history, {**HOURLY, "overlap_policy": "enqueue"})
    [job] = report.jobs
    # Each run takes 90 minutes and a second, so the second waits half an hour, and the third an hour.
    waits = [round(change.after.lock_wait, -1) for change in job.differences.first if change.after.lock_wait]
    assert waits == [1_800, 3_600, 5_400]
    assert job.after.outcomes == {"completed": 3, "running": 1, "waiting": 2}
    assert (job.after.lock_waits.count, round(job.after.lock_waits.max, -1)) == (3, 5_400)


async def test_shorter_queue_would_be_full() -> None:
    history = await recorded({**HOURLY, "overlap_policy": "enqueue", "max_waiting": 10})
    report = await ask(history, {**HOURLY, "overlap_policy": "enqueue", "max_waiting": 1})
    [job] = report.jobs
    assert job.before.skipped == {}
    assert job.after.skipped == {"queue_full": 1}


async def test_cancel_previous_would_cut_runs_off() -> None:
    history = await recorded()
    report = await ask(history, {**HOURLY, "overlap_policy": "cancel_previous"})
    assert report.after.superseded == 5
    assert report.after.outcomes == {"cancelled": 5, "running": 1}


async def test_other_schedule_adds_and_removes_instants() -> None:
    history = await recorded(minutes=5)
    report = await ask(history, {**HOURLY, "schedule": "0,20 2-6/2 * * *"})
    [job] = report.jobs
    assert [at.strftime("%H:%M") for at in job.came.first] == ["02:20", "04:20", "06:20"]
    assert [at.strftime("%H:%M") for at in job.went.first] == ["01:00", "03:00", "05:00"]
    assert (job.before.fired, job.after.fired) == (6, 6)
    assert (job.recorded_runs, round(job.usual_duration)) == (6, 300)


async def test_other_zone_skips_a_local_time() -> None:
    start = datetime(2026, 3, 28, 23, 30, tzinfo=UTC)
    rule = {**HOURLY, "schedule": "30 2 * * *", "timezone": "UTC"}
    history = History(Random(0), 4.0, rules=(rule,), durations=(60,), waits=(1,), start=start)
    await history.record()
    report = await ask(history, {**rule, "timezone": "Europe/Berlin"}, since=start)
    assert report.before.fired == 1
    assert (report.after.fired, report.after.passed) == (0, {"dst_skip": 1})


async def test_catch_up_policy_decides_on_recorded_absence() -> None:
    history = await recorded(minutes=5, absences=((1.5, 4.25),))
    report = await ask(history, {**HOURLY, "catch_up": "all", "overlap_policy": "allow"})
    assert (report.before.fired, report.before.passed) == (4, {"missed": 2})
    assert (report.after.fired, report.after.passed) == (6, {})


async def test_pause_is_in_force_from_its_request() -> None:
    history = await recorded(minutes=5, absences=((2.5, 3.5),), job_pauses=((2.55, 3.45),))
    report = await ask(history, {**HOURLY, "schedule": "0,20,40 * * * *", "catch_up": "all", "overlap_policy": "allow"})
    assert (report.before.fired, report.before.passed) == (2, {"paused": 4})
    assert (report.after.fired, report.after.passed) == (7, {"paused": 12})
    early = await ask(history, {**HOURLY, "timeout": 9}, since=MIDNIGHT + timedelta(hours=3))
    assert (early.before.passed, early.after.passed) == ({"paused": 4}, {"paused": 4})


async def test_other_instants_are_missed_without_leader() -> None:
    history = await recorded(minutes=5, absences=((1.5, 1.9),))
    report = await ask(history, {**HOURLY, "schedule": "*/10 * * * *", "catch_up": "skip"})
    # 01:40 and 01:50 are in the gap; its other instants come when a ticker leads.
    assert report.after.passed == {"missed": 2}


async def test_fewer_slots_would_delay_starts() -> None:
    jobs = [{**HOURLY, "name": name, "overlap_policy": "allow"} for name in ("a", "b", "c")]
    history = await recorded(*jobs, minutes=10)
    report = await ask(history, capacity={"default": 1})
    assert [job.job for job in report.jobs] == ["a", "b", "c"]
    assert not any(job.tried for job in report.jobs)
    # At each hour one of the three starts at once, and the others wait for 10 and for 20 minutes.
    assert (report.after.worker_waits.count, round(report.after.worker_waits.total, -1)) == (12, 6 * (600 + 1_200))
    assert round(report.after.worker_waits.max) == 1_200


EACH = {**HOURLY, "schedule": "*/10 * * * *", "overlap_policy": "allow"}


async def test_paused_queue_starts_nothing_in_the_replay() -> None:
    history = await recorded(EACH, minutes=1, pauses=((1.05, 2.55),))
    report = await ask(history, capacity={"default": 100})
    [job] = report.jobs
    # The instants from 01:10 to 02:30 wait until the queue is resumed at 02:33, with the slots given as without.
    assert (job.before.worker_waits.max, job.after.worker_waits.max) == pytest.approx((83 * 60, 83 * 60), abs=3)
    assert job.differences.count == 0 or all(
        abs((one.before.started_at - one.after.started_at).total_seconds()) < 3  # type: ignore[operator]
        for one in job.differences.first
    )


async def test_queue_that_stays_paused_starts_nothing() -> None:
    history = await recorded(EACH, minutes=1, pauses=((1.05, 99.0),))
    report = await ask(history, capacity={"default": 100})
    assert report.after.outcomes["running"] == report.before.outcomes["running"]
    assert report.after.outcomes["completed"] == report.before.outcomes["completed"]


async def test_limits_of_the_queue_hold_tasks_back() -> None:
    jobs = [{**HOURLY, "name": name, "overlap_policy": "allow"} for name in ("a", "b", "c")]
    history = await recorded(*jobs, minutes=10)
    one_at_a_time = await ask(history, capacity={"default": 3}, queues={"default": Queue(concurrency=1)})
    # At each hour one of the three starts at once, and the others wait for 10 and for 20 minutes.
    assert round(one_at_a_time.after.worker_waits.total, -1) == 6 * (600 + 1_200)
    rate = QueueRate(limit=1, per=timedelta(minutes=5).total_seconds(), burst=1)
    spread = await ask(history, capacity={"default": 3}, queues={"default": Queue(rate=rate)})
    # One starts at once, one after 5 minutes, one after 10.
    assert round(spread.after.worker_waits.total, -1) == 6 * (300 + 600)
    free = await ask(history, capacity={"default": 3})
    assert free.after.worker_waits.total < 10


async def test_fast_rate_comes_to_an_end() -> None:
    jobs = [{**HOURLY, "name": name, "overlap_policy": "allow"} for name in "abcdefgh"]
    history = await recorded(*jobs, minutes=10)
    rate = QueueRate(limit=1_000_000, per=1.0, burst=1)
    report = await ask(history, capacity={"default": 100}, queues={"default": Queue(rate=rate)})
    assert report.after.worker_waits.max < 1
    assert report.after.outcomes["completed"] == report.before.outcomes["completed"]


async def test_answer_names_the_rules_that_are_left_out() -> None:
    history = await recorded(EACH, minutes=1)
    await history.world.log.append(NamespacesDefined(namespaces=(Namespace(name="default", max_running=1),)), expect=0)
    changed = {**EACH, "concurrency": {"limit": 1}}
    queues = {"default": Queue(concurrency=1)}
    assert not (await ask(history, EACH, queues=queues)).jobs[0].notes
    [job] = (await ask(history, changed, queues=queues)).jobs
    assert [note for note in job.notes if "limits of the queue default" in note]
    granted = AgentGranted(name="w", grants=(QueueGrant(queue="default", functions=("g",)),))
    await history.world.log.append(granted, expect=0)
    [job] = (await ask(history, capacity={"default": 1}, queues=queues)).jobs
    assert [note for note in job.notes if "functions an agent may serve" in note]
    assert not [note for note in job.notes if "limits of the queue" in note]


async def test_priority_goes_first_when_slots_are_rare() -> None:
    jobs = [{**HOURLY, "name": name, "overlap_policy": "allow"} for name in ("a", "b", "c")]
    history = await recorded(*jobs, minutes=10)
    report = await ask(history, {**jobs[2], "priority": 10}, capacity={"default": 1})
    first = min(report.jobs, key=lambda job: job.after.worker_waits.total)
    assert first.after.worker_waits.max <= 600


async def test_concurrency_limit_would_hold_tasks_back() -> None:
    rule = {**HOURLY, "schedule": "*/15 * * * *", "overlap_policy": "allow"}
    history = await recorded(rule, minutes=20)
    report = await ask(history, {**rule, "concurrency": {"limit": 1}})
    assert report.before.overlaps > 0
    # Every quarter of an hour a run of 20 minutes comes, and one runs at a time.
    assert report.after.worker_waits.max > 3_600
    assert sum(report.after.outcomes.values()) == sum(report.before.outcomes.values())


async def test_forecast_compares_the_registered_definition() -> None:
    history = await recorded(minutes=90)
    window: dict[str, Any] = {"since": None, "until": history.now + timedelta(hours=6)}
    report = await ask(history, {**HOURLY, "overlap_policy": "allow"}, **window)
    assert report.is_forecast
    assert (report.before.fired, report.after.fired) == (6, 6)
    assert report.before.skipped == {"overlap_skip": 3}
    assert report.after.skipped == {}


async def test_job_without_a_past_gets_instants() -> None:
    history = await recorded()
    report = await ask(history, {**HOURLY, "name": "new"})
    [job] = report.jobs
    assert (job.before.fired, job.after.fired, job.came.count) == (0, 6, 6)
    assert len(job.notes) == 2


async def test_hidden_definition_has_no_past() -> None:
    history = await recorded()

    async def nothing(_: Recorded[Any]) -> bool:
        return False

    log = history.world.log
    question = Question((JobDefinition.model_validate(HOURLY),), MIDNIGHT, history.now)
    report = await WhatIf(log, history.world.past).ask(question, (), may_see=nothing)
    assert report.before.executions == 0
    assert report.jobs[0].recorded_runs == 0


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"since": MIDNIGHT - timedelta(days=40)}, "since"),
        ({"since": MIDNIGHT + timedelta(days=2), "until": MIDNIGHT + timedelta(days=1)}, "since"),
        ({"until": MIDNIGHT + timedelta(days=3)}, "until"),
        ({"since": datetime(1, 1, 1, tzinfo=UTC)}, "since"),
        ({"capacity": {"default": -1}}, "capacity.default"),
        ({"capacity": {"no queue": 1}}, "capacity"),
    ],
)
async def test_error_names_the_field_of_the_question(fields: dict[str, Any], field: str) -> None:
    history = await recorded()
    with pytest.raises(InvalidQuery) as caught:
        await ask(history, HOURLY, **fields)
    assert caught.value.field == field


async def test_question_without_a_change_is_refused() -> None:
    history = await recorded()
    with pytest.raises(InvalidQuery) as caught:
        await ask(history)
    assert caught.value.field == "jobs"


async def test_too_many_instants_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "MAX_INSTANTS", 1_000)
    history = await recorded()
    rule = {**HOURLY, "schedule": "* * * * * *"}
    window: dict[str, Any] = {"since": None, "until": history.now + timedelta(days=31)}
    with pytest.raises(InvalidQuery) as caught:
        await ask(history, rule, **window)
    assert "instants" in str(caught.value)
