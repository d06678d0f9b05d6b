"""The execution: each rule by example, the graph against a brute-force model."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.given import ID, JOB, KEY, NOON, admitted, plan, recorded, report, started
from tests.properties import examples
from tocsin.domain import execution
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import (
    Advanced,
    Cancelled,
    Completed,
    Dispatched,
    Exhausted,
    Failed,
    Failure,
    Message,
    Planned,
    RetryScheduled,
    validated,
)
from tocsin.domain.execution import ClaimDenied, Execution, Phase, Status

BOOM = Failure(type="ValueError", message="boom")
THRICE = RetryPolicy(max_attempts=3, initial_delay=30, multiplier=2, max_delay=50, jitter=0)


def after(*facts: Message) -> Execution:
    return execution.fold(recorded(facts))


def dispatched(*facts: Message) -> list[Dispatched]:
    return execution.dispatch(after(*facts), key=KEY)


def run(step: str = "main", *facts: Message, attempt: int = 1) -> list[Message]:
    """Facts up to a started attempt of a step."""
    tasks = [task for task in dispatched(*facts) if task.step == step]
    return [*facts, *tasks, started(step, attempt)]


def test_the_steps_without_dependencies_are_dispatched_at_once() -> None:
    graph = plan({"a": (), "b": (), "c": ("a", "b")})
    assert [task.step for task in dispatched(admitted(graph))] == ["a", "b"]


def test_a_planned_execution_dispatches_nothing() -> None:
    fields = admitted().document(exclude={"type", "fence"})
    assert dispatched(validated(Planned, fields)) == []


def test_a_task_says_all_that_its_executor_needs() -> None:
    [task] = dispatched(admitted(fence=7))
    assert (task.function, task.attempt, task.max_attempts, task.fence, task.timeout) == ("f/main", 1, 1, 7, 30)
    assert len(task.token) == 32


def test_task_carries_the_results_of_its_dependencies() -> None:
    facts = run("a", admitted(plan({"a": (), "b": ("a",)})))
    [advanced, task] = execution.succeed(after(*facts), report("completed", "a", result={"rows": 3}), key=KEY)
    assert isinstance(advanced, Advanced)
    assert isinstance(task, Dispatched)
    assert task.upstream == {"a": {"rows": 3}}


def test_the_last_step_completes_the_execution() -> None:
    [completed] = execution.succeed(after(*run("main", admitted())), report("completed", result=1), key=KEY)
    assert isinstance(completed, Completed)
    assert (completed.step, completed.result) == ("main", 1)


def test_repeated_success_adds_nothing() -> None:
    facts = run("main", admitted())
    [completed] = execution.succeed(after(*facts), report("completed"), key=KEY)
    assert execution.succeed(after(*facts, completed), report("completed"), key=KEY) == []


def test_a_success_of_an_earlier_delivery_counts() -> None:
    facts = [*run("main", admitted()), started(delivery=2)]
    [completed] = execution.succeed(after(*facts), report("completed", delivery=1), key=KEY)
    assert isinstance(completed, Completed)


def test_failure_of_an_earlier_delivery_does_not_count() -> None:
    facts = [*run("main", admitted()), started(delivery=2)]
    assert execution.fail(after(*facts), report("failed", delivery=1, error=BOOM), at=NOON) == []


def test_success_of_an_undispatched_attempt_does_not_count() -> None:
    facts = run("main", admitted())
    assert execution.succeed(after(*facts), report("completed", attempt=2), key=KEY) == []


def test_failure_is_retried_after_the_policys_delay() -> None:
    facts = run("main", admitted(plan(retry=THRICE)))
    [again] = execution.fail(after(*facts), report("failed", error=BOOM), at=NOON)
    assert isinstance(again, RetryScheduled)
    assert (again.delay, again.next_attempt_at) == (30, NOON + timedelta(seconds=30))
    assert execution.retry_times(after(*facts, again)) == [("main", 2, again.next_attempt_at)]
    [task] = execution.dispatch_retry(after(*facts, again), "main", 2, key=KEY)
    assert (task.step, task.attempt) == ("main", 2)
    assert execution.dispatch_retry(after(*facts, again, task), "main", 2, key=KEY) == []


def test_failure_may_delay_its_retry() -> None:
    facts = run("main", admitted(plan(retry=THRICE)))
    busy = Failure(type="http_status_429", retry_after=45)
    [again] = execution.fail(after(*facts), report("failed", error=busy), at=NOON)
    assert isinstance(again, RetryScheduled)
    assert (again.delay, again.next_attempt_at) == (45, NOON + timedelta(seconds=45))


def test_repeated_failure_adds_nothing() -> None:
    facts = run("main", admitted(plan(retry=THRICE)))
    [again] = execution.fail(after(*facts), report("failed", error=BOOM), at=NOON)
    assert execution.fail(after(*facts, again), report("failed", error=BOOM), at=NOON) == []


def test_late_success_ends_the_wait_for_a_retry() -> None:
    facts = run("main", admitted(plan(retry=THRICE)))
    [again] = execution.fail(after(*facts), report("failed", error=BOOM), at=NOON)
    [completed] = execution.succeed(after(*facts, again), report("completed"), key=KEY)
    assert isinstance(completed, Completed)
    assert execution.retry_times(after(*facts, again, completed)) == []


@pytest.mark.parametrize(
    ("error", "policy", "reason"),
    [
        (BOOM, RetryPolicy(max_attempts=1), "attempts"),
        (Failure(type="BadInput", retryable=False), THRICE, "non_retryable"),
        (
            Failure(type="auth.expired"),
            THRICE.model_copy(update={"non_retryable_errors": ("auth.*",)}),
            "non_retryable",
        ),
    ],
)
def test_after_the_last_attempt_the_execution_fails(error: Failure, policy: RetryPolicy, reason: str) -> None:
    facts = run("main", admitted(plan(retry=policy)))
    [failed] = execution.fail(after(*facts), report("failed", error=error), at=NOON)
    assert isinstance(failed, Failed)
    assert (failed.error, failed.reason, failed.dead_letter) == (error, reason, True)


def test_exhaustion_cancels_downstream_and_lets_the_rest_finish() -> None:
    facts: list[Message] = [admitted(plan({"a": (), "b": (), "c": ("a",)}))]
    facts += dispatched(*facts)
    facts += [started("a"), started("b")]
    [exhausted] = execution.fail(after(*facts), report("failed", "a", error=BOOM), at=NOON)
    assert isinstance(exhausted, Exhausted)
    [failed] = execution.succeed(after(*facts, exhausted), report("completed", "b"), key=KEY)
    assert isinstance(failed, Failed)
    assert (failed.step, failed.step_completed, failed.error, failed.cancelled_steps) == ("b", True, BOOM, ("c",))


def claim(state: Execution, attempt: int = 1, delivery: int = 1, task: int = 99) -> object:
    return execution.claim(state, step="main", attempt=attempt, delivery=delivery, task=task, worker="w")


def test_a_claim_is_granted_once_for_a_delivery() -> None:
    facts = [admitted(), *dispatched(admitted())]
    assert claim(after(*facts)) == started()
    assert claim(after(*facts, started())) == ClaimDenied("held")
    assert claim(after(*facts, started()), delivery=2) == started(delivery=2)


def test_claim_of_a_finished_step_is_denied() -> None:
    facts = run("main", admitted())
    cancelled = Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron")
    assert claim(after(*facts, cancelled), delivery=2) == ClaimDenied("over")
    graph = plan({"main": (), "other": ()})
    facts = run("main", admitted(graph))
    advanced = execution.succeed(after(*facts), report("completed"), key=KEY)
    assert claim(after(*facts, *advanced), delivery=2) == ClaimDenied("done")


def test_a_claim_of_an_earlier_attempt_is_refused() -> None:
    facts = run("main", admitted(plan(retry=THRICE)))
    [again] = execution.fail(after(*facts), report("failed", error=BOOM), at=NOON)
    assert claim(after(*facts, again), delivery=2) == ClaimDenied("superseded")


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, tuple[str, ...]]:
    names = [f"s{i}" for i in range(draw(st.integers(1, 7)))]
    graph = {
        name: tuple(sorted(draw(st.sets(st.sampled_from(names[:i]), max_size=3)))) if i else ()
        for i, name in enumerate(names)
    }
    return dict(draw(st.permutations(list(graph.items()))))


@given(graphs(), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_every_graph_advances_as_the_model_says(graph: dict[str, tuple[str, ...]], data: st.DataObject) -> None:
    """I6: a step is dispatched iff all that it depends on completed; one terminal fact, and none after it."""
    failing = data.draw(st.sets(st.sampled_from(sorted(graph))))
    facts: list[Message] = [admitted(plan(graph))]
    facts += dispatched(*facts)
    while open_steps := _in_flight(facts):
        step = data.draw(st.sampled_from(open_steps))
        facts.append(started(step))
        answer = report("failed" if step in failing else "completed", step, error=BOOM)
        for _ in range(data.draw(st.integers(1, 2))):  # every report may come twice
            state = after(*facts)
            if step in failing:
                facts += execution.fail(state, answer, at=NOON)
            else:
                facts += execution.succeed(state, answer, key=KEY)
    ran = {fact.step for fact in facts if isinstance(fact, Dispatched)}
    assert ran == _reachable(graph, failing)
    assert len([fact for fact in facts if isinstance(fact, Dispatched)]) == len(ran)
    ends = [fact for fact in facts if isinstance(fact, Completed | Failed)]
    assert ends == facts[-1:]
    if ran & failing:
        assert isinstance(ends[0], Failed)
        assert set(ends[0].cancelled_steps) == set(graph) - ran
    else:
        assert isinstance(ends[0], Completed)


def _in_flight(facts: Sequence[Message]) -> list[str]:
    state = after(*facts)
    assert (state.status in execution.TERMINAL_STATUSES) == (not execution.running_steps(state))
    return sorted(name for name, step in state.steps.items() if step.phase is Phase.DISPATCHED)


def _reachable(graph: dict[str, tuple[str, ...]], failing: set[str]) -> set[str]:
    """The model: a step without a failed or unreached ancestor runs."""
    ran: set[str] = set()
    for _ in graph:
        ran |= {name for name, needs in graph.items() if all(n in ran and n not in failing for n in needs)}
    return ran


def test_an_unknown_execution_decides_nothing() -> None:
    assert after().status is Status.UNKNOWN
    assert execution.dispatch(after(), key=KEY) == []
    assert execution.succeed(after(), report("completed"), key=KEY) == []
    assert execution.fail(after(), report("failed"), at=NOON) == []
