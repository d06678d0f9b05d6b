"""The treatment of executions that stay open: tables, and the property that each ends."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.given import ID, JOB, KEY, NOON, admitted, plan, report, started
from tests.properties import examples
from tocsin import subjects
from tocsin.domain import execution, recovery
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import (
    Completed,
    Dispatched,
    Failed,
    Failure,
    Lost,
    Message,
    Plan,
    Planned,
    Recorded,
    Recovered,
    Released,
    Started,
    validated,
)
from tocsin.domain.execution import ClaimDenied, Execution, Phase
from tocsin.domain.recovery import Findings, JobStatus, Policy

POLICY: Final = Policy()
THRESHOLD: Final = POLICY.threshold
LIMIT: Final = timedelta(seconds=30) + POLICY.grace
"""Of an attempt, as `plan` makes its steps."""
SECOND: Final = timedelta(seconds=1)
TWO: Final = RetryPolicy(max_attempts=2, initial_delay=30, jitter=0)
GRAPH: Final[dict[str, tuple[str, ...]]] = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


class Log:
    """The facts of one execution, each stored at an instant."""

    def __init__(self, *facts: Message, at: datetime = NOON) -> None:
        self.now = at
        self.facts: list[Recorded[Message]] = []
        self.store(*facts)

    def store(self, *facts: Message) -> None:
        for fact in facts:
            sequence = len(self.facts) + 1
            self.facts.append(Recorded(fact, subjects.subject_of(fact), sequence, self.now))

    @property
    def state(self) -> Execution:
        return execution.fold(self.facts)

    def examine(self, after: timedelta = timedelta(), outside: Sequence[str] = ()) -> Findings | None:
        """Return the findings a given time after the start."""
        newest = {recorded.subject: recorded for recorded in self.facts}  # as a log is read
        facts = sorted(newest.values(), key=lambda recorded: recorded.sequence)
        return recovery.examine(facts, now=NOON + after, policy=POLICY, outside=frozenset(outside))


def planned() -> Planned:
    fields = admitted().document(exclude={"type", "fence", "recovered_at"})
    return validated(Planned, {**fields, "plan": plan()})


def running(plan_: Plan | None = None) -> Log:
    """Admitted and dispatched at noon."""
    log = Log(admitted(plan_))
    log.store(*execution.dispatch(log.state, key=KEY))
    return log


def found(findings: Findings | None) -> Findings:
    assert findings is not None
    return findings


@pytest.mark.parametrize(
    ("after", "is_overdue"),
    [(timedelta(), False), (LIMIT - SECOND, False), (LIMIT, True), (timedelta(days=400), True)],
)
def test_claimed_attempt_is_overdue_after_timeout_and_grace(after: timedelta, *, is_overdue: bool) -> None:
    log = running()
    log.store(started())
    findings = found(log.examine(after))
    assert [one.step for one in findings.overdue] == ["main"] * is_overdue
    assert findings.stalled == ()


def test_a_limit_beyond_the_calendar_is_no_obstacle() -> None:
    step = plan().steps[0].changed(timeout=1e15)
    log = running(plan().changed(steps=(step,), execution_timeout=1e15))
    log.store(started())
    assert found(log.examine(LIMIT)).overdue == ()


def test_the_limit_counts_from_the_newest_claim() -> None:
    log = running()
    log.store(started())
    log.now += timedelta(minutes=1)
    log.store(started(delivery=2))
    assert found(log.examine(LIMIT)).overdue == ()
    [overdue] = found(log.examine(timedelta(minutes=1) + LIMIT)).overdue
    assert (overdue.delivery, overdue.attempt) == (2, 1)


def test_task_without_a_claim_is_not_overdue() -> None:
    findings = found(running().examine(timedelta(days=1), outside=["default"]))
    assert (findings.overdue, findings.stalled) == ((), ())


def lost_before() -> Log:
    log = running()
    log.store(started(), released(log.state.steps["main"].task))
    return log


def released(task: int | None) -> Released:
    return Released(job=JOB, execution_id=ID, step="main", attempt=1, delivery=1, task=task or 0, reason="lease_over")


def recovered(number: int, what: str = "admitted", *, attempt: int = 1) -> Recovered:
    lost = validated(Lost, {"what": what, "since": NOON, "step": "main", "attempt": attempt})
    return Recovered(job=JOB, execution_id=ID, recovery=number, lost=(lost,), recovered_at=NOON)


@pytest.mark.parametrize(
    ("log", "what", "sequence"),
    [
        (Log(planned()), "planned", 1),
        (Log(admitted()), "admitted", 1),
        (lost_before(), "admitted", 4),
    ],
    ids=["planned", "admitted", "lost before"],
)
def test_what_nothing_followed_for_the_threshold_has_stalled(log: Log, what: str, sequence: int) -> None:
    assert found(log.examine(THRESHOLD - SECOND)).stalled == ()
    [stalled] = found(log.examine(THRESHOLD)).stalled
    assert (stalled.lost.what, stalled.sequence, stalled.lost.since) == (what, sequence, NOON)


def test_retry_with_any_delay_has_not_stalled() -> None:
    log = running(plan(retry=TWO))
    log.store(started())
    log.store(*execution.fail(log.state, report("failed", error=Failure(type="E")), at=NOON))
    assert found(log.examine(timedelta(days=9))).stalled == ()


def test_step_waits_from_the_moment_it_was_ready() -> None:
    log = running(plan(GRAPH))
    log.store(started("a"))
    log.now += timedelta(hours=1)
    log.store(execution.succeed(log.state, report("completed", "a"), key=KEY)[0])
    assert found(log.examine(timedelta(hours=1) + THRESHOLD - SECOND)).stalled == ()
    stalled = found(log.examine(timedelta(hours=1) + THRESHOLD)).stalled
    assert [(one.lost.what, one.lost.step) for one in stalled] == [("admitted", "b"), ("admitted", "c")]


def limited(seconds: float) -> Plan:
    return plan().changed(execution_timeout=seconds)


@pytest.mark.parametrize(("seconds", "is_expired"), [(9, False), (10, True)])
def test_an_execution_expires_at_its_limit(seconds: float, *, is_expired: bool) -> None:
    findings = found(running(limited(10)).examine(timedelta(seconds=seconds)))
    assert findings.is_expired is is_expired
    error = recovery.overrun(findings)
    assert (error.type if error else None) == ("timed_out" if is_expired else None)


def test_expired_execution_names_its_unserved_step() -> None:
    log = Log(planned().changed(plan=limited(10)))
    log.store(*execution.admit(log.state, fence=1))
    log.store(*execution.dispatch(log.state, key=KEY))
    waiting = recovery.overrun(found(log.examine(timedelta(seconds=10))))
    taken = running(limited(10))
    taken.store(started())
    began = recovery.overrun(found(taken.examine(timedelta(seconds=10))))
    [planned_step] = limited(10).steps
    assert waiting is not None
    assert began is not None
    assert f"(function {planned_step.function}, queue {planned_step.queue})" in waiting.message
    assert "no worker" not in began.message


def test_it_counts_from_its_admission() -> None:
    log = Log(planned().changed(plan=limited(10)))
    assert not found(log.examine(timedelta(hours=1))).is_expired
    log.now += timedelta(hours=1)
    log.store(*execution.admit(log.state, fence=7))
    assert not found(log.examine(timedelta(hours=1))).is_expired
    error = recovery.overrun(found(log.examine(timedelta(hours=1, seconds=10))))
    assert error is not None
    [failed] = execution.give_up(log.state, "timed_out", error)
    assert (failed.fence, failed.dead_letter, failed.cancelled_steps) == (7, True, ("main",))


def test_what_is_over_needs_nothing() -> None:
    log = running()
    log.store(started())
    log.store(*execution.succeed(log.state, report("completed"), key=KEY))
    assert isinstance(log.facts[-1].message, Completed)
    assert log.examine(timedelta(days=9)) is None
    assert Log().examine() is None


@pytest.mark.parametrize(
    ("job", "recoveries", "age", "outcome"),
    [
        ("active", 0, timedelta(minutes=6), "recovered"),
        ("active", 2, timedelta(minutes=6), "recovered"),
        ("active", 3, timedelta(minutes=6), "recovered 3 times before"),
        ("active", 0, timedelta(hours=25), "more than 24h ago"),
        ("paused", 0, timedelta(minutes=6), None),
        ("paused", 3, timedelta(minutes=6), None),
        ("paused", 0, timedelta(hours=25), "more than 24h ago"),
        ("gone", 0, timedelta(minutes=6), "job was deleted"),
    ],
)
def test_lost_work_is_repaired_by_its_kind(
    job: JobStatus, recoveries: int, age: timedelta, outcome: str | None
) -> None:
    log = Log(admitted())
    for number in range(recoveries):
        log.store(recovered(number + 1))
    findings = found(log.examine(age))
    decided = recovery.recover(findings, [one.lost for one in findings.stalled], now=NOON + age, policy=POLICY, job=job)
    match decided:
        case Recovered() as fact:
            assert (outcome, fact.recovery, fact.recovered_at) == ("recovered", recoveries + 1, NOON + age)
        case Failure() as error:
            assert error.type == "abandoned"
            assert error.message.endswith(str(outcome))
        case None:
            assert outcome is None


def test_released_step_is_no_loss_before_its_time() -> None:
    log = running()
    task = log.state.steps["main"].task
    log.now = NOON + 5 * THRESHOLD
    log.store(started(), released(task))
    assert not found(log.examine(5 * THRESHOLD + SECOND)).stalled
    [stalled] = found(log.examine(6 * THRESHOLD)).stalled
    assert (stalled.lost.since, stalled.sequence) == (log.now, len(log.facts))


def test_nothing_lost_nothing_decided() -> None:
    findings = found(running().examine(timedelta(days=9)))
    assert recovery.recover(findings, [], now=NOON + timedelta(days=9), policy=POLICY, job="gone") is None


def test_lost_task_that_reappears_is_denied() -> None:
    log = lost_before()

    def claim(task: int) -> Started | ClaimDenied:
        return execution.claim(log.state, step="main", attempt=1, delivery=1, task=task, worker="w")

    assert claim(2) == ClaimDenied("superseded")
    log.store(*execution.dispatch_missing(log.state, at=NOON, key=KEY))
    assert claim(2) == ClaimDenied("superseded")
    assert claim(5) == started()
    log.store(started())
    assert log.state.steps["main"].task == 5


def test_overdue_attempt_names_the_number_of_claims() -> None:
    log = running(plan(retry=TWO))
    log.store(*(started(delivery=delivery) for delivery in range(1, 21)))
    [overdue] = found(log.examine(LIMIT)).overdue
    assert (overdue.error.type, "20" in overdue.error.message) == ("timed_out", True)
    [retry] = execution.fail(log.state, report("failed", delivery=20, error=overdue.error), at=NOON)
    log.store(retry)
    log.store(*execution.dispatch_retry(log.state, "main", 2, key=KEY))
    assert log.state.steps["main"].claims == 0


def test_recovery_of_a_claimed_task_changes_nothing() -> None:
    log = running()
    log.store(started(), recovered(1))
    assert log.state.steps["main"].phase is Phase.STARTED
    assert execution.dispatch_missing(log.state, at=NOON, key=KEY) == []


def test_success_of_a_task_declared_lost_counts() -> None:
    log = lost_before()
    [completed] = execution.succeed(log.state, report("completed", delivery=None), key=KEY)
    assert isinstance(completed, Completed)


def test_recovered_task_says_so_after_any_delay() -> None:
    log = Log(planned())
    log.store(recovered(1, "planned"))
    log.store(*execution.admit(log.state, fence=1))
    [task] = execution.dispatch(execution.fold(log.facts[-1:]), key=KEY)  # `admitted` holds everything
    assert (task.is_recovery, task.recovery_attempt_time, task.original_scheduled_time) == (True, NOON, NOON)


steps = st.sampled_from(["a", "b", "c", "d"])


class Life(Log):
    """An execution to which anything may happen, each thing as the domain decides on it."""

    def __init__(self) -> None:
        policy = RetryPolicy(max_attempts=2, initial_delay=30, jitter=0)
        limit = plan(GRAPH, retry=policy).changed(execution_timeout=4 * 3_600.0)
        super().__init__(planned().changed(plan=limit))

    def happens(self, what: str, step: str, after: float) -> None:
        self.now += timedelta(seconds=after)
        state = self.state
        current = state.steps.get(step)
        attempt, delivery = (current.attempt, current.delivery) if current else (0, 0)
        decided: Sequence[Message] = ()
        match what:
            case "admitted":
                decided = execution.admit(state, fence=1)
            case "dispatched":
                decided = execution.dispatch(state, key=KEY)[:1]  # and the stage dies
            case "timer" if current and current.next_attempt_at and current.next_attempt_at <= self.now:
                decided = execution.dispatch_retry(state, step, attempt + 1, key=KEY)
            case "started" if current:
                task = current.task
                granted = execution.claim(
                    state, step=step, attempt=attempt, delivery=delivery + 1, task=task, worker="w"
                )
                decided = [granted] if isinstance(granted, Started) else []
            case "completed" if delivery:
                decided = execution.succeed(state, report("completed", step, attempt, delivery), key=KEY)[:1]
            case "failed" if delivery:
                error = Failure(type="E")
                decided = execution.fail(state, report("failed", step, attempt, delivery, error=error), at=self.now)
        self.store(*decided)

    def look(self, *, outside: Sequence[str]) -> None:
        """The recoverer looks, all stalled work is lost, retries are due, and the stages act."""
        if (findings := self.examine(self.now - NOON, outside)) is None:
            return
        if error := recovery.overrun(findings):
            self.store(*execution.give_up(self.state, "timed_out", error))
            return
        lost = [one.lost for one in findings.stalled]
        decided = recovery.recover(findings, lost, now=self.now, policy=POLICY, job="active")
        if isinstance(decided, Failure):
            self.store(*execution.give_up(self.state, "abandoned", decided))
        elif decided is not None:
            self.store(decided)
            self.store(*execution.admit(self.state, fence=1))
            resumed = execution.dispatch_missing(self.state, at=self.now, key=KEY)
            self.store(*resumed)
            assert execution.dispatch_missing(self.state, at=self.now, key=KEY) == []
        for overdue in findings.overdue:
            answer = report("failed", overdue.step, overdue.attempt, overdue.delivery, error=overdue.error)
            self.store(*execution.fail(self.state, answer, at=self.now))
            assert execution.fail(self.state, answer, at=self.now) == []
        for step in GRAPH:
            self.happens("timer", step, 0)


things = st.sampled_from(["admitted", "dispatched", "dispatched", "timer", "started", "completed", "failed"])


@settings(max_examples=examples(75), deadline=None)
@given(
    st.lists(st.tuples(things, steps, st.floats(0, 400)), max_size=30),
    st.sampled_from([(), ("default",)]),
)
def test_every_execution_ends_even_without_workers(past: list[tuple[str, str, float]], outside: Sequence[str]) -> None:
    life = Life()
    for what, step, after in past:
        life.happens(what, step, after)
    for _ in range(200):
        life.look(outside=outside)
        life.now += timedelta(seconds=100)
    assert life.state.is_over
    recoveries = [r.message.recovery for r in life.facts if isinstance(r.message, Recovered)]
    assert recoveries == list(range(1, len(recoveries) + 1))
    assert len(recoveries) <= POLICY.max_attempts
    terminals = [r for r in life.facts if isinstance(r.message, Completed | Failed)]
    assert terminals == life.facts[-1:]
    tasks = [(r.message.step, r.message.attempt) for r in life.facts if isinstance(r.message, Dispatched)]
    assert len(tasks) == len(set(tasks))
