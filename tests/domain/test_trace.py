"""The spans of an execution, as a fold of its events, a second apart."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import ID, JOB, KEY, NOON, admitted, first_tasks, plan, recorded, report, started
from tocsin.domain.definition import JobDependency
from tocsin.domain.events import (
    Admitted,
    Advanced,
    Cancelled,
    Completed,
    DependenciesSettled,
    Dispatched,
    Exhausted,
    Failed,
    Failure,
    Message,
    Planned,
    Recorded,
    Released,
    Requested,
    RetryScheduled,
    Skipped,
    Terminal,
    validated,
)
from tocsin.domain.execution import admit_and_dispatch
from tocsin.domain.trace import Span, context_of, spans_of
from tocsin.domain.trace_context import TraceContext, own_context, parse

OWN: Final = own_context(ID, is_sampled=True)
PARENT: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ERROR: Final = Failure(type="ValueError", message="not yet")
EVENT: Final[dict[str, Any]] = {"job": JOB, "execution_id": ID, "step": "main", "attempt": 1}
END: Final[dict[str, Any]] = {"job": JOB, "execution_id": ID, "scheduled_time": NOON, "trigger": "cron"}


def begun(**more: object) -> Admitted:
    return admitted().changed(**{"traceparent": OWN.traceparent, **more})


def planned(**more: object) -> Planned:
    fields = {name: getattr(begun(), name) for name in Requested.__struct_fields__}
    return validated(Planned, {**fields, **more})


def task(attempt: int = 1, step: str = "main") -> Dispatched:
    [first] = first_tasks(begun())
    return first.changed(attempt=attempt, step=step)


def completed(**more: object) -> Completed:
    return validated(Completed, {**END, "step": "main", "attempt": 1, **more})


def skipped(**more: object) -> Skipped:
    return validated(Skipped, {**END, "reason": "overlap_skip", "definition": 1, **more})


def retried(attempt: int = 1) -> RetryScheduled:
    fields = {**EVENT, "attempt": attempt, "error": ERROR, "delay": 1.0, "next_attempt_at": NOON}
    return validated(RetryScheduled, fields)


def released(delivery: int = 1) -> Released:
    return Released(**EVENT, delivery=delivery, task=2, reason="lease_over")


def shown(*events: Message, reports: Sequence[Recorded[Message]] = ()) -> list[tuple[str, str, int, int]]:
    """Return each span: the name of its parent, its own, and the seconds after noon of its start and end."""
    spans = spans_of(recorded(events), reports)
    names = {span.context.span_id: span.name for span in spans}
    return [
        (
            "" if span.parent is None else names.get(span.parent.span_id, "?"),
            span.name,
            seconds(span.start),
            seconds(span.end),
        )
        for span in spans
    ]


def seconds(time: datetime) -> int:
    return int((time - NOON).total_seconds())


ROOT = f"execute {JOB}"
STARTS_LATER: Final = plan().changed(start_at=NOON + timedelta(seconds=2))
STARTED_BEFORE: Final = plan().changed(start_at=NOON)
HANDLER = [("attempt main", "wait for worker", 2, 3), ("attempt main", "process default", 3, 4)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(
            (begun(), task(), started(), completed()),
            [
                ("", ROOT, 0, 4),
                (ROOT, "plan", 0, 1),
                (ROOT, "step main", 2, 4),
                ("step main", "attempt main", 2, 4),
                *HANDLER,
            ],
            id="one-step",
        ),
        pytest.param(
            (begun(), task(), started(), retried(), task(2), started(attempt=2), completed(attempt=2)),
            [
                ("", ROOT, 0, 7),
                (ROOT, "plan", 0, 1),
                (ROOT, "step main", 2, 7),
                ("step main", "attempt main", 2, 4),
                *HANDLER,
                ("step main", "wait for retry", 4, 5),
                ("step main", "attempt main", 5, 7),
                ("attempt main", "wait for worker", 5, 6),
                ("attempt main", "process default", 6, 7),
            ],
            id="retry",
        ),
        pytest.param(
            (begun(), task(), started(), released(), started(delivery=2), completed()),
            [
                ("", ROOT, 0, 6),
                (ROOT, "plan", 0, 1),
                (ROOT, "step main", 2, 6),
                ("step main", "attempt main", 2, 6),
                *HANDLER,
                ("attempt main", "wait for worker", 4, 5),
                ("attempt main", "process default", 5, 6),
            ],
            id="lost-worker",
        ),
        pytest.param(
            (begun(), task(), started(), released(), validated(Cancelled, END)),
            [
                ("", ROOT, 0, 5),
                (ROOT, "plan", 0, 1),
                (ROOT, "step main", 2, 5),
                ("step main", "attempt main", 2, 5),
                *HANDLER,
                ("attempt main", "wait for worker", 4, 5),
            ],
            id="cancelled-while-it-waits-again",
        ),
        pytest.param(
            (begun(), task(), validated(Cancelled, END)),
            [
                ("", ROOT, 0, 3),
                (ROOT, "plan", 0, 1),
                (ROOT, "step main", 2, 3),
                ("step main", "attempt main", 2, 3),
                ("attempt main", "wait for worker", 2, 3),
            ],
            id="cancelled-before-any-worker",
        ),
        pytest.param(
            (begun(plan=STARTS_LATER), task(), started(), completed()),
            [
                ("", ROOT, 0, 4),
                (ROOT, "plan", 0, 1),
                (ROOT, "wait until start", 1, 2),
                (ROOT, "step main", 2, 4),
                ("step main", "attempt main", 2, 4),
                *HANDLER,
            ],
            id="start-time",
        ),
        pytest.param(
            (begun(plan=STARTS_LATER), validated(Cancelled, END)),
            [("", ROOT, 0, 2), (ROOT, "plan", 0, 1), (ROOT, "wait until start", 1, 2)],
            id="cancelled-before-its-start-time",
        ),
        pytest.param(
            (begun(plan=STARTED_BEFORE), validated(Cancelled, END)),
            [("", ROOT, 0, 2), (ROOT, "plan", 0, 1)],
            id="start-time-that-has-passed",
        ),
        pytest.param(
            (planned(), begun(fence=3), validated(Cancelled, END)),
            [("", ROOT, 0, 3), (ROOT, "plan", 0, 1), (ROOT, "wait for lock", 1, 2)],
            id="lock",
        ),
        pytest.param(
            (planned(), skipped(traceparent=OWN.traceparent)),
            [("", ROOT, 0, 2), (ROOT, "plan", 0, 1), (ROOT, "wait for lock", 1, 2)],
            id="skipped-by-the-lock",
        ),
        pytest.param((skipped(reason="disabled"),), [("", ROOT, 1, 1)], id="passed-instant"),
        pytest.param(
            (skipped(reason="refused", trigger="event"),),
            [("", ROOT, 0, 1), (ROOT, "plan", 0, 1)],
            id="refused-trigger",
        ),
        pytest.param((begun(catch_up=True), validated(Cancelled, END)), [("", ROOT, 1, 2)], id="late-occurrence"),
        pytest.param(
            (begun(trigger="backfill"), validated(Cancelled, {**END, "trigger": "backfill"})),
            [("", ROOT, 1, 2)],
            id="backfill-of-an-old-instant",
        ),
    ],
)
def test_each_wait_and_each_run_is_a_span(events: Sequence[Message], expected: list[object]) -> None:
    assert shown(*events) == expected


WAITING: Final[dict[str, Any]] = {
    "plan": plan().changed(depends_on=(JobDependency(job="import", within=60),), overlap_policy="skip")
}


def settled(outcome: str) -> DependenciesSettled:
    return validated(DependenciesSettled, {"job": JOB, "execution_id": ID, "outcome": outcome})


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((settled("met"), begun()), [("wait for dependencies", 1, 2), ("wait for lock", 2, 3)]),
        ((), [("wait for dependencies", 1, 2)]),
    ],
)
def test_wait_for_other_jobs_is_a_span(events: Sequence[Message], expected: list[object]) -> None:
    spans = shown(planned(**WAITING), *events, validated(Cancelled, END))
    assert [span[1:] for span in spans if span[1].startswith("wait")] == expected


def test_report_ends_the_handler_and_starts_the_decision() -> None:
    events = recorded([begun(), task(), started(), completed()])
    reports = [at(3.25, report("completed", claim=3)), at(3.5, report("completed", claim=99)), at(9, report("failed"))]
    spans = {span.name: span for span in spans_of(events, reports)}
    assert spans["process default"].end == spans["report"].start == NOON + timedelta(seconds=3.25)
    assert spans["report"].end == NOON + timedelta(seconds=4)
    assert spans["report"].attributes == {"tocsin.stage": "dag_advancer"}


def at(second: float, message: Message) -> Recorded[Message]:
    return Recorded(message, "report", 1, NOON + timedelta(seconds=second))


def named(name: str, *events: Message, original: TraceContext | None = None) -> list[Span]:
    return [span for span in spans_of(recorded(events), original=original) if span.name == name]


def test_retry_is_linked_to_the_attempt_before() -> None:
    first, second = named(
        "attempt main", begun(), task(), started(), retried(), task(2), started(attempt=2), completed(attempt=2)
    )
    assert [link.context for link in second.links] == [first.context]
    assert (first.links, first.error, second.error) == ((), "ValueError: not yet", None)
    assert first.events[0].attributes == {"exception.type": "ValueError", "exception.message": "not yet"}


def test_replay_is_linked_to_its_original() -> None:
    original = own_context("0193a5b0-0000-7000-8000-00000000000f", is_sampled=True)
    [root] = named(ROOT, begun(replay_of="x", trigger="replay"), validated(Cancelled, END), original=original)
    assert [(link.context, link.relation) for link in root.links] == [(original, "replay")]
    assert root.attributes["tocsin.replay_of"] == "x"


def test_request_of_a_publisher_is_the_parent() -> None:
    [root] = named(ROOT, begun(traceparent=PARENT), validated(Cancelled, END))
    assert (root.parent, root.is_remote, root.kind) == (parse(PARENT), True, "consumer")
    [own] = named(ROOT, begun(), validated(Cancelled, END))
    assert (own.parent, own.is_remote, own.kind) == (None, False, "internal")


@pytest.mark.parametrize(
    ("end", "error", "attributes"),
    [
        (Failed(**END, error=ERROR, reason="attempts"), "ValueError: not yet", {"tocsin.reason": "attempts"}),
        (Failed(**END, reason="timed_out"), "timed_out", {"tocsin.reason": "timed_out", "tocsin.status": "failed"}),
        (Failed(**END), "failed", {}),
        (Failed(**END, error=Failure(type="E", message="x" * 5_000)), f"E: {'x' * 997}", {}),
        (validated(Cancelled, END), None, {"tocsin.status": "cancelled", "tocsin.trigger": "cron"}),
    ],
)
def test_only_a_failure_is_an_error(end: Terminal, error: str | None, attributes: Mapping[str, str]) -> None:
    [root] = named(ROOT, begun(), end)
    assert root.error == error
    assert root.attributes.items() >= attributes.items()


def test_failed_step_is_an_error_beside_its_execution() -> None:
    exhausted = Exhausted(**EVENT, error=ERROR, reason="attempts")
    end = Failed(**END, step="main", attempt=1, error=ERROR, reason="attempts", step_completed=True)
    [step] = named("step main", begun(), task(), started(), exhausted, end)
    [run] = named("process default", begun(), task(), started(), exhausted, end)
    assert (step.error, run.error) == ("ValueError: not yet", "ValueError: not yet")
    assert run.attributes["error.type"] == "ValueError"


def test_run_of_a_handler_has_the_messaging_attributes() -> None:
    [run] = named("process default", begun(), task(), started(), completed())
    assert run.kind == "consumer"
    assert run.attributes == {
        "messaging.system": "tocsin",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": f"{ID}.main.1",
        "messaging.message.conversation_id": ID,
        "messaging.client.id": "w",
        "tocsin.job": JOB,
        "tocsin.step": "main",
        "tocsin.attempt": 1,
        "tocsin.delivery": 1,
        "tocsin.function": "f/main",
    }


def test_admission_in_a_task_is_the_same_trace() -> None:
    joined = admit_and_dispatch(begun(), key=KEY)
    assert {name for _, name, *_ in shown(joined, started(), completed())} == {
        *(ROOT, "plan", "step main", "attempt main", "wait for worker", "process default")
    }


def test_graph_has_a_span_for_each_step() -> None:
    graph = begun(plan=plan({"a": (), "b": ("a",)}))
    advanced = validated(Advanced, {**EVENT, "step": "a"})
    tasks = [task(step="a"), started("a"), advanced, task(step="b"), started("b")]
    spans = shown(graph, *tasks, completed(step="b"))
    assert [span for span in spans if span[1].startswith("step")] == [(ROOT, "step a", 2, 4), (ROOT, "step b", 5, 7)]


@pytest.mark.parametrize("error", [Failure(type="E" * 5_000), Failure(type="E" * 5_000, message="m" * 5_000)])
def test_texts_of_a_worker_are_cut(error: Failure) -> None:
    failed = Failed(**END, step="main", attempt=1, error=error)
    spans = spans_of(recorded([begun(), task(), started(), failed]))
    texts = [span.error for span in spans if span.error is not None]
    texts += [str(value) for span in spans for event in span.events for value in event.attributes.values()]
    texts += [str(value) for span in spans for value in span.attributes.values()]
    assert {len(text) for text in texts if text.startswith("E")} == {1_000}
    assert max(map(len, texts)) == 1_000


@pytest.mark.parametrize("events", [(), (started(),), (begun(), task()), (completed(),)])
def test_open_execution_has_no_spans(events: Sequence[Message]) -> None:
    assert spans_of(recorded(events)) == []


@pytest.mark.parametrize("text", [None, "nonsense"])
def test_failure_without_a_context_has_an_own_trace(text: str | None) -> None:
    assert context_of(recorded([begun(traceparent=text)])) == own_context(ID, is_sampled=False)
    [root] = named(ROOT, begun(traceparent=text), Failed(**END))
    assert root.context == own_context(ID, is_sampled=False)


MIXED: Final[tuple[Message, ...]] = (
    *(task(), task(2), started(), started(delivery=2), started(attempt=2), released(), released(2)),
    *(retried(), retried(2), validated(Advanced, EVENT), Exhausted(**EVENT, error=ERROR, reason="attempts")),
    *(planned(), begun(), settled("met")),
)


@given(st.lists(st.sampled_from(MIXED), max_size=12), st.sampled_from([completed(), Failed(**END), skipped()]))
def test_any_history_gives_a_tree_in_time(events: list[Any], end: Message) -> None:
    """Events may be lost, late or twice: a span ends after it starts, within a trace of one root."""
    spans = spans_of(recorded([begun(), *events, end]))
    known = {span.context.span_id for span in spans}
    assert len(known) == len(spans)
    assert [span.parent for span in spans].count(None) == 1
    for span in spans:
        assert span.start <= span.end
        assert span.parent is None or span.parent.span_id in known
