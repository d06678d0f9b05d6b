"""The trace ids that log lines show of executions."""

from collections.abc import Iterator

import pytest

from tests.domain.given import ID, JOB, admitted, report, started
from tocsin.domain.events import Message
from tocsin.telemetry import trace_ids

TRACE = "0af7651916cd43dd8448eb211c80319c"
OTHER = TRACE.replace("c", "d")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    trace_ids._known.clear()
    yield
    trace_ids._known.clear()


def traced(message: Message, trace: str) -> Message:
    return message.changed(traceparent=f"00-{trace}-b7ad6b7169203331-00")


def test_event_names_the_trace() -> None:
    trace_ids.note(started())
    assert trace_ids.trace_id(JOB, ID) is None
    trace_ids.note(traced(admitted(), TRACE))
    trace_ids.note(admitted())
    assert trace_ids.trace_id(JOB, ID) == TRACE


def test_report_names_an_unknown_trace_alone() -> None:
    trace_ids.note(traced(report("completed"), OTHER))
    assert trace_ids.trace_id(JOB, ID) == OTHER
    trace_ids.note(traced(admitted(), TRACE))
    trace_ids.note(traced(report("completed"), OTHER))
    assert trace_ids.trace_id(JOB, ID) == TRACE


def test_same_id_of_another_job_is_apart() -> None:
    trace_ids.note(traced(admitted(), TRACE))
    trace_ids.note(traced(admitted().changed(job="other"), OTHER))
    assert (trace_ids.trace_id(JOB, ID), trace_ids.trace_id("other", ID)) == (TRACE, OTHER)
    assert trace_ids.trace_id("third", ID) is None


@pytest.mark.parametrize("text", ["", "00-zz", "0" * 60])
def test_invalid_context_is_ignored(text: str) -> None:
    trace_ids.note(admitted().changed(traceparent=text))
    assert trace_ids.trace_id(JOB, ID) is None


def test_only_the_last_executions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_ids, "MAX_KNOWN", 2)
    for number in range(4):
        trace_ids.note(traced(admitted(), TRACE).changed(execution_id=str(number)))
    assert [trace_ids.trace_id(JOB, str(number)) for number in range(4)] == [None, None, TRACE, TRACE]
