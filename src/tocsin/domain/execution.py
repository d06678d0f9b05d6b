"""The execution: one run of a job, its steps, and when it is over.

State is folded from the execution's own scope; every decision below is idempotent: asked again about what was already
decided it answers with nothing, so that a redelivered message adds no fact (hip-62, Job Dependency Graphs, Retry Policy).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal, TypedDict

from pydantic import JsonValue

from . import ids, retry
from .events import (
    Actor,
    Admitted,
    Advanced,
    Cancelled,
    Completed,
    Dispatched,
    Exhausted,
    ExhaustedReason,
    Failed,
    Failure,
    LeaseTimer,
    Message,
    Plan,
    Planned,
    PlannedStep,
    Recorded,
    Recovered,
    Released,
    ReleasedReason,
    Report,
    Requested,
    RetryScheduled,
    RetryTimer,
    Skipped,
    Started,
    TriggerKind,
)

# --- state -----------------------------------------------------------------------------------------------------------


class Status(StrEnum):
    """Where an execution is."""

    UNKNOWN = "unknown"
    PLANNED = "planned"
    ADMITTED = "admitted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


MAX_CLAIMS: Final = 20
"""How often one attempt is claimed: a task that ends every process that takes it must not do so for ever."""
UPSTREAM_BYTES: Final = 524_288
"""Results that one task brings along; a NATS server takes messages of a mebibyte by default."""

OVER: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.SKIPPED})


class Phase(StrEnum):
    """Where a step is."""

    WAITING = "waiting"
    DISPATCHED = "dispatched"
    LOST = "lost"
    STARTED = "started"
    RETRYING = "retrying"
    COMPLETED = "completed"
    EXHAUSTED = "exhausted"


_RUNNING: Final = frozenset({Phase.DISPATCHED, Phase.STARTED})
_IN_FLIGHT: Final = _RUNNING | {Phase.RETRYING, Phase.LOST}


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `delivery` is the current claim's, 0 where nobody claimed the attempt yet.

    `task` is the sequence of its newest `dispatched` fact (0: none): an older one was lost, and is not run any more.
    `claims` is how often the attempt was claimed. A claim that is `leased` stands until its lease is over, whatever its
    queue delivers. `claim` is the sequence of the current one (0: none).
    """

    phase: Phase = Phase.WAITING
    attempt: int = 0
    delivery: int = 0
    next_attempt_at: datetime | None = None
    result: JsonValue = None
    error: Failure | None = None
    reason: ExhaustedReason | None = None
    task: int = 0
    claims: int = 0
    leased: bool = False
    claim: int = 0


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution as its facts tell it; `recoveries` is how often it was found lost, `recovered_at` when the last time.

    `lapsed` are the leases that ended without an answer: (step, attempt, task).
    """

    status: Status = Status.UNKNOWN
    requested: Requested | None = None
    fence: int | None = None
    steps: Mapping[str, Step] = field(default_factory=dict)
    recoveries: int = 0
    recovered_at: datetime | None = None
    lapsed: frozenset[tuple[str, int, int]] = frozenset()

    @property
    def asked(self) -> Requested:
        """What was planned or admitted.

        Raises:
            LookupError: nothing was.
        """
        if self.requested is None:
            raise LookupError("the execution was never planned")
        return self.requested

    @property
    def is_over(self) -> bool:
        """Nothing can follow any more."""
        return self.status in OVER


initial: Final = Execution()


# --- evolve ----------------------------------------------------------------------------------------------------------


def evolve(state: Execution, recorded: Recorded[Message]) -> Execution:  # noqa: C901, PLR0911, PLR0912 - one case a fact
    """The state after one more fact. Total: a fact that does not belong changes nothing."""
    fact = recorded.message
    match fact:
        case Admitted():
            steps = _steps_of(fact.plan)
            return Execution(
                Status.ADMITTED, fact, fact.fence, steps, state.recoveries, fact.recovered_at, state.lapsed
            )
        case Planned():
            return Execution(Status.PLANNED, fact, None, _steps_of(fact.plan))
        case Dispatched():
            return _with_step(state, fact.step, Step(Phase.DISPATCHED, fact.attempt, task=recorded.sequence))
        case Started():
            return _with_step(state, fact.step, _started(state.steps.get(fact.step, Step()), fact, recorded.sequence))
        case Recovered():
            return _recovered(state, fact)
        case Released():
            return _released(state, fact)
        case RetryScheduled():
            return _with_step(
                state, fact.step, Step(Phase.RETRYING, fact.attempt, next_attempt_at=fact.next_attempt_at)
            )
        case Advanced():
            return _with_step(state, fact.step, Step(Phase.COMPLETED, fact.attempt, result=fact.result))
        case Exhausted():
            return _with_step(state, fact.step, _exhausted(fact.attempt, fact.error, fact.reason))
        case Completed():
            return replace(state, status=Status.COMPLETED)
        case Failed():
            return replace(state, status=Status.FAILED)
        case Cancelled():
            return replace(state, status=Status.CANCELLED)
        case Skipped():
            return replace(state, status=Status.SKIPPED)
        case _:
            return state


def fold(facts: Iterable[Recorded[Message]], state: Execution = initial) -> Execution:
    """The state after facts, oldest first."""
    for recorded in facts:
        state = evolve(state, recorded)
    return state


def _steps_of(plan: Plan) -> dict[str, Step]:
    if plan.start_at is None:
        return {step.name: Step() for step in plan.steps}
    later = Step(Phase.RETRYING, next_attempt_at=plan.start_at)  # the first attempt is waited for as any other
    return {step.name: Step() if step.depends_on else later for step in plan.steps}


def _with_step(state: Execution, name: str, step: Step) -> Execution:
    # Spelled out, since `replace` costs three times as much and this runs for every fact.
    steps = {**state.steps, name: step}
    return Execution(
        state.status, state.requested, state.fence, steps, state.recoveries, state.recovered_at, state.lapsed
    )


def _started(step: Step, fact: Started, sequence: int) -> Step:
    claims = step.claims + 1 if step.attempt == fact.attempt else 1
    leased = fact.lease is not None
    return Step(
        Phase.STARTED, fact.attempt, fact.delivery, task=step.task, claims=claims, leased=leased, claim=sequence
    )


def _recovered(state: Execution, fact: Recovered) -> Execution:
    """Tasks that were lost, and that nobody has claimed since, are to be dispatched anew."""
    state = replace(state, recoveries=max(state.recoveries, fact.recovery), recovered_at=fact.recovered_at)
    for lost in fact.lost:
        step = state.steps.get(lost.step or "")
        if lost.step and step and step.phase is Phase.DISPATCHED and step.attempt == lost.attempt:
            state = _with_step(state, lost.step, replace(step, phase=Phase.LOST))
    return state


def _released(state: Execution, fact: Released) -> Execution:
    """Its task is to be dispatched anew."""
    if fact.reason == "lease_over":  # counted even where the fact that it was claimed is not there any more
        state = replace(state, lapsed=state.lapsed | {(fact.step, fact.attempt, fact.task)})
    step = state.steps.get(fact.step)
    if step is None or step.phase is not Phase.STARTED or (step.attempt, step.task) != (fact.attempt, fact.task):
        return state
    return _with_step(state, fact.step, replace(step, phase=Phase.LOST))


# --- decide ----------------------------------------------------------------------------------------------------------


def admit(state: Execution, *, fence: int | None) -> list[Admitted]:
    """Let a planned execution run, under the fencing token of its lock."""
    if state.status is not Status.PLANNED or state.requested is None:
        return []
    return [Admitted(**_fields_of(state.requested), fence=fence, recovered_at=state.recovered_at)]


def skip(state: Execution, *, active: str) -> list[Skipped]:
    """Do not run a planned execution, since `active` holds its lock (ojs-cron §6.1, `skip`)."""
    requested = state.requested
    if state.status is not Status.PLANNED or requested is None:
        return []
    return [
        Skipped(
            job=requested.job,
            execution_id=requested.execution_id,
            reason="overlap_skip",
            scheduled_time=requested.scheduled_time,
            trigger=requested.trigger,
            definition=requested.plan.definition,
            cron_expression=requested.plan.cron_expression,
            timezone=requested.plan.timezone,
            active_execution_id=active,
        )
    ]


def cancel(state: Execution, *, reason: str | None = None, by: Actor | None = None) -> list[Cancelled]:
    """End an execution before its time. Nothing where it is over already."""
    if state.status not in {Status.PLANNED, Status.ADMITTED}:
        return []
    return [Cancelled(**_ending(state), reason=reason, by=by)]


def dispatch(state: Execution, *, key: bytes) -> list[Dispatched]:
    """The first attempt of every step that is ready: all it depends on has completed, and nobody dispatched it."""
    if state.status is not Status.ADMITTED or state.requested is None:
        return []
    return [_task(state, step, 1, key) for step in state.requested.plan.steps if _is_ready(state.steps, step)]


def dispatch_again(state: Execution, timer: RetryTimer, *, key: bytes) -> list[Dispatched]:
    """The next attempt of a step whose delay is over."""
    step = state.steps.get(timer.step)
    if state.status is not Status.ADMITTED or step is None or state.requested is None:
        return []
    if step.phase is not Phase.RETRYING or timer.attempt != step.attempt + 1:
        return []
    return [_task(state, _planned(state.requested.plan, timer.step), timer.attempt, key)]


def release(state: Execution, timer: LeaseTimer, *, reason: ReleasedReason) -> list[Released]:
    """Give up a claim, if it is still the one that `timer` is about and nothing has become of it."""
    step = state.steps.get(timer.step)
    if state.status is not Status.ADMITTED or step is None or step.phase is not Phase.STARTED:
        return []
    if (step.attempt, step.delivery, step.task) != (timer.attempt, timer.delivery, timer.task):
        return []
    return [
        Released(
            **_identity(state),
            step=timer.step,
            attempt=timer.attempt,
            delivery=timer.delivery,
            task=timer.task,
            reason=reason,
        )
    ]


def expire(state: Execution) -> list[Failed]:
    """End an execution whose time is over (ojs-core, `expires_at`), unless an executor is at it: what it answers counts."""
    if state.status not in {Status.PLANNED, Status.ADMITTED}:
        return []
    expires_at = state.asked.plan.expires_at
    if expires_at is None or any(step.phase is Phase.STARTED for step in state.steps.values()):
        return []
    error = Failure(type="expired", message=f"it was not to be started after {expires_at}", retryable=False)
    return [Failed(**_ending(state), error=error, reason="expired", cancelled_steps=_never_ran(state))]


def is_worn_out(state: Execution, timer: LeaseTimer) -> bool:
    """Whether too many executors have had an attempt, and none has answered: it may be what ends them."""
    lapsed = sum((step, attempt) == (timer.step, timer.attempt) for step, attempt, _ in state.lapsed)
    return lapsed + 1 >= MAX_CLAIMS


def resume(state: Execution, *, at: datetime, key: bytes) -> list[Dispatched]:
    """Every task that an execution that was found lost lacks at `at`: of what is ready, was lost, or has waited enough."""
    if state.status is not Status.ADMITTED or state.requested is None:
        return []
    plan = state.requested.plan
    lost = [(n, s.attempt) for n, s in state.steps.items() if s.phase is Phase.LOST]
    overdue = [
        (n, s.attempt + 1)
        for n, s in state.steps.items()
        if s.phase is Phase.RETRYING and s.next_attempt_at is not None and s.next_attempt_at <= at
    ]
    again = [_task(state, _planned(plan, name), attempt, key) for name, attempt in (*lost, *overdue)]
    return [*dispatch(state, key=key), *again]


def give_up(state: Execution, *, reason: Literal["timed_out", "abandoned"], error: Failure) -> list[Failed]:
    """End an execution that took too long, or was lost for good. Nothing where it is over already."""
    if state.status not in {Status.PLANNED, Status.ADMITTED}:
        return []
    return [
        Failed(
            **_ending(state),
            error=error,
            reason=reason,
            cancelled_steps=_never_ran(state),
            dead_letter=state.asked.plan.dead_letter,
        )
    ]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a claim is not granted.

    The execution is `over`, the step `done`, the attempt (or its task) `superseded` by a later one; or the attempt is `held` under this
    delivery's number or a later one, by somebody who may be at work, or dead. It is `worn_out` when too many have had it,
    and none has answered: it fails when the last one's time is up.
    """

    reason: Literal["over", "done", "superseded", "held", "worn_out"]


def claim(state: Execution, *, step: str, attempt: int, delivery: int, task: int, worker: str) -> Started | Refusal:
    """Give one delivery of a task to one executor. A later delivery takes an attempt over, an earlier one never does.

    `task` is the sequence of the task that was delivered: one that was given up for lost, and then turns up, is refused.
    """
    current = state.steps.get(step)
    if state.status is not Status.ADMITTED or state.requested is None or current is None:
        return Refusal("over")
    if current.phase in {Phase.COMPLETED, Phase.EXHAUSTED}:
        return Refusal("done")
    if current.phase not in _RUNNING or attempt != current.attempt or task < current.task:
        return Refusal("superseded")
    if delivery <= current.delivery or current.leased:
        return Refusal("held")
    if current.claims >= MAX_CLAIMS:
        return Refusal("worn_out")
    return Started(
        job=state.requested.job,
        execution_id=state.requested.execution_id,
        step=step,
        attempt=attempt,
        delivery=delivery,
        worker=worker,
    )


def succeed(state: Execution, report: Report, *, key: bytes) -> list[Advanced | Completed | Failed | Dispatched]:
    """A step completed, and what follows: the steps that are ready now, or the end.

    The success of any delivery of any dispatched attempt counts: the work is done.
    """
    step = _reported(state, report)
    if step is None or report.attempt > step.attempt:
        return [*dispatch(state, key=key)]
    done = Step(Phase.COMPLETED, report.attempt, result=report.result)
    after = _with_step(state, report.step, done)
    if _goes_on(after):
        advanced = Advanced(**_identity(state), step=report.step, attempt=report.attempt, result=report.result)
        return [advanced, *dispatch(after, key=key)]
    if all(s.phase is Phase.COMPLETED for s in after.steps.values()):
        return [Completed(**_ending(state), step=report.step, attempt=report.attempt, result=report.result)]
    return [_failed(after, report.step)]


def fail(state: Execution, report: Report, *, at: datetime) -> list[RetryScheduled | Exhausted | Failed]:
    """An attempt failed, as reported `at`. Only the failure of the current delivery of the current attempt counts."""
    step, requested = _reported(state, report), state.requested
    if step is None or requested is None or step.phase not in _RUNNING:
        return []
    if report.attempt != step.attempt or report.delivery not in {None, step.delivery}:
        return []
    if report.claim not in {None, step.claim}:
        return []  # of a claim that was given up, and deliveries of the task after it are counted anew
    name = report.step
    error = report.error or Failure(type="unknown", message="the executor gave no error")
    policy = _planned(requested.plan, name).retry
    if retry.is_retryable(policy, error) and step.attempt < policy.max_attempts:
        draw = ids.draw(requested.execution_id, name, str(step.attempt))
        delay = retry.delay(policy, step.attempt, draw)
        return [
            RetryScheduled(
                **_identity(state),
                step=name,
                attempt=step.attempt,
                error=error,
                delay=delay,
                next_attempt_at=at + timedelta(seconds=delay),
            )
        ]
    reason: ExhaustedReason = "attempts" if retry.is_retryable(policy, error) else "non_retryable"
    after = _with_step(state, name, _exhausted(step.attempt, error, reason))
    if _goes_on(after):
        return [Exhausted(**_identity(state), step=name, attempt=step.attempt, error=error, reason=reason)]
    return [_failed(after, name)]


def delays(state: Execution) -> list[tuple[RetryTimer, datetime]]:
    """The timers that must be running: one for each step that waits for its next attempt."""
    if state.status is not Status.ADMITTED or state.requested is None:
        return []
    job, execution_id = state.requested.job, state.requested.execution_id
    return [
        (RetryTimer(job=job, execution_id=execution_id, step=name, attempt=step.attempt + 1), step.next_attempt_at)
        for name, step in state.steps.items()
        if step.phase is Phase.RETRYING and step.next_attempt_at is not None
    ]


def in_flight(state: Execution) -> list[tuple[str, int]]:
    """The steps that an executor may have now, each with its attempt: what an answer that names no step can mean."""
    if state.status is not Status.ADMITTED:
        return []
    return [(name, step.attempt) for name, step in state.steps.items() if step.phase in _RUNNING]


def _reported(state: Execution, report: Report) -> Step | None:
    """The step that a report is about, if it can still change it."""
    step = state.steps.get(report.step)
    return step if state.status is Status.ADMITTED and step is not None and step.phase in _IN_FLIGHT else None


def _is_ready(steps: Mapping[str, Step], step: PlannedStep) -> bool:
    return steps[step.name].phase is Phase.WAITING and all(steps[d].phase is Phase.COMPLETED for d in step.depends_on)


def _goes_on(state: Execution) -> bool:
    """Something is in flight, or could be dispatched now."""
    if any(step.phase in _IN_FLIGHT for step in state.steps.values()):
        return True
    return state.requested is not None and any(_is_ready(state.steps, step) for step in state.requested.plan.steps)


def _failed(state: Execution, last: str) -> Failed:
    """The end of an execution in which a step was exhausted; why is told by the last step, else by the first that was."""
    step = state.steps[last]
    culprit = step if step.error else next(s for s in state.steps.values() if s.phase is Phase.EXHAUSTED)
    return Failed(
        **_ending(state),
        step=last,
        attempt=step.attempt,
        step_completed=step.phase is Phase.COMPLETED,
        error=culprit.error,
        reason=culprit.reason,
        result=step.result,
        cancelled_steps=_never_ran(state),
        dead_letter=state.requested is not None and state.requested.plan.dead_letter,
    )


def _never_ran(state: Execution) -> tuple[str, ...]:
    return tuple(name for name, step in state.steps.items() if step.phase is Phase.WAITING)


def _exhausted(attempt: int, error: Failure, reason: ExhaustedReason) -> Step:
    return Step(Phase.EXHAUSTED, attempt, error=error, reason=reason)


def _task(state: Execution, step: PlannedStep, attempt: int, key: bytes) -> Dispatched:
    requested = state.asked
    passed = _passed_on(state, step)
    return Dispatched(
        job=requested.job,
        execution_id=requested.execution_id,
        step=step.name,
        attempt=attempt,
        max_attempts=step.retry.max_attempts,
        function=step.function,
        queue=step.queue,
        input=requested.plan.input if step.input is None else step.input,
        args=requested.plan.args if step.args is None else step.args,
        upstream=passed,
        upstream_left_out=tuple(name for name in step.depends_on if name not in passed),
        timeout=step.timeout,
        scheduled_time=requested.scheduled_time,
        trigger=requested.trigger,
        fence=state.fence,
        token=ids.report_token(key, requested.execution_id, step.name, attempt),
        meta=requested.plan.meta,
        is_recovery=state.recovered_at is not None,
        original_scheduled_time=requested.scheduled_time if state.recovered_at else None,
        recovery_attempt_time=state.recovered_at,
    )


def _passed_on(state: Execution, step: PlannedStep) -> dict[str, JsonValue]:
    """The results that a task brings along: as many as a message can take."""
    passed: dict[str, JsonValue] = {}
    size = 0
    for name in step.depends_on:
        result = state.steps[name].result
        size += len(json.dumps(result))
        if size <= UPSTREAM_BYTES:
            passed[name] = result
    return passed


def _planned(plan: Plan, name: str) -> PlannedStep:
    return next(step for step in plan.steps if step.name == name)


class _Identity(TypedDict):
    job: str
    execution_id: str


class _Ending(_Identity):
    scheduled_time: datetime
    trigger: TriggerKind
    fence: int | None


class _Request(_Identity):
    scheduled_time: datetime
    trigger: TriggerKind
    plan: Plan
    by: Actor | None
    catch_up: bool
    replay_of: str | None
    backfill: str | None


def _identity(state: Execution) -> _Identity:
    return {"job": state.asked.job, "execution_id": state.asked.execution_id}


def _ending(state: Execution) -> _Ending:
    """What every `Terminal` repeats."""
    requested = state.asked
    return {
        **_identity(state),
        "scheduled_time": requested.scheduled_time,
        "trigger": requested.trigger,
        "fence": state.fence,
    }


def _fields_of(requested: Requested) -> _Request:
    return {
        "job": requested.job,
        "execution_id": requested.execution_id,
        "scheduled_time": requested.scheduled_time,
        "trigger": requested.trigger,
        "plan": requested.plan,
        "by": requested.by,
        "catch_up": requested.catch_up,
        "replay_of": requested.replay_of,
        "backfill": requested.backfill,
    }
