"""Recovery of executions that stay open.

It implements cloacina's Guaranteed Cron Scheduling and hip-62's Distributed Locking. Three problems can keep an execution, and with it the lock of
its job, open forever:

- A worker claimed an attempt and died, and the task is not delivered again. The attempt is `Overdue` once its time
  limit and a grace period are over, and it has failed.
- The execution as a whole takes longer than its job allows: it is `expired`.
- The next event never followed, although the responsible stage has taken the event that requires it. The
  execution is `Stalled` until this is proven, and then lost.

Waiting behind other executions or tasks, for any time, is not a loss.

`examine` evaluates the events at a time; `recover` applies the policy to losses.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from . import duration, execution, start_jitter
from .events import (
    Admitted,
    Advanced,
    DependenciesSettled,
    Exhausted,
    Failure,
    Lost,
    Message,
    Plan,
    PlannedStep,
    QuorumSettled,
    Recorded,
    Recovered,
    Released,
    Requested,
    Started,
    unfold,
)
from .execution import Execution, Phase, Status

JobStatus: TypeAlias = Literal["active", "paused", "gone"]
"""Whether the job of an execution runs; executions of a paused or disabled job wait."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The definition of a loss, and the limits of its recovery."""

    threshold: timedelta = timedelta(minutes=5)
    """The time without a following event after which an execution is examined."""
    max_attempts: int = 3
    """The maximum number of recoveries of an execution; after the next loss it is abandoned."""
    max_age: timedelta = timedelta(hours=24)
    """The maximum age of a loss to recover.

    It counts from the time at which the next event was due: after a start time, a delay or a long step, an execution is as
    young as at its request. cloacina counts from the scheduled time, but a catch-up of last week's instant was requested only now.
    """
    grace: timedelta = timedelta(seconds=60)
    """The time after an attempt's time limit in which its report may arrive.

    It equals the grace period of hip-62's locks.
    """


@dataclass(frozen=True, slots=True)
class Overdue:
    """An attempt whose report is overdue; `delivery` belongs to its claim."""

    step: str
    attempt: int
    delivery: int
    limit: float
    claims: int = 1
    is_outside: bool = False
    """The task is for an MQ executor."""

    @property
    def error(self) -> Failure:
        worker = "its worker" if self.claims == 1 else f"the last of the {self.claims} workers that claimed it"
        silent = "the MQ executor" if self.is_outside else worker
        return Failure(
            type=execution.TIMED_OUT, message=f"{silent} reported nothing within {duration.short(self.limit)}"
        )


@dataclass(frozen=True, slots=True)
class Stalled:
    """A loss, if the responsible stage has taken the event with the number `sequence`."""

    lost: Lost
    sequence: int


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of an examination."""

    state: Execution
    is_expired: bool
    overdue: tuple[Overdue, ...]
    stalled: tuple[Stalled, ...]


def examine(
    facts: Sequence[Recorded[Message]], *, now: datetime, policy: Policy, outside: Collection[str] = ()
) -> Findings | None:
    """Return what the events of an execution (oldest first) imply at `now` (UTC).

    None: the execution is over, or has no events. `outside`: the queues whose tasks go to MQ executors. A task may wait for a
    worker for any time: the matcher reads it from the log, so that it is not lost.

    Raises:
        LookupError: no event requests the execution.
    """
    state = execution.fold(facts)
    if state.is_over or not facts:
        return None
    plan, times = state.request.plan, _Times(facts)
    expires = expiry_of(plan, None if times.admitted is None else times.admitted.time)
    return Findings(
        state=state,
        is_expired=expires is not None and expires <= now,
        overdue=tuple(attempt for attempt, at in _overdue(state, times, policy, outside) if at <= now),
        stalled=tuple(stall for stall in _stalled(state, times) if stall.lost.since + policy.threshold <= now),
    )


def overrun(findings: Findings) -> Failure | None:
    """Return the error of an execution that exceeds its time limit."""
    plan = findings.state.request.plan
    limit, begin = plan.execution_timeout, "admission" if plan.start_delay is None else "start"
    if not findings.is_expired or limit is None:
        return None
    return Failure(
        type=execution.TIMED_OUT,
        message=f"the execution took longer than {duration.short(limit)} after its {begin}{_waits(findings.state)}",
        retryable=False,
    )


def _waits(state: Execution) -> str:
    for step in state.request.plan.steps:
        known = state.steps.get(step.name)
        if known is not None and known.phase is Phase.DISPATCHED and not known.delivery:
            return f"; no worker took step {step.name} (function {step.function}, queue {step.queue})"
    return ""


def recover(
    findings: Findings, losses: Iterable[Lost], *, now: datetime, policy: Policy, job: JobStatus
) -> Recovered | Failure | None:
    """Recover proven losses, or return the error of an abandoned execution.

    None: nothing is lost, or its job is paused.
    """
    state, all_losses = findings.state, tuple(losses)
    if not all_losses:
        return None
    if job == "gone":
        return _abandoned("the job was deleted")
    if now - max(loss.since for loss in all_losses) > policy.max_age:
        return _abandoned(f"it was due more than {duration.short(policy.max_age.total_seconds())} ago")
    if job == "paused":
        return None
    if state.recoveries >= policy.max_attempts:
        return _abandoned(f"it was recovered {state.recoveries} times before")
    return Recovered(
        job=state.request.job,
        execution_id=state.request.execution_id,
        recovery=state.recoveries + 1,
        lost=all_losses,
        recovered_at=now,
    )


def _abandoned(why: str) -> Failure:
    message = f"lost on its way to a worker, and not recovered because {why}"
    return Failure(type=execution.ABANDONED, message=message, retryable=False)


class _Times:
    """The events from which waiting times count."""

    def __init__(self, events: Iterable[Recorded[Message]]) -> None:
        facts = list(unfold(events))
        self.requested = next(fact for fact in facts if isinstance(fact.message, Requested))
        self._newest: dict[type, Recorded[Message]] = {type(fact.message): fact for fact in facts}
        self.started = {fact.message.step: fact for fact in facts if isinstance(fact.message, Started)}
        self.released = {fact.message.step: fact for fact in facts if isinstance(fact.message, Released)}
        self.admitted = self._newest.get(Admitted)

    def newest(self, *kinds: type, other: Recorded[Message] | None = None) -> Recorded[Message]:
        """Return the newest event of some kinds, the recovery, the request, and another event."""
        known = (self.requested, other, *(self._newest.get(kind) for kind in (Recovered, *kinds)))
        return max((fact for fact in known if fact is not None), key=lambda fact: fact.sequence)


def limit_of(step: PlannedStep, policy: Policy) -> timedelta:
    """Return how long an attempt may take before its report is overdue."""
    return _span(step.timeout) + policy.grace


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, duration.MAX_DURATION_S))


def expiry_of(plan: Plan, admitted_at: datetime | None) -> datetime | None:
    """Return when an execution exceeds its time limit (UTC); None: unlimited, or not admitted."""
    if plan.execution_timeout is None or admitted_at is None:
        return None
    return start_jitter.begins_at(plan, admitted_at) + _span(plan.execution_timeout)


def _overdue(
    state: Execution, times: _Times, policy: Policy, outside: Collection[str]
) -> Iterator[tuple[Overdue, datetime]]:
    for plan_step in state.request.plan.steps:
        step = state.steps[plan_step.name]
        if step.phase is not Phase.STARTED:
            continue
        attempt = Overdue(
            plan_step.name,
            step.attempt,
            step.delivery,
            plan_step.timeout,
            step.claims,
            is_outside=plan_step.queue in outside,
        )
        yield attempt, times.started[plan_step.name].time + limit_of(plan_step, policy)


def _stalled(state: Execution, times: _Times) -> Iterator[Stalled]:
    if state.is_held:
        return  # the dependency keeper or the agent keeper reads it from the log, and bounds its wait
    if state.status is Status.PLANNED:
        last = times.newest(DependenciesSettled, QuorumSettled)
        yield Stalled(Lost(what="planned", since=last.time), last.sequence)
        return
    ready = {step.name for step in execution.ready_steps(state)}
    for plan_step in state.request.plan.steps:
        name, step = plan_step.name, state.steps[plan_step.name]
        match step.phase:
            case Phase.WAITING if name in ready:
                last = times.newest(Admitted, Advanced, Exhausted)
                yield Stalled(Lost(what="admitted", since=last.time, step=name), last.sequence)
            case Phase.LOST:
                last = times.newest(other=times.released.get(name))
                yield Stalled(Lost(what="admitted", since=last.time, step=name, attempt=step.attempt), last.sequence)
            case _:
                pass
