"""Executions repeat the instant, trigger, replay or backfill that they come from."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.domain.given import JOB, NOON, admitted, plan
from tocsin.domain import execution_plan, ids
from tocsin.domain.definition import JobDefinition, RetryPolicy
from tocsin.domain.events import (
    Actor,
    Admitted,
    DeadLettered,
    Due,
    Enqueued,
    Passed,
    Planned,
    Recorded,
    Replayed,
    Trigger,
    TriggerKind,
)
from tocsin.domain.text import utc_text

ADA = Actor(identity="ada")
LETTER = "0193a5b0-0000-7000-8000-00000000000a"
THEN = NOON - timedelta(days=3)
IN_KOLKATA = timezone(timedelta(hours=5, minutes=30))


def job(**more: object) -> JobDefinition:
    return JobDefinition.model_validate(
        {"name": JOB, "schedule": "0 3 * * *", "timezone": "Europe/Berlin", "function": "f", **more}
    )


def triggered(**more: Any) -> Recorded[Trigger]:  # noqa: ANN401 - fields
    return Recorded(Trigger(**more), f"trigger.{JOB}", 12, NOON, "m")


def letter(trigger: TriggerKind = "cron", **more: Any) -> DeadLettered:  # noqa: ANN401 - fields
    return DeadLettered(
        job=JOB,
        id=LETTER,
        execution_id=LETTER,
        scheduled_time=THEN,
        trigger=trigger,
        attempts=(),
        first_attempt=THEN,
        last_attempt=THEN,
        **more,
    )


def replayed(**more: Any) -> Recorded[Replayed]:  # noqa: ANN401 - fields
    return Recorded(Replayed(job=JOB, id=LETTER, number=2, by=ADA, **more), "dead-letter.x", 20, NOON)


@pytest.mark.parametrize("catch_up", [True, False])
def test_an_occurrence_says_whether_it_catches_up(*, catch_up: bool) -> None:
    fact = execution_plan.from_due(Due(job=JOB, scheduled_time=NOON, definition=7, catch_up=catch_up), job())
    assert (fact.catch_up, fact.by, fact.replay_of, fact.backfill) == (catch_up, None, None, None)


def test_a_plan_repeats_its_definition() -> None:
    retry = RetryPolicy(max_attempts=7)
    definition = job(args=[1], timeout=5, queue="etl", retry=retry, dead_letter=True, tags=["a"], execution_timeout=60)
    resolved = execution_plan.from_due(Due(job=JOB, scheduled_time=NOON, definition=7), definition).plan
    assert (resolved.definition, resolved.args, resolved.dead_letter, resolved.tags) == (7, (1,), True, ("a",))
    assert (resolved.cron_expression, resolved.timezone, resolved.execution_timeout) == (
        "0 3 * * *",
        "Europe/Berlin",
        60,
    )
    [step] = resolved.steps
    assert (step.name, step.function, step.timeout, step.queue, step.retry) == ("main", "f", 5, "etl", retry)
    assert (step.input, step.args, resolved.start_at, resolved.expires_at) == (None, None, None, None)


@pytest.mark.parametrize(
    "fact",
    [
        Due(job=JOB, scheduled_time=NOON, definition=7, dst_skip=True),
        Passed(job=JOB, start=THEN, until=NOON, reason="paused", count=1, definition=7, scheduled_times=(NOON,)),
    ],
)
def test_a_public_skip_repeats_its_definition(fact: Due | Passed) -> None:
    [skip] = execution_plan.skipped_instants(fact, job())
    assert (skip.job, skip.definition, skip.trigger, skip.scheduled_time) == (JOB, 7, "cron", NOON)
    assert (skip.cron_expression, skip.timezone, skip.active_execution_id) == ("0 3 * * *", "Europe/Berlin", None)


@pytest.mark.parametrize(("given", "args"), [(None, (1,)), ((), ()), ((2, 3), (2, 3))])
def test_args_of_a_trigger_replace_those_before(given: tuple[int, ...] | None, args: tuple[int, ...]) -> None:
    steps = [{"name": "a", "function": "f", "args": [9]}, {"name": "b", "function": "f"}]
    resolved = execution_plan.from_trigger(triggered(args=given), job(function=None, dag=steps, args=[1]), 7).plan
    assert resolved.args == args
    assert [step.args for step in resolved.steps] == [(9,) if given is None else None, None]


@pytest.mark.parametrize("policy", ["skip", "enqueue", "cancel_previous", "allow"])
@pytest.mark.parametrize("trigger", ["manual", "replay", "backfill"])
def test_what_makes_up_waits_for_its_turn(policy: str, trigger: str) -> None:
    resolved = execution_plan.from_trigger(triggered(trigger=trigger), job(overlap_policy=policy), 7).plan
    waits = trigger != "manual" and policy != "allow"
    assert resolved.overlap_policy == ("enqueue" if waits else policy)


def backfill(at: datetime = THEN, message_id: str = "m") -> Planned | Admitted:
    asks = Trigger(trigger="manual", backfill="november", scheduled_time=at, by=ADA)
    return execution_plan.from_trigger(Recorded(asks, f"trigger.{JOB}", 12, NOON, message_id), job(), 7)


def test_a_backfill_makes_up_for_its_instant() -> None:
    fact = backfill()
    assert (fact.scheduled_time, fact.trigger, fact.backfill, fact.by) == (THEN, "backfill", "november", ADA)
    assert fact.execution_id == ids.backfill_id(JOB, "november", THEN)
    assert fact.meta == {"cron_name": JOB, "cron_triggered_at": utc_text(THEN)}


def test_a_backfill_is_one_execution_however_sent() -> None:
    there = THEN.astimezone(IN_KOLKATA)
    assert backfill(there, "other") == backfill()
    assert backfill(there).scheduled_time.tzinfo is UTC
    assert backfill(THEN + timedelta(minutes=1)).execution_id != backfill().execution_id


@pytest.mark.parametrize(
    ("start_at", "scheduled"), [(None, NOON), (NOON + timedelta(hours=1), NOON + timedelta(hours=1))]
)
def test_an_enqueued_job_keeps_its_times(start_at: datetime | None, scheduled: datetime) -> None:
    expires_at = NOON + timedelta(days=1)
    fact = execution_plan.from_enqueued(enqueued(start_at=start_at, expires_at=expires_at))
    assert (fact.execution_id, fact.scheduled_time, fact.trigger, fact.by) == (LETTER, scheduled, "api", ADA)
    assert (fact.plan.start_at, fact.plan.expires_at, fact.plan.definition) == (start_at, expires_at, 0)
    assert (fact.fence, fact.plan.meta) == (None, {})


def enqueued(**more: Any) -> Recorded[Enqueued]:  # noqa: ANN401 - fields
    definition = job(schedule=None, overlap_policy="allow", input={"a": 1})
    return Recorded(
        Enqueued(execution_id=LETTER, definition=definition, by=ADA, **more), f"enqueue.{JOB}.{LETTER}", 3, NOON
    )


@pytest.mark.parametrize(("given", "merged"), [(None, {"a": 1, "b": 2}), ({"b": 3, "c": 4}, {"a": 1, "b": 3, "c": 4})])
def test_its_replay_runs_the_same_plan(given: dict[str, Any] | None, merged: dict[str, Any]) -> None:
    late = plan().changed(start_at=THEN, expires_at=THEN, input={"a": 1, "b": 2})
    before = admitted(late).changed(scheduled_time=THEN, by=Actor(identity="grace"))
    fact = execution_plan.from_replay_of(replayed(input=given), before)
    assert fact.plan == late.changed(start_at=None, expires_at=None, input=merged)
    assert (fact.job, fact.scheduled_time, fact.trigger, fact.by) == (JOB, THEN, "replay", ADA)
    assert (fact.replay_of, fact.execution_id) == (LETTER, ids.replay_id(JOB, LETTER, 2, NOON))


@pytest.mark.parametrize(
    ("before", "scheduled", "meta"),
    [
        (letter("cron"), THEN, {"cron_name": JOB, "cron_triggered_at": utc_text(THEN)}),
        (letter("manual"), THEN, {}),
        (Trigger(), NOON, {}),
    ],
    ids=["of the schedule", "of a trigger", "of a trigger that could not be used"],
)
def test_a_replay_repeats_what_it_replays(
    before: DeadLettered | Trigger, scheduled: datetime, meta: dict[str, str]
) -> None:
    fact = execution_plan.from_replay(replayed(), before, job(), 7)
    assert (fact.scheduled_time, fact.meta, fact.plan.definition) == (scheduled, meta, 7)
    assert (fact.trigger, fact.by, fact.replay_of) == ("replay", ADA, LETTER)
    assert fact.execution_id == ids.replay_id(JOB, LETTER, 2, NOON)


KEPT: dict[str, Any] = {"plan_input": {"a": 1, "b": 2, "c": None}, "plan_args": (1,)}


@pytest.mark.parametrize(
    ("kept", "before", "given", "args"),
    [
        (letter(**KEPT), job(input={"a": 1, "b": 0}, args=[1]), {"b": 2, "c": None}, None),
        (letter(**KEPT), job(input={"c": None}), {"a": 1, "b": 2}, (1,)),
        (letter(**KEPT), None, KEPT["plan_input"], None),
        (letter(input={"step": {"z": 1}}), None, {}, None),
        (letter(plan_input={"a": 1}, input={"z": 1}), None, {"a": 1}, None),
        (Trigger(input={"t": 1}, args=(3,)), job(input={"t": 1}), {"t": 1}, (3,)),
        (Trigger(), None, {}, None),
    ],
)
def test_a_replay_gives_what_was_given(
    kept: DeadLettered | Trigger, before: JobDefinition | None, given: dict[str, Any], args: tuple[int, ...] | None
) -> None:
    replayed_input = execution_plan.replay_input(kept, replayed().message, before)
    assert (replayed_input.trigger, replayed_input.input, replayed_input.args) == ("replay", given, args)
    over = execution_plan.replay_input(kept, replayed(input={"a": 9}).message, before)
    assert over.input == {**given, "a": 9}


def test_a_replay_takes_the_definition_in_force() -> None:
    fact = execution_plan.from_replay(
        replayed(input={"d": 4}), letter(**KEPT), job(input={"a": 5, "e": 6}), 9, before=job(input={"a": 1})
    )
    assert fact.plan.input == {"a": 5, "b": 2, "c": None, "d": 4, "e": 6}


def test_what_a_step_says_itself_counts() -> None:
    own = {"timeout": 5, "queue": "gpu", "retry": {"max_attempts": 9}, "input": {}, "args": []}
    steps = [{"name": "a", "function": "f", **own}, {"name": "b", "function": "g", "depends_on": ["a"]}]
    definition = job(
        function=None, dag=steps, timeout=60, queue="etl", retry={"max_attempts": 2}, input={"x": 1}, args=[1]
    )
    a, b = execution_plan.from_due(Due(job=JOB, scheduled_time=NOON, definition=7), definition).plan.steps
    assert (a.timeout, a.queue, a.retry.max_attempts, a.input, a.args) == (5, "gpu", 9, {}, ())
    assert (b.timeout, b.queue, b.retry.max_attempts, b.input, b.args) == (60, "etl", 2, None, None)
