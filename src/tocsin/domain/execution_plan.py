"""The plan of an execution: a definition applied to an occurrence or a trigger."""

from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec
from typing_extensions import override

from . import ids, start_jitter, trace_context
from .callbacks import dependencies_of, workflow_of
from .definition import (
    MAX_COPIES_BYTES,
    DefinitionError,
    DefinitionProblem,
    JobDefinition,
    Step,
    check_replay_input,
    show,
)
from .definition.builtin_work import SQL_FUNCTIONS
from .definition.step import specification
from .errors import TocsinError
from .event_trigger import ignored_event
from .events import (
    COMPENSATING_TRIGGERS,
    Actor,
    Admitted,
    DeadLettered,
    Due,
    Enqueued,
    EventIgnored,
    EventReference,
    Passed,
    Plan,
    Planned,
    PlannedStep,
    QuorumRule,
    Recorded,
    Refusal,
    Replayed,
    Requested,
    Skipped,
    SkipReason,
    Trigger,
    TriggerKind,
    occurrence_meta,
)
from .execution.state import request_fields
from .fan_out import on_shard
from .trace_context import Sampling

MAX_REFUSAL_CHARACTERS: Final = 4_000
"""Characters of a refusal's text; it may repeat what was sent."""
_ROOM_BYTES: Final = 16_384
"""Bytes for the headers of an event, and for the identity and the keys of a request."""
_SHARED: Final = ("by", "catch_up", "replay_of", "failed_only", "backfill", "traceparent", "event")
"""The fields that a wish and a request share."""
_shared_of: Final = attrgetter(*_SHARED)
T = TypeVar("T")


class _Wish(msgspec.Struct, frozen=True):
    execution_id: str
    scheduled_time: datetime
    trigger: TriggerKind
    by: Actor | None = None
    catch_up: bool = False
    given: Trigger | None = None
    replay_of: str | None = None
    failed_only: bool = False
    backfill: str | None = None
    trigger_id: str | None = None
    traceparent: str | None = None
    event: EventReference | None = None
    decided_at: datetime | None = None
    """When the ticker decided on the instant; None: at the instant."""
    repeats_occurrence: bool = False
    """True: it replays an execution for an instant that the schedule names."""


def from_due(due: Due, definition: JobDefinition, decided_at: datetime | None = None) -> Planned | Admitted:
    """Plan the execution of a scheduled instant.

    `decided_at`: the time of `due` in the log; None: the instant itself.
    """
    return _from_due(_Same(due), _Same(definition), decided_at)


def from_trigger(
    trigger: Recorded[Trigger], definition: JobDefinition, sequence: int, publisher: str | None = None
) -> Planned | Admitted:
    """Plan the execution that a trigger message requests.

    There is one execution for each key; without a key for each message id, or for each message if it has no id. A backfill has one execution for
    each instant, however often it runs. `publisher`: as in `execution_id_of`.
    """
    request = trigger.message
    at, name = request.scheduled_time, request.backfill
    is_answered = name is None and not _starts_at_once(definition)
    wish = _Wish(
        execution_id_of(trigger, definition.name, publisher),
        trigger.time if at is None else at.astimezone(UTC),
        request.trigger if name is None else "backfill",
        by=request.by,
        given=request,
        backfill=name,
        trigger_id=ids.answer_id(publisher, trigger.message_id, trigger.sequence) if is_answered else None,
        traceparent=request.traceparent,
        event=None if request.event_trigger is None else request.event_trigger.event,
    )
    return _requested(definition, sequence, wish)


def from_enqueued(enqueued: Recorded[Enqueued]) -> Admitted:
    """Plan the execution of an unregistered job, under the given id and without a lock."""
    request, at = enqueued.message, enqueued.time
    wish = _Wish(request.execution_id, request.start_at or at, "api", by=request.by, traceparent=request.traceparent)
    requested = _requested(request.definition, 0, wish)
    changes: dict[str, Any] = {"start_at": request.start_at, "expires_at": request.expires_at, "rate": request.rate}
    if request.workflow is not None:
        own_meta = {of_step.step: of_step.meta for of_step in request.step_meta}
        steps = tuple(step.changed(meta=own_meta.get(step.name)) for step in requested.plan.steps)
        changes |= {"workflow": request.workflow, "steps": steps}
    return Admitted(**request_fields(requested) | {"plan": requested.plan.changed(**changes)})


def from_replay(
    replayed: Recorded[Replayed],
    original: DeadLettered | Trigger,
    definition: JobDefinition,
    sequence: int,
    *,
    before: JobDefinition | None = None,
) -> Planned | Admitted:
    """Plan the execution that a replay requests, by the definition in force now.

    `original`: the execution that failed, or the trigger that could not be used. `definition` is in force now, under `sequence` in the
    ledger. `before`: the definition by which the failed execution was planned; its input is not repeated.
    """
    fact = replayed.message
    wish = _Wish(
        replay_id_of(fact, replayed.time),
        original.scheduled_time if isinstance(original, DeadLettered) else replayed.time,
        "replay",
        by=fact.by,
        given=replay_input(original, fact, before),
        replay_of=fact.id,
        # An only step did not complete. Its task admits the execution, so nothing could be adopted before.
        failed_only=fact.failed_only and len(definition.own_steps()) > 1,
        repeats_occurrence=isinstance(original, DeadLettered) and original.trigger == "cron",
    )
    request = _requested(definition, sequence, wish)
    shard = original.shard if isinstance(original, DeadLettered) else None
    return request if shard is None or definition.partition is None else on_shard(request, shard)


def from_replay_of(replayed: Recorded[Replayed], before: Requested) -> Admitted:
    """Plan the replay of an execution of an unregistered job.

    The plan is the original plan, because no definition is registered.

    Raises:
        DefinitionError: the job does not accept the replay's input.
    """
    fact, plan = replayed.message, before.plan
    input_ = {**plan.input, **(fact.input or {})}
    if fact.input:
        check_replay_input(before.job, input_, fact.input)
    return Admitted(
        job=before.job,
        execution_id=replay_id_of(fact, replayed.time),
        scheduled_time=before.scheduled_time,
        trigger="replay",
        plan=plan.changed(start_at=None, expires_at=None, input=input_),
        by=fact.by,
        replay_of=fact.id,
        failed_only=fact.failed_only and len(plan.steps) > 1,
    )


def planned_again(
    request: Requested, definition: JobDefinition, sequence: int, decided_at: datetime | None = None
) -> Planned | Admitted:
    """Plan a recorded request by another definition, with the definition's own input.

    `decided_at`: as for `from_due`.
    """
    wish = _Wish(
        request.execution_id,
        request.scheduled_time,
        request.trigger,
        decided_at=decided_at,
        **dict(zip(_SHARED, _shared_of(request), strict=True)),
    )
    again = _requested(definition, sequence, wish)
    return again if request.plan.shard is None else on_shard(again, request.plan.shard)


def replay_input(original: DeadLettered | Trigger, replayed: Replayed, before: JobDefinition | None) -> Trigger:
    """Return the trigger of a replay: the original input, overridden by the replay's input."""
    if isinstance(original, Trigger):
        input_, args = original.input or {}, original.args
    elif before is None:  # the job was not registered
        input_, args = original.plan_input, None
    else:
        known = before.input
        input_ = {key: value for key, value in original.plan_input.items() if key not in known or known[key] != value}
        args = None if original.plan_args == before.args else original.plan_args
    return Trigger(trigger="replay", input={**input_, **(replayed.input or {})}, args=args)


def execution_id_of(trigger: Recorded[Trigger], job: str, publisher: str | None = None) -> str:
    """Return the id of the execution of a trigger message; it is always the same.

    The API and operators choose the id, as the id of the message, so that they know it before the message is stored.
    `publisher`: the program outside that published it, as `subjects.publisher_of` returns it; None: the API or an operator.
    """
    request = trigger.message
    key, name, number = request.idempotency_key, trigger.message_id, trigger.sequence
    if publisher is not None:
        return ids.public_trigger_id(publisher, job, trigger.time, key=key, message_id=name, sequence=number)
    if name is not None and ids.is_execution_id(name):
        return name
    if request.event_trigger is not None and key is not None:
        return ids.event_execution_id(job, request.event_trigger.source, key)
    if request.backfill is not None and request.scheduled_time is not None:
        return ids.backfill_id(job, request.backfill, request.scheduled_time.astimezone(UTC))
    if key is not None:
        return ids.keyed_trigger_id(job, key)
    return ids.trigger_id(job, name, trigger.time) if name else ids.sequence_trigger_id(job, number, trigger.time)


def replay_id_of(replayed: Replayed, stored_at: datetime) -> str:
    """Return the id of a replay's execution; `stored_at`: the time of its event."""
    return replayed.execution_id or ids.replay_id(replayed.job, replayed.id, replayed.number, stored_at)


def duplicate_of(first: Requested | None, request: Trigger, job: str) -> EventIgnored | None:
    """Return the record of an event whose key already started an execution.

    `first`: the beginning of the execution. None: this event started it, or the beginning is unknown.
    """
    origin = request.event_trigger
    if origin is None or origin.event is None or first is None or first.event in {None, origin.event}:
        return None
    trigger_id = ids.event_durable(job, origin.source[:-1])
    return ignored_event(job, trigger_id, origin.event, "duplicate", request.idempotency_key, first.execution_id)


class EventRefused(TocsinError):
    """An event has no condition, key or input for its trigger."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def check_event(request: Trigger) -> None:
    """Check that the event of a trigger starts an execution.

    Raises:
        EventRefused: it does not, for the reason that the event listener found.
    """
    origin = request.event_trigger
    if origin is not None and origin.refusal_code is not None:
        raise EventRefused(origin.refusal_code, origin.refusal or "the event starts nothing")


def check_public_priority(request: Trigger, definition: JobDefinition) -> None:
    """Check the priority of a trigger that a program outside published.

    It may not give its run a place before the tasks of other jobs.

    Raises:
        DefinitionError: a program outside gives a higher priority than the job has.
    """
    priority = request.priority
    if priority is None or priority <= definition.priority:
        return
    reason = (
        f"programs outside may lower the priority of job `{definition.name}`, {definition.priority}, and not raise it: "
        "leave it out, or give the job a higher one"
    )
    raise DefinitionError(
        DefinitionProblem(reason, field="priority", value=show(priority), code="priority-not-allowed")
    )


def refused(trigger: Recorded[Trigger], job: str, error: TocsinError, publisher: str | None = None) -> Skipped:
    """Return the event that ends the execution of a refused trigger."""
    request = trigger.message
    return Skipped(
        job=job,
        execution_id=execution_id_of(trigger, job, publisher),
        reason="refused",
        scheduled_time=request.scheduled_time.astimezone(UTC) if request.scheduled_time else trigger.time,
        trigger=request.trigger if request.backfill is None else "backfill",
        definition=0,
        refusal=Refusal(code=error.code, message=str(error)[:MAX_REFUSAL_CHARACTERS]),
        traceparent=request.traceparent,
    )


First = TypeVar("First", Planned, Admitted, Skipped, Planned | Admitted | Skipped)


def traced(first: First, sampling: Sampling | None) -> First:
    """Return the first event of an execution with its trace context.

    A context of the request that is not valid is left out. `sampling` decides on the export; None: no trace is made.
    """
    given = first.traceparent
    context = trace_context.begin(first.execution_id, trace_context.parse(given), sampling)
    return first if context == given else first.changed(traceparent=context)


def definition_to_identify(first: Planned | Admitted | Skipped) -> int:
    """Return the sequence of the definition whose registration a plan lacks.

    0: no step runs SQL, or the plan names the registration.
    """
    if isinstance(first, Skipped) or first.plan.job_uuid is not None:
        return 0
    return first.plan.definition if any(step.function in SQL_FUNCTIONS for step in first.plan.steps) else 0


def registered(first: First, registered_at: datetime) -> First:
    """Return the first event of an execution with the id of its job's registration.

    `registered_at`: the time (UTC) at which the job was registered first.
    """
    if isinstance(first, Skipped):
        return first
    plan = first.plan.changed(job_uuid=ids.job_id(first.job, registered_at))
    return first.changed(plan=plan)


def largest_message_bytes(definition: JobDefinition) -> int:
    """Return the most bytes of an execution's first event, with a trigger's input and headers."""
    return len(_plan_of(definition, 1, "cron", None).encode()) + MAX_COPIES_BYTES + _ROOM_BYTES


def skipped_instants(fact: Due | Passed, definition: JobDefinition) -> list[Skipped]:
    """Return a skip event for each instant that passed and is announced."""
    reason: SkipReason = "disabled" if isinstance(fact, Passed) and fact.reason == "paused" else "dst_skip"
    skipped = (fact.scheduled_time,) if isinstance(fact, Due) and fact.dst_skip else ()
    times = fact.scheduled_times if isinstance(fact, Passed) else skipped
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


def _starts_at_once(definition: JobDefinition) -> bool:
    return definition.overlap_policy == "allow" and not definition.depends_on and definition.acknowledgements is None


def _requested(definition: JobDefinition, sequence: int, wish: _Wish) -> Planned | Admitted:
    fields: dict[str, Any] = {
        "job": definition.name,
        "execution_id": wish.execution_id,
        "scheduled_time": wish.scheduled_time,
        "trigger": wish.trigger,
        "plan": _plan(definition, sequence, wish),
        **dict(zip(_SHARED, _shared_of(wish), strict=True)),
    }
    if _starts_at_once(definition):
        return Admitted(**fields)  # the planner admits it itself, which saves a message
    return Planned(**fields, trigger_id=wish.trigger_id)


def _plan(definition: JobDefinition, sequence: int, wish: _Wish) -> Plan:
    given = wish.given
    if given is not None and (given.input or given.args is not None or given.priority is not None):
        plan = _plan_of(definition, sequence, wish.trigger, given)
    else:
        plan = _plan_without_input(_Same(definition), sequence, wish.trigger)
    if definition.jitter and wish.trigger == "cron":
        plan = start_jitter.delayed(plan, wish.execution_id, definition.jitter, wish.decided_at or wish.scheduled_time)
    if not wish.repeats_occurrence:
        return plan
    return plan.changed(meta={**plan.meta, **occurrence_meta(definition.name, wish.scheduled_time)})


class _Same(Generic[T]):
    """A value that is compared by identity, as a part of a key."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    @override
    def __hash__(self) -> int:
        return id(self.value)


@lru_cache(1_024)
def _from_due(event: _Same[Due], definition: _Same[JobDefinition], decided_at: datetime | None) -> Planned | Admitted:
    """Return the request of a `due` event; each step of its decision has the same."""
    due = event.value
    wish = _Wish(
        *(ids.occurrence_id(due.job, due.scheduled_time), due.scheduled_time, "cron"),
        catch_up=due.catch_up,
        decided_at=decided_at,
    )
    return _requested(definition.value, due.definition, wish)


@lru_cache(1_024)
def _plan_without_input(definition: _Same[JobDefinition], sequence: int, trigger: TriggerKind) -> Plan:
    """Return the plan that every trigger without input shares, so that it is made once."""
    return _plan_of(definition.value, sequence, trigger, None)


def _plan_of(definition: JobDefinition, sequence: int, trigger: TriggerKind, given: Trigger | None) -> Plan:
    given_input = (given.input if given else None) or {}
    given_args = given.args if given else None
    steps = definition.own_steps()
    # Replays and backfills neither skip nor cancel a running execution.
    waits_for_lock = trigger in COMPENSATING_TRIGGERS and definition.overlap_policy != "allow"
    return Plan(
        definition=sequence,
        steps=tuple(
            # Inherited values are not repeated: twenty steps may share one large input.
            PlannedStep(
                name=step.name,
                function=step.function,
                builtin=specification(step),
                depends_on=dependencies_of(step, steps),
                timeout=step.timeout or definition.timeout,
                queue=step.queue or definition.queue,
                priority=_priority_of(step, definition, given),
                input=None if step.input is None else {**step.input, **given_input},
                args=step.args if given_args is None else None,
                bind=step.bind,
                retry=step.retry or definition.retry,
            )
            for step in steps
        ),
        workflow=workflow_of(steps),
        input={**definition.input, **given_input},
        args=definition.args if given_args is None else given_args,
        overlap_policy="enqueue" if waits_for_lock else definition.overlap_policy,
        max_waiting=definition.max_waiting,
        concurrency=definition.concurrency,
        job_class=definition.job_class,
        quorum=None
        if definition.acknowledgements is None
        else QuorumRule(
            acknowledgements=definition.acknowledgements,
            timeout=definition.acknowledgement_timeout,
            max_attempts=definition.retry.max_attempts,
        ),
        depends_on=definition.depends_on,
        dependency_timeout=definition.dependency_timeout if definition.depends_on else None,
        dead_letter=definition.dead_letter,
        max_deaths=definition.recovery.max_deaths,
        execution_timeout=definition.execution_timeout,
        cron_expression=definition.schedule,
        timezone=definition.timezone,
        tags=definition.tags,
        meta=definition.meta,
    )


def _priority_of(step: Step, definition: JobDefinition, given: Trigger | None) -> int:
    if step.priority is not None:
        return step.priority
    return definition.priority if given is None or given.priority is None else given.priority
