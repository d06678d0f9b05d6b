"""What one execution will do: a definition, applied to one instant or one trigger."""

from datetime import datetime
from typing import Final

from pydantic import JsonValue

from . import ids
from .definition import JobDefinition
from .events import (
    Actor,
    Admitted,
    Due,
    Input,
    Passed,
    Plan,
    Planned,
    PlannedStep,
    Recorded,
    Skipped,
    SkipReason,
    Trigger,
    TriggerKind,
)

_INHERITED: Final = {"input": None, "args": None}


def from_due(due: Due, definition: JobDefinition) -> Planned | Admitted:
    """The execution of one scheduled instant."""
    return _requested(
        definition,
        due.definition,
        execution_id=ids.occurrence_id(due.job, due.scheduled_time),
        scheduled_time=due.scheduled_time,
        trigger="cron",
        catch_up=due.catch_up,
    )


def from_trigger(trigger: Recorded[Trigger], definition: JobDefinition, sequence: int) -> Planned | Admitted:
    """The execution that a trigger message asks for: one for each message id, else for each message."""
    return _requested(
        definition,
        sequence,
        execution_id=execution_id_of(trigger, definition.name),
        scheduled_time=trigger.time,
        trigger=trigger.message.trigger,
        by=trigger.message.by,
        given=trigger.message,
    )


def execution_id_of(trigger: Recorded[Trigger], job: str) -> str:
    """The id that the execution of a trigger message has, wherever it is handled, however often."""
    return ids.trigger_id(job, trigger.message_id or str(trigger.sequence), trigger.time)


def input_of(trigger: Trigger, definition: JobDefinition) -> Input:
    """The definition's input, with the trigger's keys put over it."""
    return {**definition.input, **(trigger.input or {})}


def skips_of(fact: Due | Passed, definition: JobDefinition) -> list[Skipped]:
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


def _requested(
    definition: JobDefinition,
    sequence: int,
    *,
    execution_id: str,
    scheduled_time: datetime,
    trigger: TriggerKind,
    by: Actor | None = None,
    catch_up: bool = False,
    given: Trigger | None = None,
) -> Planned | Admitted:
    # Where no lock is asked nobody else has a say: the execution is admitted at once (one message less).
    kind = Admitted if definition.overlap_policy == "allow" else Planned
    return kind(
        job=definition.name,
        execution_id=execution_id,
        scheduled_time=scheduled_time,
        trigger=trigger,
        plan=_plan(definition, sequence, given, _origin(definition.name, trigger, scheduled_time)),
        by=by,
        catch_up=catch_up,
    )


def _origin(job: str, trigger: TriggerKind, scheduled_time: datetime) -> dict[str, JsonValue]:
    """What a job that the schedule triggered carries (ojs-cron §6.3, CRON-20)."""
    return {"cron_name": job, "cron_triggered_at": scheduled_time.isoformat()} if trigger == "cron" else {}


def _plan(definition: JobDefinition, sequence: int, given: Trigger | None, origin: dict[str, JsonValue]) -> Plan:
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
        overlap_policy=definition.overlap_policy,
        dead_letter=definition.dead_letter,
        cron_expression=definition.schedule,
        timezone=definition.timezone,
        tags=definition.tags,
        meta={**definition.meta, **origin},
    )
