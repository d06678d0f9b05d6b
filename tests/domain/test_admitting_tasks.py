"""One event that admits and dispatches: every reader sees what two events would show."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import ID, JOB, KEY, NOON, admitted, plan, recorded, started
from tocsin import subjects
from tocsin.domain import execution, history, recovery
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import (
    Actor,
    Admitted,
    Advanced,
    Cancelled,
    Completed,
    Dispatched,
    Failed,
    Failure,
    Lost,
    Message,
    Plan,
    PlannedStep,
    Recorded,
    Recovered,
    Released,
    RetryScheduled,
    occurrence_meta,
    unfold,
    validated,
)
from tocsin.domain.execution import Phase, Status
from tocsin.domain.recovery import Policy

BOOM = Failure(type="ValueError", message="boom")
IDENTITY: dict[str, Any] = {"job": JOB, "execution_id": ID}


def step(**fields: object) -> PlannedStep:
    return validated(PlannedStep, {"name": "main", "function": "f", "timeout": 30, **fields})


def merged(admission: Admitted) -> Dispatched:
    event = execution.admit_and_dispatch(admission, key=KEY)
    assert isinstance(event, Dispatched)
    return event


@st.composite
def admissions(draw: st.DrawFn) -> Admitted:
    """Admissions of a single step that may start at once."""
    inputs = st.dictionaries(st.sampled_from("ab"), st.integers(0, 9), max_size=2)
    args = st.lists(st.integers(0, 9), max_size=2).map(tuple)
    recovered_at = draw(st.none() | st.just(NOON + timedelta(hours=1)))
    return Admitted(
        **IDENTITY,
        scheduled_time=draw(st.datetimes(datetime(2026, 1, 1), timezones=st.just(UTC))),  # noqa: DTZ001 - the zone is given separately
        trigger=draw(st.sampled_from(("cron", "api", "replay", "backfill"))),
        plan=plan().changed(
            steps=(
                step(
                    queue=draw(st.sampled_from(("default", "gpu.large"))),
                    input=draw(st.none() | inputs),
                    args=draw(st.none() | args),
                    retry=RetryPolicy(max_attempts=draw(st.integers(1, 3))),
                ),
            ),
            input=draw(inputs),
            args=draw(args),
            tags=("nightly",),
            meta=draw(inputs),
            execution_timeout=draw(st.none() | st.just(60.0)),
        ),
        by=draw(st.none() | st.just(Actor(identity="ada"))),
        catch_up=draw(st.booleans()),
        replay_of=draw(st.none() | st.just("letter")),
        backfill=draw(st.none() | st.just("january")),
        fence=draw(st.none() | st.integers(0, 9)),
        recovered_at=recovered_at,
    )


RELEASED = Released(**IDENTITY, step="main", attempt=1, delivery=1, task=1, reason="lease_over")


@st.composite
def later(draw: st.DrawFn) -> list[Message]:
    """Events that may follow the first task of an execution, also in an order that no stage stores."""
    events: list[Message] = [
        started(),
        started(delivery=2),
        RELEASED,
        Recovered(
            **IDENTITY,
            recovery=1,
            lost=(Lost(what="admitted", since=NOON, step="main", attempt=1),),
            recovered_at=NOON,
        ),
        RetryScheduled(**IDENTITY, step="main", attempt=1, error=BOOM, delay=1, next_attempt_at=NOON),
        Advanced(**IDENTITY, step="main", attempt=1, result=1),
        Completed(**IDENTITY, scheduled_time=NOON, trigger="cron", step="main", attempt=1, result=1),
        Failed(**IDENTITY, scheduled_time=NOON, trigger="cron", step="main", attempt=1, error=BOOM),
        Cancelled(**IDENTITY, scheduled_time=NOON, trigger="cron"),
    ]
    return draw(st.lists(st.sampled_from(events), max_size=4))


def two_ways(admission: Admitted, rest: list[Message]) -> tuple[list[Recorded[Message]], list[Recorded[Message]]]:
    """One log with an event that admits and dispatches, and one with two events. Later sequences are the same."""
    task = execution.dispatch(execution.fold(recorded([admission])), key=KEY)
    one, two = recorded([merged(admission), *rest]), recorded([admission, *task, *rest])
    last = msgspec.structs.replace(
        two[1], sequence=2, time=two[0].time
    )  # of the two events, the times of the first count
    return (
        [
            msgspec.structs.replace(r, sequence=r.sequence + 1, time=r.time + timedelta(seconds=bool(i)))
            for i, r in enumerate(one)
        ],
        [msgspec.structs.replace(two[0], sequence=2), last, *two[2:]],
    )


@given(admissions(), later())
def test_one_event_folds_as_two(admission: Admitted, rest: list[Message]) -> None:
    one, two = two_ways(admission, rest)
    assert execution.fold(one) == execution.fold(two)
    assert history.fold({}, one) == history.fold({}, two)
    for now in (NOON, NOON + timedelta(days=2)):
        states = [recovery.examine(log, now=now, policy=Policy()) for log in (one, two)]
        assert states[0] == states[1]


@given(admissions())
def test_event_is_stored_and_unfolds_as_two(admission: Admitted) -> None:
    event = merged(admission)
    subject = subjects.subject_of(event)
    stored = subjects.decode(subject, event.encode())
    assert stored == event
    [task] = execution.dispatch(execution.fold(recorded([admission])), key=KEY)
    first, second = unfold([Recorded(stored, subject, 7, NOON)])
    assert (first.message, second.message) == (admission, task)
    assert (first.subject, first.sequence, second.sequence) == (subjects.subject_of(admission), 7, 7)


def test_input_is_stored_once() -> None:
    secret = {"account": "7f3e"}
    event = merged(admitted(plan().changed(input=secret, args=("9b1c",), meta={"m": "5d2a"})))
    assert [event.encode().count(text) for text in (b"7f3e", b"9b1c", b"5d2a")] == [1, 1, 1]
    assert (event.task.input, event.task.args) == (secret, ("9b1c",))
    assert event.task.meta == {"m": "5d2a", **occurrence_meta(JOB, NOON)}


@pytest.mark.parametrize(
    "of",
    [
        plan({"a": (), "b": ("a",)}),
        plan().changed(start_at=NOON),
        plan().changed(expires_at=NOON),
    ],
    ids=["graph", "later", "expires"],
)
def test_other_executions_are_admitted_alone(of: Plan) -> None:
    assert execution.admit_and_dispatch(admitted(of), key=KEY) == admitted(of)


def test_task_dispatched_again_keeps_the_admission() -> None:
    facts = [merged(admitted()), started(), RELEASED]
    [again] = execution.dispatch_missing(execution.fold(recorded(facts)), at=NOON, key=KEY)
    newest = {r.subject: r for r in recorded([*facts, again])}  # as a log is read
    state = execution.fold(newest.values())
    assert (state.status, state.steps["main"].phase, state.steps["main"].task) == (Status.ADMITTED, Phase.DISPATCHED, 4)


def test_changed_input_of_a_task_affects_no_other() -> None:
    """Messages share their plan, and a handler may change its input."""
    body = merged(admitted(plan().changed(input={"rows": [1]}))).encode()
    subject = subjects.subject_of(merged(admitted()))
    first, second = (subjects.decode(subject, body) for _ in range(2))
    assert isinstance(first, Dispatched)
    assert isinstance(second, Dispatched)
    first.task.input["rows"].append(2)  # type: ignore[union-attr]
    assert second.task.input == {"rows": [1]}
