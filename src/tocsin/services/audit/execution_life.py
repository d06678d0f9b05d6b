"""The life of one execution, event by event (I3, I6, I7).

Each event must be allowed by the events before it, and by the reports, which come in any order (`execution_parts`). This states the domain's promises a second time, and more plainly: it shares the
domain's event classes, and none of its decisions.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import isclose
from typing import Any, Final, NamedTuple

from ...domain.duration import MAX_DURATION_S
from ...domain.events import (
    DEPENDENCY_SKIPS,
    LOCK_SKIPS,
    Acknowledged,
    Admitted,
    Advanced,
    Cancelled,
    Completed,
    DependenciesSettled,
    Dispatched,
    ExecutionFact,
    Exhausted,
    Failed,
    LeaseExtended,
    Plan,
    Planned,
    PlannedStep,
    Proposed,
    QuorumSettled,
    Recorded,
    Recovered,
    Released,
    Requested,
    RetryScheduled,
    Skipped,
    Started,
    Terminal,
)
from ...domain.retry import delay
from ...domain.start_jitter import begins_at
from ...subjects import event_type
from .check import Debtor, on
from .dependencies import wrong_waits
from .execution_parts import Attempt, AttemptReports, Doubt, QuorumFact, QuorumLife, WorkflowOrder, Wrong

WHOLE: Final = frozenset({"timed_out", "abandoned", "expired"})
"""Reasons to end an execution as a whole, at any state of its steps."""
UNADMITTED: Final = (
    Planned,
    DependenciesSettled,
    Proposed,
    Acknowledged,
    QuorumSettled,
    Admitted,
    Skipped,
    Cancelled,
    Recovered,
)
"""Events that need no admission before them."""
_ROUNDING: Final = 1e-9
CLOCKS: Final = 10.0
"""Seconds by which a deciding clock may have been ahead of the log's."""


class Owed(NamedTuple):
    """An event that is still to come."""

    invariant: str
    reason: str
    since: datetime
    by: Debtor


@dataclass(slots=True)
class ExecutionLife:
    """An open execution, as far as later events are judged by it."""

    first: Recorded[ExecutionFact]
    newest: Recorded[ExecutionFact]
    requested: Requested | None = None
    steps: Mapping[str, PlannedStep] = field(default_factory=dict)
    settled: DependenciesSettled | None = None
    """The end of its wait for other jobs."""
    quorum: QuorumLife = field(default_factory=QuorumLife)
    is_admitted: bool = False
    admitted_at: datetime | None = None
    subjects: set[str] = field(default_factory=set)
    dispatched: dict[str, int] = field(default_factory=dict)
    """The newest attempt of each step."""
    reports: AttemptReports = field(default_factory=AttemptReports)
    started: dict[Attempt, int] = field(default_factory=dict)
    """The newest delivery of each attempt; none if its claim was released."""
    retried: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    """The last failed attempt of a step, and the time of its retry."""
    recovered: int = 0
    """The number of times that it was found lost."""
    lost: set[Attempt] = field(default_factory=set)
    """The attempts whose task was lost and is not dispatched again yet."""
    completed: set[str] = field(default_factory=set)
    exhausted: set[str] = field(default_factory=set)
    adopted: set[str] = field(default_factory=set)
    """The completed steps that no attempt of this execution ran."""

    def take(self, recorded: Recorded[ExecutionFact]) -> Iterator[Wrong]:
        """Take one more event; yield the rules that it breaks."""
        self.newest = recorded
        if isinstance(recorded.message, Admitted):
            self.admitted_at = recorded.time
        fact = recorded.message
        subject = recorded.subject
        if isinstance(fact, Dispatched):  # it is the same task, whether or not it also admits the execution
            subject = subject.replace(".admitted.", ".dispatched.", 1)
        if subject in self.subjects and not self._is_anew(fact):
            yield Wrong("I4", "it is stored twice")
        self.subjects.add(subject)
        if isinstance(fact, Dispatched) and event_type(recorded.subject) == "admitted":
            plan = self.requested.plan if self.requested is not None else None
            if plan is None or len(plan.steps) != 1 or plan.start_at is not None or plan.expires_at is not None:
                yield Wrong("I3", f"it is admitted with a task of {fact.step}, and must be admitted alone")
        if isinstance(fact, Terminal):
            yield from self._repeats(fact)
        if isinstance(fact, Failed) and fact.reason in WHOLE:
            yield from self._ended_as_a_whole(fact, recorded.time)
        elif not self.is_admitted and not isinstance(fact, UNADMITTED):
            yield Wrong("I3", "it was not admitted")
        else:
            yield from JUDGES[type(fact)](self, fact) or ()

    @on(Planned)
    def _request(self, fact: Requested) -> None:
        self.requested = fact
        self.steps = {step.name: step for step in fact.plan.steps}

    @on(Cancelled)
    def _cancelled(self, _: Cancelled) -> Iterator[Wrong]:
        if self.requested is None:
            yield Wrong("I3", "it was never planned")

    @on(Admitted)
    def _admitted(self, fact: Admitted) -> Iterator[Wrong]:
        self._request(fact)
        self.is_admitted = True
        if fact.plan.depends_on and (self.settled is None or self.settled.outcome != "met"):
            yield Wrong("I6", "it was admitted before the jobs on which it depends had run")
        if fact.plan.quorum is not None and not self.quorum.is_reached:
            yield Wrong("I6", "it was admitted before enough agents had acknowledged it")

    @on(Skipped)
    def _skipped(self, fact: Skipped) -> Iterator[Wrong]:
        if self.is_admitted:
            yield Wrong("I6", "it was admitted before")
        if self.requested is None and fact.reason in LOCK_SKIPS:
            yield Wrong("I3", "it was never planned")
        if fact.reason in DEPENDENCY_SKIPS and (self.settled is None or fact.reason != self.settled.outcome):
            yield Wrong("I6", f"it was skipped as {fact.reason}, and no decision says so")
        if fact.reason == "no_quorum" and (self.quorum.settled is None or self.quorum.settled.outcome != "no_quorum"):
            yield Wrong("I6", "it was skipped as no_quorum, and no decision says so")

    @on(Proposed, Acknowledged, QuorumSettled)
    def _waited_for_agents(self, fact: QuorumFact) -> Iterator[Wrong]:
        plan = self.requested.plan if isinstance(self.requested, Planned) else None
        if self.is_admitted or plan is None or (plan.depends_on and self.settled is None):
            yield Wrong("I6", "it does not wait for acknowledgements")
        yield from self.quorum.take(fact, self.newest.sequence, None if plan is None else plan.quorum)

    @on(DependenciesSettled)
    def _settled(self, fact: DependenciesSettled) -> Iterator[Wrong]:
        if self.is_admitted or not isinstance(self.requested, Planned) or not self.requested.plan.depends_on:
            yield Wrong("I6", "it does not wait for other jobs")
        self.settled = fact
        yield from wrong_waits(fact, self.requested.plan.depends_on if isinstance(self.requested, Planned) else ())

    def _repeats(self, end: Terminal) -> Iterator[Wrong]:
        """Compare the fields that an end repeats, because it may be stored without a read."""
        request = self.requested
        if request is None:
            return
        if (end.scheduled_time, end.trigger) != (request.scheduled_time, request.trigger):
            yield Wrong("I3", f"it ends as {end.trigger} of {end.scheduled_time.isoformat()}, which it is not")
        if end.shard != request.plan.shard:
            yield Wrong("I5", f"it ends on shard {end.shard}, and was planned on {request.plan.shard}")
        if isinstance(request, Admitted) and end.fence != request.fence:
            yield Wrong("I5", f"it ends under fence {end.fence}, and was admitted under {request.fence}")

    def _early(self, at: datetime) -> float:
        start_at = None if self.requested is None else self.requested.plan.start_at
        return 0.0 if start_at is None else (start_at - at).total_seconds()

    def _is_anew(self, fact: ExecutionFact) -> bool:
        is_lost = isinstance(fact, Dispatched) and (fact.step, fact.attempt) in self.lost
        return is_lost or isinstance(fact, LeaseExtended)

    @on(Recovered)
    def _recovered(self, fact: Recovered) -> Iterator[Wrong]:
        if self.requested is None:
            yield Wrong("I3", "it was never planned")
        if fact.recovery != self.recovered + 1:
            yield Wrong("I3", f"recovery {fact.recovery} follows recovery {self.recovered}")
        self.recovered = fact.recovery

    @on(Dispatched)
    def _dispatched(self, fact: Dispatched) -> Iterator[Wrong]:
        if self._is_anew(fact):
            self.lost.discard((fact.step, fact.attempt))
            return
        step, last = self.steps.get(fact.step), self.dispatched.get(fact.step, 0)
        self.dispatched[fact.step] = fact.attempt
        self.reports.dispatched((fact.step, fact.attempt), fact.token)
        if step is None:
            yield Wrong("I6", f"no step is called {fact.step}")
            return
        if fact.attempt != last + 1:
            yield Wrong("I7", f"attempt {fact.attempt} follows attempt {last}")
        if fact.attempt == 1 and (early := self._early(self.newest.time)) > CLOCKS:
            yield Wrong("I7", f"{fact.step} is dispatched {early:g} seconds before the execution may start")
        if fact.attempt > step.retry.max_attempts:
            yield Wrong("I7", f"attempt {fact.attempt}, and {step.retry.max_attempts} are allowed")
        if fact.attempt > 1 and (fact.step not in self.retried or self.retried[fact.step][0] != last):
            yield Wrong("I7", "no retry was scheduled")
        if (order := self._order()) is not None:
            if not order.may_run(fact.step):
                yield Wrong("I6", f"the workflow does not let {fact.step} run yet")
        elif missing := set(step.depends_on) - self.completed:
            yield Wrong("I6", f"{fact.step} depends on {_named(missing)}")

    @on(Started)
    def _started(self, fact: Started) -> Iterator[Wrong]:
        last = self.started.get((fact.step, fact.attempt), 0)
        self.started[fact.step, fact.attempt] = fact.delivery
        self.reports.claimed.add((fact.step, fact.attempt))
        if self.dispatched.get(fact.step) != fact.attempt:
            yield Wrong("I3", f"attempt {fact.attempt} of {fact.step} is not the dispatched attempt")
        if fact.step in self.completed | self.exhausted:
            yield Wrong("I6", f"{fact.step} was over")
        if (fact.step, fact.attempt) in self.lost:
            yield Wrong("I3", f"attempt {fact.attempt} of {fact.step} was lost, and not dispatched again")
        if fact.delivery <= last:
            yield Wrong("I3", f"delivery {last} of that attempt was started before")

    @on(LeaseExtended)
    def _extended(self, fact: LeaseExtended) -> Iterator[Wrong]:
        if (fact.step, fact.attempt) not in self.started:
            yield Wrong("I3", f"attempt {fact.attempt} of {fact.step} has no lease that a heartbeat could extend")

    @on(Released)
    def _released(self, fact: Released) -> Iterator[Wrong]:
        attempt = fact.step, fact.attempt
        if self.started.pop(attempt, None) != fact.delivery:
            yield Wrong("I3", f"attempt {fact.attempt} of {fact.step} was not held under delivery {fact.delivery}")
        self.lost.add(attempt)
        # Its task is dispatched again, and deliveries are counted from 1 again.
        claims = f".started.{fact.step}.{fact.attempt}."
        self.subjects = {subject for subject in self.subjects if claims not in subject}

    @on(RetryScheduled, Exhausted)
    def _attempt_failed(self, fact: RetryScheduled | Exhausted) -> Iterator[Wrong]:
        yield from self._reported(fact.step, fact.attempt, "failed")
        step = self.steps.get(fact.step)
        if step is None:
            yield Wrong("I6", f"no step is called {fact.step}")
        elif isinstance(fact, Exhausted):
            self.exhausted.add(fact.step)
            yield from self._given_up(fact)
        else:
            self.retried[fact.step] = fact.attempt, fact.next_attempt_at
            expected = delay(step.retry, fact.attempt, 0.0)
            is_too_long = step.retry.max_delay_with_jitter and fact.delay > step.retry.max_delay * (1 + _ROUNDING)
            if is_too_long or not isclose(fact.delay, expected, rel_tol=step.retry.jitter + _ROUNDING):
                bound = f", at most {step.retry.max_delay:g}" if step.retry.max_delay_with_jitter else ""
                range_text = f"{expected:g} ± {step.retry.jitter:.0%}{bound}"
                yield Wrong("I7", f"the delay is {fact.delay:g} seconds, and {range_text} was requested")

    def _given_up(self, fact: Exhausted | Failed) -> Iterator[Wrong]:
        step = self.steps.get(fact.step or "")
        if step is not None and fact.reason == "attempts" and fact.attempt != step.retry.max_attempts:
            yield Wrong("I7", f"given up after attempt {fact.attempt}, and {step.retry.max_attempts} are allowed")

    @on(Advanced)
    def _advanced(self, fact: Advanced) -> Iterator[Wrong]:
        """Take a completed step; `adoptions` compares the results of adopted steps."""
        if fact.adopted_from is None:
            yield from self._step_completed(fact.step, fact.attempt)
            return
        request, step = self.requested, self.steps.get(fact.step)
        if request is None or not request.failed_only or request.replay_of != fact.adopted_from or fact.attempt:
            yield Wrong("I6", f"it adopts {fact.step} of execution {fact.adopted_from}, and was not requested to")
        if self.dispatched:
            yield Wrong("I6", f"it adopts {fact.step} after it dispatched {_named(set(self.dispatched))}")
        if step is None:
            yield Wrong("I6", f"no step is called {fact.step}")
        self.adopted.add(fact.step)
        self.completed.add(fact.step)

    def _step_completed(self, step: str | None, attempt: int | None) -> Iterator[Wrong]:
        yield from self._reported(step, attempt, "completed")
        if step in self.completed | self.exhausted:
            yield Wrong("I6", f"{step} was over")
        self.completed.add(step or "")

    def _reported(self, step: str | None, attempt: int | None, outcome: str) -> Iterator[Wrong]:
        return self.reports.require((step or "", attempt or 0), outcome, self.newest)

    @on(Completed)
    def _completed(self, fact: Completed) -> Iterator[Wrong]:
        order = self._order()
        if order is None or fact.step is not None:
            yield from self._step_completed(fact.step, fact.attempt)
        if order is not None:
            if not order.has_completed():
                yield Wrong("I6", "the workflow has not completed")
            yield from self._ran_out(fact)
        elif incomplete := set(self.steps) - self.completed:
            yield Wrong("I6", f"not completed: {_named(incomplete)}")

    def _order(self) -> WorkflowOrder | None:
        """Return the workflow with the steps that ended; None: it is a graph."""
        plan = None if self.requested is None else self.requested.plan
        if plan is None or plan.workflow is None:
            return None
        return WorkflowOrder(plan.workflow, self.steps, self.completed, self.exhausted)

    @on(Failed)
    def _failed(self, fact: Failed) -> Iterator[Wrong]:
        if fact.step_completed:
            yield from self._step_completed(fact.step, fact.attempt)
        else:
            yield from self._reported(fact.step, fact.attempt, "failed")
            self.exhausted.add(fact.step or "")
            yield from self._given_up(fact)
        if not self.exhausted:
            yield Wrong("I6", "no step was exhausted")
        if (order := self._order()) is not None and order.has_completed():
            yield Wrong("I6", "the workflow has completed")
        yield from self._ran_out(fact)

    def _ran_out(self, fact: Completed | Failed) -> Iterator[Wrong]:
        """Check that no step runs, and that the end names those that never ran."""
        never = set(self.steps) - set(self.dispatched) - self.adopted
        if set(fact.cancelled_steps) != never:
            yield Wrong("I6", f"it cancels {_named(fact.cancelled_steps)}, and those that never ran: {_named(never)}")
        if running := set(self.dispatched) - self.completed - self.exhausted:
            yield Wrong("I6", f"still at work: {_named(running)}")

    def _ended_as_a_whole(self, fact: Failed, at: datetime) -> Iterator[Wrong]:
        plan = None if self.requested is None else self.requested.plan
        limit = None if plan is None else plan.execution_timeout
        if plan is None:
            yield Wrong("I3", "it was never planned")
        if fact.reason == "expired":
            yield from self._expired(at)
        elif fact.reason == "timed_out" and (limit is None or self.admitted_at is None):
            yield Wrong("I7", "it ends at a time limit, and has none")
        elif fact.reason == "timed_out" and limit is not None and self.admitted_at is not None:
            begin = self.admitted_at if plan is None else begins_at(plan, self.admitted_at)
            early = limit - (at - begin).total_seconds()
            if early > CLOCKS:
                yield Wrong("I7", f"it ends {early:g} seconds before its time limit of {limit:g}")

    def _expired(self, at: datetime) -> Iterator[Wrong]:
        expires_at = self.requested.plan.expires_at if self.requested is not None else None
        if expires_at is None:
            yield Wrong("I6", "it expires, and nothing says when")
        elif (expires_at - at).total_seconds() > CLOCKS:
            yield Wrong("I6", f"it expires before {expires_at.isoformat()}")
        for step, attempt in self.started:
            is_current = self.dispatched.get(step) == attempt and step not in self.completed
            if is_current and not self.reports.has((step, attempt), "failed"):
                wrong = Wrong("I6", f"it expires while a worker holds attempt {attempt} of {step}")
                self.reports.doubt((step, attempt), "failed", Doubt(wrong, self.newest))

    def unfinished(self, end: Terminal | Skipped) -> Iterator[Wrong]:
        """Return the work that its end leaves undone.

        A cancelled execution, or one that ended as a whole, may leave anything.
        """
        if isinstance(end, Cancelled | Skipped) or (isinstance(end, Failed) and end.reason in WHOLE):
            return
        for step, attempt in self.dispatched.items():
            # A worker that was taken for dead may still succeed; then the next attempt is not needed.
            is_claimed = (step, attempt) in self.reports.claimed or (step, attempt, "failed") in self.reports.doubts
            if not is_claimed and step not in self.completed:
                yield Wrong("I3", f"attempt {attempt} of {step} was dispatched and never started")
        for name in self._ready():
            yield Wrong("I6", f"{name} could have been dispatched, and never was")

    def owed(self) -> Iterator[Owed]:
        """Yield the events that must come before its end."""
        since = self.newest.time
        if self.requested is None:
            return
        if not self.is_admitted:
            yield self._owed_first(self.requested.plan, since)
            return
        start_at = self.requested.plan.start_at
        for name in self._ready():
            yield Owed("I6", f"{name} can be dispatched", max(since, start_at or since), "stages")
        for step, attempt in self.dispatched.items():
            if step in self.completed | self.exhausted:
                continue
            if self.reports.has((step, attempt), "completed"):
                yield Owed("I6", f"{step} is reported as completed", since, "stages")
            elif step in self.retried and self.retried[step][0] == attempt:
                yield Owed(
                    "I7", f"attempt {attempt + 1} of {step} is to be dispatched", self.retried[step][1], "stages"
                )
            elif (step, attempt) in self.started:
                yield Owed("I3", f"attempt {attempt} of {step} is under way", since, "executors")
            else:
                yield Owed("I3", f"attempt {attempt} of {step} waits for an executor", since, "executors")

    def _owed_first(self, plan: Plan, since: datetime) -> Owed:
        if plan.depends_on and self.settled is None:
            until = since + timedelta(seconds=min(plan.dependency_timeout or 0.0, MAX_DURATION_S))
            return Owed("I2", "planned, and the wait for other jobs has not ended", until, "stages")
        are_met = self.settled is None or self.settled.outcome == "met"
        if plan.quorum is not None and are_met and self.quorum.settled is None:
            until = since + timedelta(seconds=min(plan.quorum.timeout, MAX_DURATION_S))
            return Owed("I2", "planned, and the wait for acknowledgements has not ended", until, "stages")
        waits = plan.overlap_policy == "enqueue"
        return Owed("I2", "planned, and neither admitted nor skipped", since, "executors" if waits else "stages")

    def _ready(self) -> Iterator[str]:
        order = self._order()
        for name, step in self.steps.items():
            if not self.is_admitted or name in self.dispatched or name in self.adopted:
                continue
            if set(step.depends_on) <= self.completed if order is None else order.may_run(name):
                yield name


JUDGES: Final[Mapping[type[ExecutionFact], Callable[[ExecutionLife, Any], Iterator[Wrong] | None]]] = {
    kind: method for method in vars(ExecutionLife).values() for kind in getattr(method, "kinds", ())
}
"""The events of an execution, and the methods that judge them."""


def _named(steps: set[str] | tuple[str, ...]) -> str:
    return ", ".join(sorted(steps)) or "none"
