"""What one execution will do: a definition, applied to one instant or one trigger."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pydantic import JsonValue

from . import ids
from .definition import JobDefinition, OverlapPolicy
from .events import (
    COMPENSATING_TRIGGERS,
    Actor,
    Admitted,
    DeadLettered,
    Due,
    Enqueued,
    Input,
    Passed,
    Plan,
    Planned,
    PlannedStep,
    Recorded,
    Replayed,
    Requested,
    Skipped,
    SkipReason,
    Trigger,
    TriggerKind,
)

_INHERITED: Final = {"input": None, "args": None}


@dataclass(frozen=True, slots=True)
class _Wish:
    """What is asked of a definition."""

    execution_id: str
    scheduled_time: datetime
    trigger: TriggerKind
    by: Actor | None = None
    catch_up: bool = False
    given: Trigger | None = None
    replay_of: str | None = None
    backfill: str | None = None
    is_occurrence: bool = False
    """The schedule named the instant."""


def from_due(due: Due, definition: JobDefinition) -> Planned | Admitted:
    """The execution of one scheduled instant."""
    at = due.scheduled_time
    wish = _Wish(ids.occurrence_id(due.job, at), at, "cron", catch_up=due.catch_up, is_occurrence=True)
    return _requested(definition, due.definition, wish)


def from_trigger(trigger: Recorded[Trigger], definition: JobDefinition, sequence: int) -> Planned | Admitted:
    """The execution that a trigger message asks for: one for each message id, else for each message.

    A backfill asks for one for each instant, however often it is run.
    """
    asked = trigger.message
    at, name = asked.scheduled_time, asked.backfill
    wish = _Wish(
        execution_id_of(trigger, definition.name),
        trigger.time if at is None else at.astimezone(UTC),
        asked.trigger if name is None else "backfill",
        by=asked.by,
        given=asked,
        backfill=name,
        is_occurrence=name is not None,
    )
    return _requested(definition, sequence, wish)


def from_enqueued(enqueued: Recorded[Enqueued]) -> Admitted:
    """The execution of a job that is registered nowhere, under the id that was given. It asks for no lock."""
    asked, at = enqueued.message, enqueued.time
    wish = _Wish(asked.execution_id, asked.start_at or at, "api", by=asked.by)
    requested = _requested(asked.definition, 0, wish)
    plan = requested.plan.model_copy(update={"start_at": asked.start_at, "expires_at": asked.expires_at})
    return Admitted(**{name: getattr(requested, name) for name in Requested.model_fields} | {"plan": plan})


def from_replay(
    replayed: Recorded[Replayed],
    asked: DeadLettered | Trigger,
    definition: JobDefinition,
    sequence: int,
    *,
    before: JobDefinition | None = None,
) -> Planned | Admitted:
    """The execution that a replay asks for, by the definition in force now.

    Args:
        replayed: the fact that asks.
        asked: the execution that failed, or the trigger that could not be used then.
        definition: what is in force now, under `sequence` in the ledger.
        sequence: see there.
        before: the definition that the execution was planned by: only what it was given beyond that is given again.
    """
    fact = replayed.message
    wish = _Wish(
        ids.replay_id(definition.name, fact.id, fact.number, replayed.time),
        asked.scheduled_time if isinstance(asked, DeadLettered) else replayed.time,
        "replay",
        by=fact.by,
        given=replay_input(asked, fact, before),
        replay_of=fact.id,
        is_occurrence=isinstance(asked, DeadLettered) and asked.trigger == "cron",
    )
    return _requested(definition, sequence, wish)


def from_replay_of(replayed: Recorded[Replayed], before: Requested) -> Admitted:
    """The execution that a replay asks for of what was registered nowhere: the same plan, but for what it was too late for."""
    fact, plan = replayed.message, before.plan
    again = {"start_at": None, "expires_at": None, "input": {**plan.input, **(fact.input or {})}}
    return Admitted(
        job=before.job,
        execution_id=ids.replay_id(before.job, fact.id, fact.number, replayed.time),
        scheduled_time=before.scheduled_time,
        trigger="replay",
        plan=plan.model_copy(update=again),
        by=fact.by,
        replay_of=fact.id,
    )


def replay_input(asked: DeadLettered | Trigger, replayed: Replayed, before: JobDefinition | None) -> Trigger:
    """What a replay gives to the job: what was given then, and over it what the replay was asked with."""
    if isinstance(asked, Trigger):
        given, args = asked.input or {}, asked.args
    elif before is None:  # kept by a version that did not say
        given, args = asked.plan_input or asked.input, None
    else:
        given = {key: value for key, value in asked.plan_input.items() if _is_new(key, value, before.input)}
        args = None if asked.plan_args == before.args else asked.plan_args
    return Trigger(trigger="replay", input={**given, **(replayed.input or {})}, args=args)


def _is_new(key: str, value: JsonValue, known: Input) -> bool:
    return key not in known or known[key] != value


def execution_id_of(trigger: Recorded[Trigger], job: str) -> str:
    """The id that the execution of a trigger message has, wherever it is handled, however often."""
    asked = trigger.message
    if asked.backfill is not None and asked.scheduled_time is not None:
        return ids.backfill_id(job, asked.backfill, asked.scheduled_time.astimezone(UTC))
    return ids.trigger_id(job, trigger.message_id or str(trigger.sequence), trigger.time)


def input_of(trigger: Trigger, definition: JobDefinition) -> Input:
    """The definition's input, with the trigger's keys put over it."""
    return {**definition.input, **(trigger.input or {})}


def skipped_instants(fact: Due | Passed, definition: JobDefinition) -> list[Skipped]:
    """What the public is told of instants that passed without firing: one skip each, each under its own id."""
    reason: SkipReason = "disabled" if isinstance(fact, Passed) and fact.reason == "paused" else "dst_skip"
    match fact:
        case Due(dst_skip=True):
            times: tuple[datetime, ...] = (fact.scheduled_time,)
        case Passed():
            times = fact.scheduled_times
        case _:
            times = ()
    return [
        Skipped(
            job=fact.job,
            execution_id=ids.passed_id(fact.job, at),
            reason=reason,
            scheduled_time=at,
            trigger="cron",
            definition=fact.definition,
            cron_expression=definition.schedule,
            timezone=definition.timezone,
        )
        for at in times
    ]


def _requested(definition: JobDefinition, sequence: int, wish: _Wish) -> Planned | Admitted:
    # Where no lock is asked nobody else has a say: the execution is admitted at once (one message less).
    kind = Admitted if definition.overlap_policy == "allow" else Planned
    return kind(
        job=definition.name,
        execution_id=wish.execution_id,
        scheduled_time=wish.scheduled_time,
        trigger=wish.trigger,
        plan=_plan(definition, sequence, wish),
        by=wish.by,
        catch_up=wish.catch_up,
        replay_of=wish.replay_of,
        backfill=wish.backfill,
    )


def _overlap_policy(definition: JobDefinition, trigger: TriggerKind) -> OverlapPolicy:
    """What an operator makes up for waits its turn: it is neither lost to a run that is active, nor ends one."""
    return (
        "enqueue"
        if trigger in COMPENSATING_TRIGGERS and definition.overlap_policy != "allow"
        else definition.overlap_policy
    )


def _origin(job: str, scheduled_time: datetime) -> dict[str, JsonValue]:
    """What a job that the schedule triggered carries (ojs-cron §6.3, CRON-20)."""
    return {"cron_name": job, "cron_triggered_at": scheduled_time.isoformat()}


def _plan(definition: JobDefinition, sequence: int, wish: _Wish) -> Plan:
    given = wish.given
    given_input = (given.input if given else None) or {}
    given_args = given.args if given else None
    steps = definition.steps()
    # What a step inherits is not repeated in it: twenty steps may share one large input.
    own = {step.name: step for step in definition.dag or (step.model_copy(update=_INHERITED) for step in steps)}
    return Plan(
        definition=sequence,
        steps=tuple(
            PlannedStep(
                name=step.name,
                function=step.function,
                depends_on=step.depends_on,
                timeout=step.timeout or definition.timeout,
                queue=step.queue or definition.queue,
                input=None if own[step.name].input is None else {**(own[step.name].input or {}), **given_input},
                args=own[step.name].args if given_args is None else None,
                retry=step.retry or definition.retry,
            )
            for step in steps
        ),
        input={**definition.input, **given_input},
        args=definition.args if given_args is None else given_args,
        overlap_policy=_overlap_policy(definition, wish.trigger),
        dead_letter=definition.dead_letter,
        execution_timeout=definition.execution_timeout,
        cron_expression=definition.schedule,
        timezone=definition.timezone,
        tags=definition.tags,
        meta={**definition.meta, **(_origin(definition.name, wish.scheduled_time) if wish.is_occurrence else {})},
    )
