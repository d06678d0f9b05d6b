"""Spans of a handler nest in the span of its run."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from opentelemetry import trace as api
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.domain.given import ID, KEY, admitted
from tests.worker.given import FUNCTION, Bench
from tocsin import Context
from tocsin.domain import execution
from tocsin.domain.trace_context import context_in
from tocsin.telemetry import trace_ids
from tocsin.worker.held_tasks import HeldTask

SAMPLED: Final = f"00-{'a' * 32}-{'b' * 16}-01"


class Spans:
    """The spans that handlers make, by an SDK as an application installs it."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def finished(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


async def run(bench: Bench, handler: Callable[..., object], traceparent: str | None) -> None:
    bench.handlers.add(FUNCTION, handler)
    start = admitted().changed(traceparent=traceparent)
    await bench.given(start)
    [task] = execution.dispatch(execution.fold(await bench.log.read("execution.>")), key=KEY)
    await bench.given(task.changed(function=FUNCTION))
    await bench.executor.run(HeldTask(await bench.assigned()))


@pytest.mark.parametrize("is_async", [True, False])
async def test_span_of_a_handler_nests_in_its_run(bench: Bench, spans: Spans, is_async: bool) -> None:  # noqa: FBT001
    seen: list[str | None] = []

    async def later(context: Context) -> None:
        seen.append(context.traceparent)
        with spans.tracer.start_as_current_span("own"):
            await asyncio.sleep(0)

    def at_once(context: Context) -> None:
        seen.append(context.traceparent)
        with spans.tracer.start_as_current_span("own"):
            pass

    await run(bench, later if is_async else at_once, SAMPLED)
    expected = context_in(ID, SAMPLED, "process", "main", 1, 1)
    [own] = spans.finished
    assert expected is not None
    assert own.context is not None
    assert own.parent is not None
    assert f"{own.context.trace_id:032x}" == expected.trace_id
    assert f"{own.parent.span_id:016x}" == expected.span_id
    assert own.parent.is_remote
    assert seen == [expected.traceparent]
    assert not api.get_current_span().get_span_context().is_valid


async def test_trace_that_is_not_exported_has_no_spans(bench: Bench, spans: Spans) -> None:
    def handler(_: Context) -> None:
        spans.tracer.start_span("own").end()

    await run(bench, handler, f"{SAMPLED[:-2]}00")
    assert spans.finished == ()


async def test_without_a_trace_a_handler_begins_its_own(bench: Bench, spans: Spans) -> None:
    seen: list[str | None] = []

    def handler(context: Context) -> None:
        seen.append(context.traceparent)
        spans.tracer.start_span("own").end()

    await run(bench, handler, None)
    [own] = spans.finished
    assert own.parent is None
    assert seen == [None]


async def test_process_knows_the_trace_of_its_handler(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another asyncio task sends the lines of a handler, and has no context variables of it."""
    seen: list[str | None] = []

    async def note(context: Context) -> None:
        seen.append(trace_ids.trace_id(context.job, context.execution_id))

    bench.handlers.add(FUNCTION, note)
    await bench.given(admitted().changed(traceparent=SAMPLED))
    [task] = execution.dispatch(execution.fold(await bench.log.read("execution.>")), key=KEY)
    await bench.given(task.changed(function=FUNCTION))
    assigned = await bench.assigned()
    monkeypatch.setattr(trace_ids, "_known", OrderedDict())  # what the log and the stages, which are here too, learned
    await bench.executor.run(HeldTask(assigned))
    assert seen == ["a" * 32]
