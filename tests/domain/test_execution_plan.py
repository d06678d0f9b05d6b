"""From a definition to what one execution does."""

from datetime import timedelta

import pytest

from tests.domain.given import JOB, NOON
from tocsin.domain import execution_plan, ids
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Admitted, Due, Passed, Planned, Recorded, Trigger
from tocsin.domain.text import utc_text


def job(**more: object) -> JobDefinition:
    return JobDefinition.model_validate({"name": JOB, "schedule": "0 3 * * *", "function": "f", **more})


DUE = Due(job=JOB, scheduled_time=NOON, definition=7)


def triggered(message_id: str | None = None, **more: object) -> Recorded[Trigger]:
    return Recorded(Trigger.model_validate(more), f"trigger.{JOB}", 12, NOON, message_id)


@pytest.mark.parametrize(
    ("policy", "kind"),
    [("allow", Admitted), ("skip", Planned), ("enqueue", Planned), ("cancel_previous", Planned)],
)
def test_execution_without_a_lock_is_admitted_directly(policy: str, kind: type) -> None:
    assert type(execution_plan.from_due(DUE, job(overlap_policy=policy))) is kind


def test_an_occurrence_is_named_by_its_instant() -> None:
    planned = execution_plan.from_due(DUE, job())
    assert planned.execution_id == ids.occurrence_id(JOB, NOON)
    assert (planned.scheduled_time, planned.trigger, planned.plan.definition) == (NOON, "cron", 7)


def test_cron_20_scheduled_run_carries_its_jobs_name() -> None:
    meta = execution_plan.from_due(DUE, job(meta={"team": "billing"})).meta
    assert meta == {"team": "billing", "cron_name": JOB, "cron_triggered_at": utc_text(NOON)}


def test_triggered_run_records_the_actor() -> None:
    planned = execution_plan.from_trigger(triggered(trigger="manual", by={"identity": "ada"}), job(), 7)
    assert (planned.trigger, planned.by and planned.by.identity, planned.plan.meta) == ("manual", "ada", {})


def test_redelivered_trigger_is_the_same_execution() -> None:
    definition = job()
    one = execution_plan.from_trigger(triggered("a"), definition, 7)
    assert execution_plan.from_trigger(triggered("a"), definition, 7) == one
    assert execution_plan.from_trigger(triggered("b"), definition, 7).execution_id != one.execution_id


def test_trigger_without_id_is_named_by_its_sequence() -> None:
    assert execution_plan.execution_id_of(triggered(), JOB) == ids.sequence_trigger_id(JOB, 12, NOON)


def test_trigger_input_overrides_job_input() -> None:
    definition = job(input={"a": 1, "b": 2})
    plan = execution_plan.from_trigger(triggered(input={"b": 3}), definition, 7).plan
    assert (plan.input, plan.steps[0].input) == ({"a": 1, "b": 3}, None)


def test_every_step_is_resolved() -> None:
    definition = job(
        function=None,
        timeout=10,
        execution_timeout=60,
        queue="etl",
        dag=[{"name": "a", "function": "f"}, {"name": "b", "function": "g", "depends_on": ["a"], "timeout": 5}],
    )
    assert execution_plan.from_due(DUE, definition).plan.execution_timeout == 60
    a, b = execution_plan.from_due(DUE, definition).plan.steps
    assert (a.timeout, a.queue, a.retry) == (10, "etl", definition.retry)
    assert (b.timeout, b.depends_on) == (5, ("a",))


def test_step_input_ranks_below_trigger_input() -> None:
    steps = [{"name": "a", "function": "f", "input": {"a": 1, "b": 2}}, {"name": "b", "function": "f"}]
    plan = execution_plan.from_trigger(triggered(input={"b": 3}), job(function=None, dag=steps, input={"c": 4}), 7).plan
    assert plan.input == {"c": 4, "b": 3}
    assert [step.input for step in plan.steps] == [{"a": 1, "b": 3}, None]


def passed(reason: str) -> Passed:
    instants = (NOON, NOON + timedelta(hours=1))
    times = instants if reason in {"paused", "dst_skip"} else ()
    return Passed.model_validate(
        {
            "job": JOB,
            "start": NOON - timedelta(hours=1),
            "until": instants[-1],
            "reason": reason,
            "count": 2,
            "definition": 7,
            "scheduled_times": times,
        }
    )


@pytest.mark.parametrize(("reason", "expected"), [("paused", "disabled"), ("dst_skip", "dst_skip")])
def test_announced_skips_are_recorded_separately(reason: str, expected: str) -> None:
    skipped = execution_plan.skipped_instants(passed(reason), job())
    assert [(s.reason, s.scheduled_time) for s in skipped] == [(expected, NOON), (expected, NOON + timedelta(hours=1))]
    assert skipped[0].execution_id == ids.passed_id(JOB, NOON) != ids.occurrence_id(JOB, NOON)


def test_nonexistent_local_time_may_share_a_firing_instant() -> None:
    due = DUE.model_copy(update={"dst_skip": True})
    [skipped] = execution_plan.skipped_instants(due, job())
    assert (skipped.reason, skipped.scheduled_time) == ("dst_skip", NOON)
    assert skipped.execution_id != execution_plan.from_due(due, job()).execution_id
    assert execution_plan.skipped_instants(DUE, job()) == []


@pytest.mark.parametrize("reason", ["missed", "superseded", "throttled"])
def test_missed_instants_are_in_the_ledger_only(reason: str) -> None:
    assert execution_plan.skipped_instants(passed(reason), job()) == []
