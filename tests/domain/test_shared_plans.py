from datetime import UTC, datetime

from tocsin.domain import execution_plan
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Due, Recorded, Trigger

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
    due = execution_plan.from_due(Due(job="j", scheduled_time=NOON, definition=7), JOB).plan
    assert due.meta == {"team": "data", "cron_name": "j", "cron_triggered_at": NOON.isoformat()}
    assert plain.meta == {"team": "data"}
