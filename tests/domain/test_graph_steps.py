"""The steps of a graph behave like the plain mapping that they replace, after any history."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.given import ID, JOB, KEY, NOON, admitted, plan, recorded, report, started
from tests.properties import examples
from tocsin.domain import execution
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import (
    Advanced,
    Cancelled,
    Dispatched,
    Exhausted,
    Failure,
    Lost,
    Message,
    Plan,
    Planned,
    Recorded,
    Recovered,
    Released,
    RetryScheduled,
    validated,
)
from tocsin.domain.execution import Execution
from tocsin.domain.execution.steps import PersistentDict, Steps

BOOM = Failure(type="ValueError", message="boom")
NAMES = [f"s{number}" for number in range(24)]
"""More than a mapping keeps as changes."""
OUTSIDE = "outside"
"""A step that no plan has."""


def folded(facts: Sequence[Recorded[Message]]) -> Execution:
    """The oracle: each event copies all steps."""
    state = execution.initial
    for fact in facts:
        state = execution.evolve(state, fact)
        state = msgspec.structs.replace(state, steps=dict(state.steps))
    return state


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    names = NAMES[: draw(st.integers(2, len(NAMES)))]
    graph = {
        name: tuple(draw(st.lists(st.sampled_from(names[:i]), max_size=4, unique=True))) if i else ()
        for i, name in enumerate(names)
    }
    ordered = dict(draw(st.permutations(list(graph.items()))))
    later = draw(st.none() | st.just(NOON))
    return plan(ordered, retry=RetryPolicy(max_attempts=2, jitter=0)).changed(start_at=later)


def task(of_step: dict[str, Any]) -> Dispatched:
    return Dispatched(
        **of_step,
        max_attempts=2,
        function="f",
        queue="default",
        timeout=30,
        scheduled_time=NOON,
        trigger="cron",
        token="t",
    )


@st.composite
def events(draw: st.DrawFn, names: Sequence[str]) -> Message:
    """Any event of a step, likely or not."""
    step, attempt = draw(st.sampled_from([*names, OUTSIDE])), draw(st.integers(1, 2))
    of_step: dict[str, Any] = {"job": JOB, "execution_id": ID, "step": step, "attempt": attempt}
    lost = Lost(what="admitted", step=step, attempt=attempt, since=NOON)
    match draw(st.integers(0, 9)):
        case 0 | 1:
            return task(of_step)
        case 2 | 3:
            return started(step, attempt)
        case 4 | 5 | 6:
            return Advanced(**of_step, result={"of": step})
        case 7:
            return Exhausted(**of_step, error=BOOM, reason="attempts")
        case 8:
            return RetryScheduled(**of_step, error=BOOM, delay=1, next_attempt_at=NOON)
        case _:
            return draw(
                st.sampled_from(
                    [
                        Released(**of_step, delivery=1, task=draw(st.integers(1, 40)), reason="lease_over"),
                        Recovered(job=JOB, execution_id=ID, recovery=1, recovered_at=NOON, lost=(lost,)),
                        Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron"),
                    ]
                )
            )


@given(plans(), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_state_equals_the_plain_fold(plan_: Plan, data: st.DataObject) -> None:
    names = [step.name for step in plan_.steps]
    history: list[Message] = data.draw(st.lists(events(names), max_size=3))
    if data.draw(st.booleans()):
        history.append(validated(Planned, admitted(plan_).document(exclude={"type", "fence"})))
    history += [admitted(plan_), *data.draw(st.lists(events(names), max_size=60))]
    facts = recorded(history)
    state, oracle = execution.fold(facts), folded(facts)
    assert isinstance(state.steps, Steps)
    assert isinstance(oracle.steps, dict)
    assert msgspec.structs.replace(state, steps=dict(state.steps)) == oracle
    assert list(state.steps) == list(oracle.steps)
    assert len(state.steps) == len(oracle.steps)
    assert execution.dispatch(state, key=KEY) == execution.dispatch(oracle, key=KEY)
    if OUTSIDE not in state.steps:
        missing = execution.dispatch_missing(oracle, at=NOON, key=KEY)
        assert execution.dispatch_missing(state, at=NOON, key=KEY) == missing
    for name in [*names, OUTSIDE]:
        success, failure = report("completed", name), report("failed", name, delivery=None, error=BOOM)
        assert execution.succeed(state, success, key=KEY) == execution.succeed(oracle, success, key=KEY)
        if name in names:
            assert execution.fail(state, failure, at=NOON) == execution.fail(oracle, failure, at=NOON)


@given(
    st.dictionaries(st.sampled_from(NAMES), st.integers()), st.lists(st.tuples(st.sampled_from(NAMES), st.integers()))
)
def test_persistent_dict_equals_a_dict(start: dict[str, int], changes: list[tuple[str, int]]) -> None:
    values, expected = PersistentDict(dict(start)), dict(start)
    for key, value in changes:
        before, unchanged = values, dict(values)
        values = values.updated({key: value})
        expected[key] = value
        assert dict(before) == unchanged
        assert list(values.items()) == list(expected.items())
        assert len(values) == len(expected)
