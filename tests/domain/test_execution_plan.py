"""From a definition to what one execution does."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from tests.domain.given import JOB, KEY, NOON
from tocsin.domain import execution_plan, ids
from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.definition.errors import problems
from tocsin.domain.events import Admitted, Dispatched, Due, Passed, Planned, Recorded, Trigger
from tocsin.domain.execution import admit_and_dispatch, dispatch, fold
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


@pytest.mark.parametrize("reason", ["missed", "superseded"])
def test_missed_instants_are_in_the_ledger_only(reason: str) -> None:
    assert execution_plan.skipped_instants(passed(reason), job()) == []


GRAPH = [{"name": "a", "function": "f", "priority": 9}, {"name": "b", "function": "f", "input": {"customer": 7}}]


@pytest.mark.parametrize(
    ("given", "expected"), [({}, [9, -5]), ({"priority": 50}, [9, 50]), ({"priority": -9}, [9, -9])]
)
def test_trigger_priority_replaces_that_of_the_job(given: dict[str, Any], expected: list[int]) -> None:
    definition = job(function=None, dag=GRAPH, priority=-5)
    plan = execution_plan.from_trigger(triggered(trigger="api", **given), definition, 7).plan
    assert [step.priority for step in plan.steps] == expected


def test_program_outside_raises_no_priority() -> None:
    for priority in (None, -100, 5):
        execution_plan.check_public_priority(Trigger(input={}, priority=priority), job(priority=5))
    with pytest.raises(DefinitionError) as refused:
        execution_plan.check_public_priority(Trigger(input={}, priority=6), job(priority=5))
    [problem] = refused.value.problems
    assert (problem.code, problem.field, problem.value) == ("priority-not-allowed", "priority", "6")


@pytest.mark.parametrize(
    ("body", "input_", "priority"),
    [
        ({"priority": "high", "order": 3}, {"priority": "high", "order": 3}, None),
        ({"priority": 3}, {"priority": 3}, None),
        ({"priority": 3, "input": {}}, {}, 3),
        ({"priority": 3, "reason": "late"}, {}, 3),
    ],
)
def test_priority_alone_is_an_input(body: dict[str, object], input_: object, priority: int | None) -> None:
    trigger = Trigger.model_validate(body)
    assert (trigger.input, trigger.priority) == (input_, priority)
    assert Trigger.model_validate_json(trigger.encode()) == trigger


def tasks_of(definition: JobDefinition, **given: Any) -> list[Dispatched]:  # noqa: ANN401 - of a trigger
    planned = execution_plan.from_trigger(triggered(trigger="api", **given), definition, 7)
    assert isinstance(planned, Admitted)
    task = admit_and_dispatch(planned, key=KEY)
    if isinstance(task, Dispatched):
        return [task]
    state = fold([Recorded(planned, f"execution.{JOB}.{planned.execution_id}.admitted", 3, NOON)])
    return dispatch(state, key=KEY)


def limits_of(
    key: str | None,
    *,
    definition: Mapping[str, object] | None = None,
    **given: Any,  # noqa: ANN401 - of a trigger
) -> list[tuple[str | None, ...]]:
    concurrency = {"limit": 3} if key is None else {"limit": 3, "key": key}
    tasks = tasks_of(job(overlap_policy="allow", concurrency=concurrency, **definition or {}), **given)
    return [(each.concurrency.key, each.concurrency.value) for each in tasks if each.concurrency]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("acme", "acme"),
        (42, "42"),
        (True, "true"),
        ({"b": 1, "a": [2]}, '{"a":[2],"b":1}'),
        (None, None),
        ("", ""),
        ("x" * 64, "x" * 64),
        ("x" * 65, "blake2b:"),
        ("line\n", "blake2b:"),
        ("blake2b:0", "blake2b:"),
    ],
)
def test_value_of_a_limit(value: object, expected: str | None) -> None:
    [(key, actual)] = limits_of("input.order.customer", input={"order": {"customer": value}})
    assert key == "input.order.customer"
    if expected == "blake2b:":
        assert actual is not None
        assert (actual.startswith(expected), len(actual), actual.isprintable()) == (True, 40, True)
    else:
        assert actual == expected


def test_value_is_of_the_steps_own_input() -> None:
    graph = {"function": None, "dag": GRAPH}
    assert limits_of("input.customer", definition=graph, input={"order": 1}) == [
        ("input.customer", None),
        ("input.customer", "7"),
    ]
    assert limits_of("meta.team", definition={"meta": {"team": "mail"}}) == [("meta.team", "mail")]
    assert limits_of("input.a.b", input={"a": "text"}) == [("input.a.b", None)]
    assert limits_of(None) == [(None, None)]


@pytest.mark.parametrize(
    "key", ["input", "customer", "input.", "args.0", "input.a b", "input.{x}", "meta." + "a" * 255]
)
def test_key_that_is_no_path_is_refused(key: str) -> None:
    with pytest.raises(ValidationError) as refused:
        job(concurrency={"limit": 3, "key": key})
    [problem] = problems(refused.value)
    assert (problem.field, problem.code) == ("concurrency.key", "invalid-value")
