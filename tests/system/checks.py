"""What must hold of any log, read whole and judged by nothing but its facts.

The rules say a second time, and more plainly, what the domain promises: they share its events, its names and its calendar,
and none of its decisions. Each looks at everything and yields what breaks it, with the facts that show it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Final, TypeAlias, TypeVar

import pytest

from tocsin.domain import ids, planning
from tocsin.domain.calendar import parse
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Acquired,
    Admitted,
    Advanced,
    CronSkipped,
    CronTriggered,
    DeadLettered,
    Defined,
    DefinitionFact,
    Deleted,
    Dispatched,
    Due,
    ExecutionFact,
    Exhausted,
    Failed,
    LedgerFact,
    Message,
    Passed,
    Paused,
    Planned,
    PlannedStep,
    Recorded,
    Refused,
    Report,
    Requested,
    RetryScheduled,
    Skipped,
    Started,
    Terminal,
    Trigger,
)
from tocsin.ports import EventLog
from tocsin.subjects import job_of

F = TypeVar("F", bound=Message)

LEDGER: Final = ("ledger.>", "trigger.*")
LOG: Final = ("execution.>", "lock.>", "cron.>", "dead-letter.>", "report.>")


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that does not hold, why, and the facts that show it."""

    rule: str
    reason: str
    facts: tuple[str, ...]

    def __str__(self) -> str:
        return "\n    ".join((f"{self.rule}: {self.reason}", *self.facts))


@dataclass(frozen=True)
class Everything:
    """All that is stored, in the order of each stream."""

    ledger: Sequence[Recorded[Message]] = ()
    log: Sequence[Recorded[Message]] = ()

    @classmethod
    async def of(cls, log: EventLog) -> "Everything":
        """Read it."""
        return cls(await _read(log, LEDGER), await _read(log, LOG))

    def facts(self, kind: type[F]) -> list[Recorded[F]]:
        """Those of a kind."""
        return [cast_to(kind, r) for r in (*self.ledger, *self.log) if isinstance(r.message, kind)]

    @cached_property
    def executions(self) -> Mapping[str, Sequence[Recorded[ExecutionFact]]]:
        """The facts of each execution."""
        found: dict[str, list[Recorded[ExecutionFact]]] = defaultdict(list)
        for recorded in self.facts(ExecutionFact):
            found[recorded.message.execution_id].append(recorded)
        return found

    @cached_property
    def ends(self) -> Mapping[str, Recorded[ExecutionFact]]:
        """The fact that ended each execution that is over."""
        return {r.message.execution_id: r for r in self.facts(ExecutionFact) if isinstance(r.message, Terminal | Skipped)}

    @cached_property
    def jobs(self) -> Mapping[str, Sequence[Recorded[LedgerFact]]]:
        """The ledger of each job."""
        found: dict[str, list[Recorded[LedgerFact]]] = defaultdict(list)
        for recorded in self.facts(LedgerFact):
            found[recorded.message.job].append(recorded)
        return found

    def runs(self) -> Counter[tuple[str, str, int]]:
        """How often each attempt was claimed: (execution, step, attempt)."""
        claims = (recorded.message for recorded in self.facts(Started))
        return Counter((claim.execution_id, claim.step, claim.attempt) for claim in claims)


def cast_to(_: type[F], recorded: Recorded[Message]) -> "Recorded[F]":
    """The same, for the type checker."""
    return recorded  # type: ignore[return-value]


async def _read(log: EventLog, filters: Iterable[str]) -> list[Recorded[Message]]:
    found: list[Recorded[Message]] = []
    for subject in filters:
        after = 0
        while batch := await log.read(subject, after=after):
            found += batch
            after = batch[-1].sequence
    return sorted(found, key=lambda recorded: recorded.sequence)


Rule: TypeAlias = Callable[[Everything], Iterator[Violation]]


def violations(everything: Everything) -> list[Violation]:
    """Whatever does not hold."""
    return [violation for rule in RULES for violation in rule(everything)]


def _broken(rule: str, reason: str, *facts: Recorded[Message]) -> Violation:
    return Violation(rule, reason, tuple(f"{f.sequence} {f.subject} {f.time.isoformat()}" for f in facts))


# --- the ledger: I2, and what I1 rests on ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Instant:
    """What a definition named: `fires`, or is a local time that the clocks left out."""

    at: datetime
    fires: bool
    paused: bool


def time_is_tiled(everything: Everything) -> Iterator[Violation]:
    """Each instant that the definitions in force named is in exactly one `due` or `passed`, up to the job's deletion."""
    for job, facts in everything.jobs.items():
        decisions = [recorded for recorded in facts if isinstance(recorded.message, Due | Passed)]
        yield from _spans_adjoin(job, facts[0].time, decisions)
        until = facts[-1].time if isinstance(facts[-1].message, Deleted) else _watermark(facts)
        expected = [instant for instant in _named(facts) if until is not None and instant.at <= until]
        yield from _instants_are_decided(job, expected, decisions)


def _spans_adjoin(job: str, begin: datetime, decisions: Sequence[Recorded[LedgerFact]]) -> Iterator[Violation]:
    watermark = begin
    for recorded in decisions:
        match recorded.message:
            case Due() as due:
                if due.scheduled_time <= watermark:
                    yield _broken("I2", f"{job}: decided again, up to {watermark} it was before", recorded)
                watermark = due.scheduled_time
            case Passed() as passed:
                if not passed.start == watermark < passed.until:
                    yield _broken("I2", f"{job}: a span that does not begin at {watermark}", recorded)
                watermark = passed.until


def _instants_are_decided(
    job: str, expected: Sequence[_Instant], decisions: Sequence[Recorded[LedgerFact]]
) -> Iterator[Violation]:
    left = Counter(expected)
    by_time = {(instant.at, instant.fires): instant for instant in expected}
    for recorded in decisions:
        match recorded.message:
            case Due() as due:
                decided = [by_time.get((due.scheduled_time, True))]
                decided += [by_time.get((due.scheduled_time, False))] if due.dst_skip else []
            case Passed() as passed:
                decided = [i for i in expected if passed.start < i.at <= passed.until and left[i]]
                paused = [i for i in decided if i and i.paused]
                if passed.count != len(decided):
                    yield _broken("I2", f"{job}: {passed.count} instants passed, {len(decided)} were named", recorded)
                if len(paused) != (len(decided) if passed.reason == "paused" else 0):
                    yield _broken("I2", f"{job}: {len(paused)} of {len(decided)} instants were paused", recorded)
                told = passed.reason in {"paused", "dst_skip"}
                if told and sorted(passed.scheduled_times) != sorted(i.at for i in decided if i):
                    yield _broken("I2", f"{job}: other instants are told of than passed", recorded)
            case _:
                decided = []
        for instant in decided:
            if instant is None:
                yield _broken("I2", f"{job}: decided, and never named", recorded)
            else:
                left[instant] -= 1
    for instant, number in left.items():
        if number:
            yield _broken("I2", f"{job}: {instant.at} was {'never decided' if number > 0 else 'decided twice'}")


def _named(facts: Sequence[Recorded[LedgerFact]]) -> Iterator[_Instant]:
    """What the definitions named, each for as long as it was in force. Schedules must be of the calendar (no `@every`)."""
    changes = [recorded for recorded in facts if isinstance(recorded.message, DefinitionFact)]
    definitions = {r.sequence: r.message.definition for r in changes if isinstance(r.message, Defined)}
    ends = (*(recorded.time for recorded in changes[1:]), max(recorded.time for recorded in facts))
    for recorded, end in zip(changes, ends, strict=True):
        definition, paused = _regime(recorded, definitions)
        if definition is None or definition.schedule is None:
            continue
        schedule = parse(definition.schedule, definition.timezone, dst=definition.dst)
        for occurrence in schedule.occurrences(recorded.time, end, anchor=recorded.time):
            yield _Instant(occurrence.at, occurrence.skipped_local is None, paused or not definition.enabled)


def _regime(
    recorded: Recorded[LedgerFact], definitions: Mapping[int, JobDefinition]
) -> tuple[JobDefinition | None, bool]:
    match recorded.message:
        case Defined() as fact:
            return fact.definition, fact.paused
        case Paused() as fact:
            return definitions[fact.definition], True
        case Deleted():
            return None, False
        case fact:
            return definitions[getattr(fact, "definition", 0)], False


def _watermark(facts: Iterable[Recorded[LedgerFact]]) -> datetime | None:
    """Up to when all is decided."""
    upto: datetime | None = None
    for recorded in facts:
        match recorded.message:
            case Due(scheduled_time=at) | Passed(until=at):
                upto = at
    return upto


# --- from time to executions: I1, I2, I3 -----------------------------------------------------------------------------


def an_instant_has_one_execution(everything: Everything) -> Iterator[Violation]:
    """At most one execution for a job and a scheduled time."""
    found: dict[tuple[str, datetime], dict[str, Recorded[Requested]]] = defaultdict(dict)
    for recorded in everything.facts(Requested):
        asked = recorded.message
        if asked.trigger == "cron":
            found[asked.job, asked.scheduled_time].setdefault(asked.execution_id, recorded)
    for (job, at), executions in found.items():
        if len(executions) > 1:
            yield _broken("I1", f"{job} has {len(executions)} executions for {at}", *executions.values())


def what_was_asked_for_is_answered(everything: Everything) -> Iterator[Violation]:
    """Each `due` and each trigger has an execution, each instant that passed in public a skip; there are no others."""
    asked: dict[str, Recorded[Message]] = {}
    refused = {(r.message.durable, r.message.sequence) for r in everything.facts(Refused)}
    for recorded in everything.ledger:
        match recorded.message:
            case Due() as due:
                asked[ids.occurrence_id(due.job, due.scheduled_time)] = recorded
                if due.dst_skip:
                    asked[ids.passed_id(due.job, due.scheduled_time)] = recorded
            case Passed() as passed:
                asked |= {ids.passed_id(passed.job, at): recorded for at in passed.scheduled_times}
            case Trigger() if ("planner-triggers", recorded.sequence) not in refused:
                trigger = cast_to(Trigger, recorded)
                asked[planning.execution_id_of(trigger, job_of(recorded.subject))] = recorded
    for execution_id, recorded in asked.items():
        if execution_id not in everything.executions:
            yield _broken("I2", f"nothing became of it, {execution_id} is missing", recorded)
    for execution_id, facts in everything.executions.items():
        if execution_id not in asked:
            yield _broken("I3", f"nobody asked for {execution_id}", facts[0])


def no_fact_is_there_twice(everything: Everything) -> Iterator[Violation]:
    """Each fact of an execution, and each dead letter, is one message."""
    stored: dict[str, list[Recorded[Message]]] = defaultdict(list)
    for recorded in everything.log:
        if recorded.subject.startswith(("execution.", "dead-letter.")):
            stored[recorded.subject].append(recorded)
    for subject, same in stored.items():
        if len(same) > 1:
            yield _broken("I4", f"{subject} is stored {len(same)} times", *same)


# --- the life of an execution: I3, I6, I7 ----------------------------------------------------------------------------


@dataclass
class _Life:
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

    def wrong(self, fact: ExecutionFact) -> str | None:
        """Take one more fact in; what is wrong with it, if anything is."""
        if self.end is not None:
            return f"it follows the end, {self.end.subject}"
        match fact:
            case Planned():
                return self._requested(fact, is_first=not self.steps)
            case Admitted():
                wrong = self._requested(fact, is_first=not self.is_admitted)
                self.is_admitted = True
                return wrong
            case Skipped():
                return "it was admitted before" if self.is_admitted else None
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
        life = _Life()
        for recorded in facts:
            if (wrong := life.wrong(recorded.message)) is not None:
                yield _broken("I3, I6, I7", wrong, recorded)
            if isinstance(recorded.message, Terminal | Skipped):
                life.end = recorded
        for what in life.left():
            yield _broken("I3, I6", what, facts[0], facts[-1])


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
            case Terminal() as fact:
                outcome = "failed" if isinstance(fact, Failed) and not fact.step_completed else "completed"
            case _:
                continue
        if (fact.execution_id, fact.step, fact.attempt, outcome) not in reported:
            yield _broken("I3", f"nobody reported {outcome}", recorded)


def a_dead_letter_is_kept_for_each_failure(everything: Everything) -> Iterator[Violation]:
    """Exactly one for each execution that failed and whose job asks for it."""
    kept = {recorded.message.execution_id: recorded for recorded in everything.facts(DeadLettered)}
    wanted = {r.message.execution_id: r for r in everything.facts(Failed) if r.message.dead_letter}
    for execution_id in kept.keys() ^ wanted.keys():
        reason = "no dead letter is kept of it" if execution_id in wanted else "a dead letter of what did not fail"
        yield _broken("I7", reason, wanted.get(execution_id) or kept[execution_id])


# --- locks: I5 -------------------------------------------------------------------------------------------------------


def a_lock_has_one_holder(everything: Everything) -> Iterator[Violation]:
    """Nobody acquires a lock whose holder is not over; what asks for a lock runs under the token of its own."""
    locks: dict[str, list[Recorded[Acquired]]] = defaultdict(list)
    for recorded in everything.facts(Acquired):
        locks[recorded.subject].append(recorded)
    for acquisitions in locks.values():
        for one, next_one in pairwise(acquisitions):
            end = everything.ends.get(one.message.execution_id)
            if end is None or end.sequence > next_one.sequence:
                yield _broken("I5", "acquired while its holder was not over", one, next_one, *([end] if end else []))
    fences = {r.message.execution_id: r for r in everything.facts(Acquired)}
    for recorded in everything.facts(Admitted):
        admitted, acquired = recorded.message, fences.get(recorded.message.execution_id)
        if (admitted.plan.overlap_policy == "allow") != (admitted.fence is None):
            yield _broken("I5", f"overlap policy {admitted.plan.overlap_policy}, fence {admitted.fence}", recorded)
        elif admitted.fence != (acquired.sequence if acquired else None):
            yield _broken("I5", f"the fence {admitted.fence} is not that of its lock", recorded)


# --- what the public was told ----------------------------------------------------------------------------------------


def the_public_is_told_once(everything: Everything) -> Iterator[Violation]:
    """`cron.triggered` once for each execution that the schedule brought about, in count; `cron.skipped` for each skip."""
    told: dict[str, list[Recorded[CronTriggered]]] = defaultdict(list)
    for triggered in everything.facts(CronTriggered):
        told[triggered.message.data.cron_name].append(triggered)
    for job, events in told.items():
        counts = [event.message.data.run_count for event in events]
        if counts != list(range(1, len(counts) + 1)):
            yield _broken("public", f"{job}: the runs are counted {counts}", *events)
    heard = Counter(event.message.data.job_id for events in told.values() for event in events)
    for admitted in everything.facts(Admitted):
        if heard[admitted.message.execution_id] != (1 if admitted.message.trigger == "cron" else 0):
            yield _broken("public", f"told {heard[admitted.message.execution_id]} times", admitted)
    skips = Counter(_skip(event.message) for event in everything.facts(CronSkipped))
    for skipped in everything.facts(Skipped):
        fact = skipped.message
        if skips[fact.job, fact.scheduled_time, fact.reason] != 1:
            yield _broken("public", f"told {skips[fact.job, fact.scheduled_time, fact.reason]} times", skipped)
    if skips.total() != len(everything.facts(Skipped)):
        yield _broken("public", f"{skips.total()} skips are told of, {len(everything.facts(Skipped))} happened")


def _skip(event: CronSkipped) -> tuple[str, datetime, str]:
    return event.data.cron_name, event.data.scheduled_time, event.data.reason


RULES: Final[tuple[Rule, ...]] = (
    time_is_tiled,
    an_instant_has_one_execution,
    what_was_asked_for_is_answered,
    no_fact_is_there_twice,
    executions_live_in_order,
    what_is_done_was_reported,
    a_dead_letter_is_kept_for_each_failure,
    a_lock_has_one_holder,
    the_public_is_told_once,
)
