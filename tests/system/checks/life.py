"""The life of an execution (I3, I6, I7): each fact is allowed by those before it, and nothing is left at its end."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from tocsin.domain.events import (
    Admitted,
    Advanced,
    Cancelled,
    Completed,
    DeadLettered,
    Dispatched,
    ExecutionFact,
    Exhausted,
    Failed,
    Planned,
    PlannedStep,
    Recorded,
    Report,
    Requested,
    RetryScheduled,
    Skipped,
    Started,
    Terminal,
)

from .everything import Everything, Violation


@dataclass
class Life:
    """An execution, fact by fact."""

    steps: Mapping[str, PlannedStep] = field(default_factory=dict)
    is_admitted: bool = False
    end: Recorded[ExecutionFact] | None = None
    dispatched: dict[str, int] = field(default_factory=dict)
    """The newest attempt of each step."""
    started: dict[tuple[str, int], int] = field(default_factory=dict)
    """The newest delivery of each attempt."""
    retried: dict[str, int] = field(default_factory=dict)
    completed: set[str] = field(default_factory=set)
    exhausted: set[str] = field(default_factory=set)

    def wrong(self, fact: ExecutionFact) -> str | None:  # noqa: C901, PLR0911 - one case a fact
        """Take one more fact in; what is wrong with it, if anything is."""
        if self.end is not None:
            return f"it follows the end, {self.end.subject}"
        match fact:
            case Planned():
                return self._requested(fact, is_first=not self.steps)
            case Admitted() if not self.steps and fact.plan.overlap_policy != "allow":
                return "it was never planned"
            case Admitted():
                wrong = self._requested(fact, is_first=not self.is_admitted)
                self.is_admitted = True
                return wrong
            case Skipped():
                return "it was admitted before" if self.is_admitted else None
            case Cancelled():
                return None if self.steps else "it was never planned"
            case _ if not self.is_admitted:
                return "it was not admitted"
            case Dispatched():
                return self._dispatched(fact)
            case Started():
                return self._started(fact)
            case RetryScheduled() | Exhausted():
                return self._attempt_failed(fact)
            case Advanced():
                return self._step_completed(fact.step, fact.attempt)
            case Terminal():
                return self._ended(fact)
        return None

    def left(self) -> Iterator[str]:
        """What is still to come."""
        if self.end is None:
            yield "it has no end"
        elif isinstance(self.end.message, Cancelled):
            return  # whatever was under way
        for step, attempt in self.dispatched.items():
            if (step, attempt) not in self.started:
                yield f"attempt {attempt} of {step} was never started"
        for name in self._ready():
            yield f"{name} was never dispatched, and could have been"

    def _requested(self, fact: Requested, *, is_first: bool) -> str | None:
        self.steps = {step.name: step for step in fact.plan.steps}
        return None if is_first else "that was said before"

    def _dispatched(self, fact: Dispatched) -> str | None:
        step, last = self.steps[fact.step], self.dispatched.get(fact.step, 0)
        self.dispatched[fact.step] = fact.attempt
        if fact.attempt != last + 1:
            return f"the attempt before was {last}"
        if fact.attempt > step.retry.max_attempts:
            return f"{step.retry.max_attempts} attempts are allowed"
        if fact.attempt > 1 and self.retried.get(fact.step) != last:
            return "no retry was scheduled"
        if missing := set(step.depends_on) - self.completed:
            return f"it depends on {sorted(missing)}"
        return None

    def _started(self, fact: Started) -> str | None:
        last = self.started.get((fact.step, fact.attempt), 0)
        self.started[fact.step, fact.attempt] = fact.delivery
        if self.dispatched.get(fact.step) != fact.attempt:
            return "that attempt is not the dispatched one"
        if fact.step in self.completed | self.exhausted:
            return "the step was over"
        return None if fact.delivery > last else f"delivery {last} had it before"

    def _attempt_failed(self, fact: RetryScheduled | Exhausted) -> str | None:
        if (fact.step, fact.attempt) not in self.started:
            return "that attempt was never started"
        policy = self.steps[fact.step].retry
        if isinstance(fact, Exhausted):
            self.exhausted.add(fact.step)
            return self._exhausted_too_early(fact)
        self.retried[fact.step] = fact.attempt
        least = min(policy.initial_delay * policy.multiplier ** (fact.attempt - 1), policy.max_delay)
        if fact.delay != pytest.approx(least, rel=policy.jitter + 1e-9):
            return f"the delay is {fact.delay}, and {least} ± {policy.jitter:.0%} was asked for"
        return None

    def _exhausted_too_early(self, fact: Exhausted | Failed) -> str | None:
        most = self.steps[fact.step or ""].retry.max_attempts
        return f"{most} attempts are allowed" if fact.reason == "attempts" and fact.attempt != most else None

    def _step_completed(self, step: str | None, attempt: int | None) -> str | None:
        if step is None or attempt is None or (step, attempt) not in self.started:
            return "that attempt was never started"
        if step in self.completed | self.exhausted:
            return "the step was over"
        self.completed.add(step)
        return None

    def _ended(self, fact: Terminal) -> str | None:
        wrong = None
        if not isinstance(fact, Failed) or fact.step_completed:
            wrong = self._step_completed(fact.step, fact.attempt)
        else:
            self.exhausted.add(fact.step or "")
            wrong = self._exhausted_too_early(fact)
        never = set(self.steps) - set(self.dispatched)
        if isinstance(fact, Failed):
            if not self.exhausted:
                wrong = wrong or "no step was exhausted"
            if set(fact.cancelled_steps) != never:
                wrong = wrong or f"the steps that never ran are {sorted(never)}"
        elif self.completed != set(self.steps):
            wrong = wrong or f"not completed: {sorted(set(self.steps) - self.completed)}"
        if running := set(self.dispatched) - self.completed - self.exhausted:
            wrong = wrong or f"still at work: {sorted(running)}"
        return wrong

    def _ready(self) -> Iterator[str]:
        for name, step in self.steps.items():
            if self.is_admitted and name not in self.dispatched and set(step.depends_on) <= self.completed:
                yield name


def executions_live_in_order(everything: Everything) -> Iterator[Violation]:
    """Each fact of an execution is allowed by those before it, and nothing is left to be done at its end."""
    for facts in everything.executions.values():
        life = Life()
        for recorded in facts:
            if (wrong := life.wrong(recorded.message)) is not None:
                yield Violation.of("I3, I6, I7", wrong, recorded)
            if isinstance(recorded.message, Terminal | Skipped):
                life.end = recorded
        for what in life.left():
            yield Violation.of("I3, I6", what, facts[0], facts[-1])


def what_is_done_was_reported(everything: Everything) -> Iterator[Violation]:
    """No step ends but by a report of its executor."""
    reported = {
        (r.execution_id, r.step, r.attempt, r.outcome) for r in (report.message for report in everything.facts(Report))
    }
    for recorded in everything.facts(ExecutionFact):
        match recorded.message:
            case Advanced() as fact:
                outcome = "completed"
            case RetryScheduled() | Exhausted() as fact:
                outcome = "failed"
            case Completed() | Failed() as fact:
                outcome = "failed" if isinstance(fact, Failed) and not fact.step_completed else "completed"
            case _:
                continue
        if (fact.execution_id, fact.step, fact.attempt, outcome) not in reported:
            yield Violation.of("I3", f"nobody reported {outcome}", recorded)


def a_dead_letter_is_kept_for_each_failure(everything: Everything) -> Iterator[Violation]:
    """Exactly one for each execution that failed and whose job asks for it."""
    kept = {recorded.message.execution_id: recorded for recorded in everything.facts(DeadLettered)}
    wanted = {r.message.execution_id: r for r in everything.facts(Failed) if r.message.dead_letter}
    for execution_id in kept.keys() ^ wanted.keys():
        reason = "no dead letter is kept of it" if execution_id in wanted else "a dead letter of what did not fail"
        yield Violation.of("I7", reason, wanted.get(execution_id) or kept[execution_id])
