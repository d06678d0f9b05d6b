from datetime import UTC, datetime

from tocsin.domain import execution, execution_plan
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Admitted, Dispatched, Due, Recorded, Trigger
from tocsin.domain.text import utc_text
from tocsin.subjects import decode, subject_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
JOB = JobDefinition(name="j", function="f", meta={"team": "data"})


def recorded(trigger: Trigger, sequence: int) -> Recorded[Trigger]:
    return Recorded(trigger, "trigger.j", sequence, NOON)


def test_triggers_without_input_share_one_plan() -> None:
    first, second = (execution_plan.from_trigger(recorded(Trigger(), n), JOB, 7) for n in (1, 2))
    assert first.plan is second.plan


def test_plans_of_different_sources_differ() -> None:
    plain = execution_plan.from_trigger(recorded(Trigger(), 1), JOB, 7).plan
    assert execution_plan.from_trigger(recorded(Trigger(), 1), JOB, 8).plan.definition == 8
    assert execution_plan.from_trigger(recorded(Trigger(input={"a": 1}), 1), JOB, 7).plan.input == {"a": 1}
    changed = JOB.model_copy(update={"function": "g"})
    assert execution_plan.from_trigger(recorded(Trigger(), 1), changed, 7).plan.steps[0].function == "g"
    assert plain.meta == {"team": "data"}


def test_occurrences_share_one_plan() -> None:
    first, second = (
        execution_plan.from_due(Due(job="j", scheduled_time=NOON.replace(hour=hour), definition=7), JOB)
        for hour in (12, 13)
    )
    assert first.plan is second.plan
    assert first.meta == {"team": "data", "cron_name": "j", "cron_triggered_at": utc_text(NOON)}
    assert second.meta["cron_triggered_at"] == utc_text(NOON.replace(hour=13))


def test_plan_follows_the_definition_that_is_given() -> None:
    due = Due(job="j", scheduled_time=NOON, definition=7)
    assert execution_plan.from_due(due, JOB) == execution_plan.from_due(due.model_copy(), JOB)
    changed = JOB.model_copy(update={"function": "g"})
    assert execution_plan.from_due(due, changed).plan.steps[0].function == "g"
    assert execution_plan.from_due(due, JOB).plan.steps[0].function == "f"


def test_task_carries_the_instant_of_its_occurrence() -> None:
    requested = execution_plan.from_due(
        Due(job="j", scheduled_time=NOON, definition=7), JOB.model_copy(update={"overlap_policy": "allow"})
    )
    assert isinstance(requested, Admitted)
    both = execution.admit_and_dispatch(requested, key=b"key")
    assert isinstance(both, Dispatched)
    read = decode(subject_of(both), both.encode())
    assert isinstance(read, Dispatched)
    state = execution.fold([Recorded(requested, subject_of(requested), 1, NOON)])
    [alone] = execution.dispatch(state, key=b"key")
    assert read.task.meta == alone.meta == {"team": "data", "cron_name": "j", "cron_triggered_at": utc_text(NOON)}
