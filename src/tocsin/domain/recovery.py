"""What is to be done about an execution that stays open (cloacina, Guaranteed Cron Scheduling; hip-62, Distributed Locking).

Three things can keep one open for ever, and with it the lock of its job:

- an executor took an attempt and is gone, and nobody delivers the task again: the attempt is `Overdue` once its time limit
  and a grace period are over, and has failed;
- the execution as a whole takes longer than its job allows: it is `expired`;
- what ought to have followed never did, and whoever was to do it has dealt with the message that asked for it: it was lost
  (`Stalled`, until that is proven). Waiting behind others, for however long, is not being lost.

`examine` says what there is to be done by the facts and the time; `recover` applies the policy to what was lost.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from . import duration, execution
from .events import (
    Admitted,
    Advanced,
    Dispatched,
    Failed,
    Failure,
    Lost,
    Message,
    Plan,
    PlannedStep,
    Recorded,
    Recovered,
    Requested,
    RetryScheduled,
    Started,
)
from .execution import Execution, Phase, Status

TIMED_OUT: Final = "timed_out"
ABANDONED: Final = "abandoned"

RecoveryDecision: TypeAlias = Recovered | Failed
JobStatus: TypeAlias = Literal["active", "paused", "gone"]
"""Whether the job of an execution runs. One that is paused or disabled waits: its operator wants nothing to start now."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What counts as lost, and how often it is tried to recover it."""

    threshold: timedelta = timedelta(minutes=5)
    """How long nothing may follow before it is asked why."""
    max_attempts: int = 3
    """Recoveries of one execution; lost once more it is abandoned."""
    max_age: timedelta = timedelta(hours=24)
    """How long ago an execution may have been asked for that is recovered. Not its scheduled time, as in cloacina: what
    catches up on an instant of last week was asked for only now."""
    grace: timedelta = timedelta(seconds=60)
    """Beyond the time limit of an attempt, for its report to arrive; the grace period of hip-62's locks."""


# --- what was found --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Overdue:
    """An attempt that ought to have been reported on. `delivery` is its claim's; None: nobody claims what is handed over."""

    step: str
    attempt: int
    delivery: int | None
    task: int
    """The sequence of its task."""
    queue: str
    limit: float
    claims: int = 1

    @property
    def error(self) -> Failure:
        """Why it has failed."""
        its = "its executor" if self.claims == 1 else f"the last of {self.claims} executors that took it"
        who = its if self.delivery is not None else "the executors outside"
        return Failure(type=TIMED_OUT, message=f"{who} reported nothing within {duration.short(self.limit)}")


@dataclass(frozen=True, slots=True)
class Stalled:
    """Something that has been `lost`, if nobody is going to deal with the message at `sequence` any more."""

    lost: Lost
    sequence: int
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """All that can be said of an open execution by its facts, and when to look at it again."""

    state: Execution
    sequence: int
    """Of the newest fact."""
    requested_at: datetime
    is_expired: bool
    overdue: tuple[Overdue, ...]
    stalled: tuple[Stalled, ...]
    next_look: datetime


def examine(
    facts: Sequence[Recorded[Message]], *, now: datetime, policy: Policy, outside: Collection[str]
) -> Findings | None:
    """What an execution's facts (oldest first) say at `now` (UTC). None: it is over, or gone.

    `outside` are the queues that are handed over: who takes their tasks claims nothing.

    Raises:
        LookupError: none of the facts asks for it.
    """
    state = execution.fold(facts)
    if state.is_over or not facts:
        return None
    plan = state.request.plan
    times = _Times(facts)
    # Whatever starts in this moment has until then at least.
    looks = [now + policy.threshold, *(_end(now, step, policy) for step in plan.steps)]
    expires = _expiry(plan, times)
    overdue, stalled = [], []
    for one, at in _overdue(state, times, policy, outside):
        if at <= now:
            overdue.append(one)
        looks.append(at)
    for this in _stalled(state, times, outside):
        at = this.lost.since + policy.threshold
        if at <= now:
            stalled.append(this)
        looks.append(at)
    if expires is not None:
        looks.append(expires)
    return Findings(
        state=state,
        sequence=facts[-1].sequence,
        requested_at=times.requested.time,
        is_expired=expires is not None and expires <= now,
        overdue=tuple(overdue),
        stalled=tuple(stalled),
        next_look=min(at for at in looks if at > now),
    )


# --- decide ----------------------------------------------------------------------------------------------------------


def expire(findings: Findings) -> list[Failed]:
    """End an execution whose time is over."""
    limit = findings.state.request.plan.execution_timeout
    if not findings.is_expired or limit is None:
        return []
    error = Failure(
        type=TIMED_OUT, message=f"not over within {duration.short(limit)} of its admission", retryable=False
    )
    return execution.give_up(findings.state, reason=TIMED_OUT, error=error)


def recover(
    findings: Findings, lost: Iterable[Lost], *, now: datetime, policy: Policy, job: JobStatus
) -> list[RecoveryDecision]:
    """Hand on anew what is proven to be lost, or abandon it. Nothing for as long as its job is paused."""
    state, all_lost = findings.state, tuple(lost)
    if not all_lost:
        return []
    if job == "gone":
        return [*_abandon(state, "its job was deleted")]
    if now - findings.requested_at > policy.max_age:
        return [*_abandon(state, f"asked for more than {duration.short(policy.max_age.total_seconds())} ago")]
    if job == "paused":
        return []
    if state.recoveries >= policy.max_attempts:
        return [*_abandon(state, f"recovered {state.recoveries} times before")]
    return [
        Recovered(
            job=state.request.job,
            execution_id=state.request.execution_id,
            recovery=state.recoveries + 1,
            lost=all_lost,
            recovered_at=now,
        )
    ]


def _abandon(state: Execution, why: str) -> list[Failed]:
    error = Failure(
        type=ABANDONED, message=f"lost on its way to an executor, and not recovered: {why}", retryable=False
    )
    return execution.give_up(state, reason=ABANDONED, error=error)


# --- when what happened ----------------------------------------------------------------------------------------------


class _Times:
    """The facts that waiting is counted from."""

    def __init__(self, facts: Sequence[Recorded[Message]]) -> None:
        self.requested = next(fact for fact in facts if isinstance(fact.message, Requested))
        self.admitted = _newest(facts, Admitted)
        self.recovered = _newest(facts, Recovered)
        self.advanced = _newest(facts, Advanced)
        self.dispatched: dict[str, Recorded[Message]] = {}
        self.started: dict[str, Recorded[Message]] = {}
        self.retried: dict[str, Recorded[Message]] = {}
        for fact in facts:
            match fact.message:
                case Dispatched(step=step):
                    self.dispatched[step] = fact
                case Started(step=step):
                    self.started[step] = fact
                case RetryScheduled(step=step):
                    self.retried[step] = fact

    def newest(self, *candidates: Recorded[Message] | None) -> Recorded[Message]:
        """The newest of some facts, or of a recovery, or else the first."""
        found = [fact for fact in (*candidates, self.recovered, self.requested) if fact is not None]
        return max(found, key=lambda fact: fact.sequence)


def _newest(facts: Sequence[Recorded[Message]], kind: type[Message]) -> Recorded[Message] | None:
    return next((fact for fact in reversed(facts) if isinstance(fact.message, kind)), None)


def _end(begin: datetime, step: PlannedStep, policy: Policy) -> datetime:
    return begin + _span(step.timeout) + policy.grace


def _span(seconds: float) -> timedelta:
    """A length of time that an instant can be moved by, whatever a plan of old says."""
    return timedelta(seconds=min(seconds, duration.MAX_DURATION_S))


def _expiry(plan: Plan, times: _Times) -> datetime | None:
    if plan.execution_timeout is None or times.admitted is None:
        return None
    return times.admitted.time + _span(plan.execution_timeout)


def _overdue(
    state: Execution, times: _Times, policy: Policy, outside: Collection[str]
) -> Iterator[tuple[Overdue, datetime]]:
    """Each attempt that somebody has, and when it ought to have been reported on."""
    for planned in state.request.plan.steps:
        step = state.steps[planned.name]
        is_claimed = step.phase is Phase.STARTED
        if not is_claimed and (step.phase is not Phase.DISPATCHED or planned.queue not in outside):
            continue
        begin = (times.started if is_claimed else times.dispatched)[planned.name].time
        delivery = step.delivery if is_claimed else None
        found = Overdue(planned.name, step.attempt, delivery, step.task, planned.queue, planned.timeout, step.claims)
        yield found, _end(begin, planned, policy)


def _stalled(state: Execution, times: _Times, outside: Collection[str]) -> Iterator[Stalled]:
    """Everything that waits for a stage or an executor to act, and since when."""
    if state.status is Status.PLANNED:
        last = times.newest()
        yield Stalled(Lost(what="planned", since=last.time), last.sequence)
        return
    for planned in state.request.plan.steps:
        name, step = planned.name, state.steps[planned.name]
        match step.phase:
            case Phase.WAITING if all(state.steps[d].phase is Phase.COMPLETED for d in planned.depends_on):
                last = times.newest(times.admitted, times.advanced)
                yield Stalled(Lost(what="admitted", since=last.time, step=name), last.sequence)
            case Phase.LOST:
                last = times.newest()
                yield Stalled(Lost(what="admitted", since=last.time, step=name, attempt=step.attempt), last.sequence)
            case Phase.DISPATCHED if planned.queue not in outside:
                lost = Lost(what="dispatched", since=times.dispatched[name].time, step=name, attempt=step.attempt)
                yield Stalled(lost, step.task, planned.queue)
            case Phase.RETRYING if step.next_attempt_at is not None:
                since = max(step.next_attempt_at, times.recovered.time if times.recovered else step.next_attempt_at)
                lost = Lost(what="retry-scheduled", since=since, step=name, attempt=step.attempt)
                yield Stalled(lost, times.newest(times.retried[name]).sequence)
            case _:
                pass
