"""Traces of executions: a real nats-server, a real worker, and a real receiver of OTLP."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.system.running import Running, running
from tests.system.trace_store import IS_REMOTE, Trace, TraceStore, attributes, trace_store
from tocsin import Context, Worker, subjects
from tocsin.bootstrap.api_server import serving
from tocsin.domain.events import Completed, DeadLettered, Failed
from tocsin.domain.trace_context import trace_id_of
from tocsin.services.operations import dead_letters

NO_DELAY = {"initial_delay": 0.05, "multiplier": 2, "jitter": 0}
PUBLISHER = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
GIVEN = f"00-{PUBLISHER}-{PARENT}-01"
GRAPH = {
    "name": "etl",
    "overlap_policy": "skip",
    "retry": NO_DELAY,
    "dag": [
        {"name": "extract", "function": "f"},
        {"name": "load", "function": "flaky", "depends_on": ["extract"]},
    ],
}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TraceStore, str]]:
    with trace_store() as (store, url):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        yield store, url


class Functions:
    """The functions of the worker, one of which makes a span with OpenTelemetry."""

    def __init__(self, url: str) -> None:
        self.worker = Worker()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
        self.seen: list[str | None] = []
        self.worker.task("f")(self.succeed)
        self.worker.task("flaky")(self.fail_once)
        self.worker.task("boom")(self.fail)

    def succeed(self, context: Context) -> None:
        self.seen.append(context.traceparent)
        with self.provider.get_tracer("app").start_as_current_span("query"):
            pass

    async def fail_once(self, context: Context) -> None:
        if context.attempt == 1:
            raise ValueError("not yet")

    async def fail(self, _: Context) -> None:
        raise RuntimeError("never")


@asynccontextmanager
async def tocsin(nats_url: str, folder: Path, url: str, **more: Any) -> AsyncIterator[tuple[Running, Functions]]:  # noqa: ANN401 - settings
    functions = Functions(url)
    async with running(nats_url, folder, worker=functions.worker, **more) as it:
        yield it, functions
    functions.provider.shutdown()


async def exported(it: Running, store: TraceStore, trace_id: str, name: str) -> Trace:
    """Wait for the span of an execution, which comes with its others, and return the trace."""

    async def has_come() -> bool:
        return any(span.name == name and span.trace_id.hex() == trace_id for span in store.spans)

    await it.until(has_come)
    return store.trace(trace_id)


async def ended(it: Running, job: str, kind: type[Completed | Failed] = Completed) -> str:
    [end] = await it.ended(job, kind)
    return end.execution_id


async def test_graph_with_a_retry_is_one_tree(nats_url: str, tmp_path: Path, store: tuple[TraceStore, str]) -> None:
    spans, url = store
    async with tocsin(nats_url, tmp_path, url) as (it, functions):
        await it.apply(GRAPH)
        await it.trigger("etl")
        execution_id = await ended(it, "etl")
        trace = await exported(it, spans, trace_id_of(execution_id), "execute etl")
    attempt: dict[str, Any] = {"wait for worker": {}, "process default": {}, "report": {}}
    with_span = {**attempt, "process default": {"query": {}}}
    assert trace.tree() == {
        "execute etl": {
            "plan": {},
            "step extract": {"attempt extract": with_span},
            "step load": {"attempt load": attempt, "wait for retry": {}, "attempt load #2": attempt},
        }
    }
    first, second = sorted(
        (span for span in trace.spans.values() if span.name == "attempt load"),
        key=lambda span: span.start_time_unix_nano,
    )
    assert [link.span_id for link in second.links] == [first.span_id]
    assert (first.status.code, first.status.message) == (Status.STATUS_CODE_ERROR, "ValueError: not yet")
    assert second.status.code == trace.of("execute etl").status.code == Status.STATUS_CODE_UNSET
    assert "tocsin" in spans.services
    root = trace.of("execute etl")
    assert root.parent_span_id == b""
    assert attributes(root)["tocsin.status"] == "completed"
    for span in trace.spans.values():
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if (parent := trace.spans.get(span.parent_span_id)) is not None and span.name != "query":
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano
    run = next(span for span in trace.spans.values() if span.span_id == trace.of("query").parent_span_id)
    assert attributes(run)["messaging.destination.name"] == "default"
    assert functions.seen == [f"00-{trace_id_of(execution_id)}-{run.span_id.hex()}-01"]


async def test_trace_of_a_publisher_goes_on(nats_url: str, tmp_path: Path, store: tuple[TraceStore, str]) -> None:
    spans, url = store
    async with tocsin(nats_url, tmp_path, url) as (it, functions):
        await it.apply({"name": "one", "function": "f", "overlap_policy": "allow"})
        client = it.installation.connection.client
        await client.publish(f"{it.settings.trigger_prefix}.one", b"{}", headers={"traceparent": GIVEN})
        await ended(it, "one")
        trace = await exported(it, spans, PUBLISHER, "execute one")
    root = trace.of("execute one")
    assert root.parent_span_id.hex() == PARENT
    assert root.flags & IS_REMOTE
    assert trace.of("query").parent_span_id == trace.of("process default").span_id
    assert functions.seen == [f"00-{PUBLISHER}-{trace.of('process default').span_id.hex()}-01"]


async def test_caller_over_http_continues_its_trace(
    nats_url: str, tmp_path: Path, store: tuple[TraceStore, str]
) -> None:
    spans, url = store
    with_api: dict[str, Any] = {"server": {"host": "127.0.0.1", "port": 0}, "metrics": {"enabled": False}}
    async with tocsin(nats_url, tmp_path, url, **with_api) as (it, _), serving(it.installation) as api:
        await it.apply({"name": "one", "function": "f", "overlap_policy": "allow"})
        async with httpx.AsyncClient(base_url=api) as client:
            answer = await client.post("/v1/jobs/one/trigger", json={}, headers={"traceparent": GIVEN})
        assert answer.status_code == httpx.codes.ACCEPTED, answer.text
        await ended(it, "one")
        trace = await exported(it, spans, PUBLISHER, "execute one")
    assert trace.of("execute one").parent_span_id.hex() == PARENT


async def test_wait_until_a_start_time_is_shown(nats_url: str, tmp_path: Path, store: tuple[TraceStore, str]) -> None:
    spans, url = store
    with_api: dict[str, Any] = {"server": {"host": "127.0.0.1", "port": 0}, "metrics": {"enabled": False}}
    job = {"type": "f", "args": [], "meta": {"traceparent": GIVEN}, "options": {"scheduled_at": "+PT2S"}}
    async with tocsin(nats_url, tmp_path, url, **with_api) as (it, _), serving(it.installation) as api:
        async with httpx.AsyncClient(base_url=api) as client:
            answer = await client.post("/ojs/v1/jobs", json=job)
        assert answer.status_code == httpx.codes.CREATED, answer.text
        trace = await exported(it, spans, PUBLISHER, "execute ojs.f")
    assert trace.of("execute ojs.f").parent_span_id.hex() == PARENT
    assert trace.of("wait until start").parent_span_id == trace.of("execute ojs.f").span_id
    assert trace.of("wait until start").end_time_unix_nano <= trace.of("attempt main").start_time_unix_nano


async def test_invalid_header_starts_an_own_trace(nats_url: str, tmp_path: Path, store: tuple[TraceStore, str]) -> None:
    spans, url = store
    async with tocsin(nats_url, tmp_path, url) as (it, _):
        await it.apply({"name": "one", "function": "f", "overlap_policy": "allow"})
        client = it.installation.connection.client
        await client.publish(f"{it.settings.trigger_prefix}.one", b"{}", headers={"traceparent": "z" * 30_000})
        execution_id = await ended(it, "one")
        trace = await exported(it, spans, trace_id_of(execution_id), "execute one")
    assert trace.of("execute one").parent_span_id == b""


async def test_failure_is_exported_at_ratio_0(
    nats_url: str, tmp_path: Path, store: tuple[TraceStore, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, url = store
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    async with tocsin(nats_url, tmp_path, url) as (it, functions):
        await it.apply(
            {"name": "good", "function": "f", "overlap_policy": "allow"},
            {"name": "bad", "function": "boom", "overlap_policy": "allow", "retry": {**NO_DELAY, "max_attempts": 2}},
        )
        await it.trigger("good")
        await ended(it, "good")
        await it.trigger("bad")
        execution_id = await ended(it, "bad", Failed)
        trace = await exported(it, spans, trace_id_of(execution_id), "execute bad")
    assert {span.trace_id.hex() for span in spans.spans} == {trace_id_of(execution_id)}
    root = trace.of("execute bad")
    assert (root.status.code, root.status.message) == (Status.STATUS_CODE_ERROR, "RuntimeError: never")
    assert len([span for span in trace.spans.values() if span.name == "process default"]) == 2
    [seen] = functions.seen
    assert seen is not None
    assert seen.endswith("-00")


async def test_trace_store_that_is_away_costs_traces_alone(
    nats_url: str, tmp_path: Path, store: tuple[TraceStore, str]
) -> None:
    spans, url = store
    spans.status = 400
    async with tocsin(nats_url, tmp_path, url) as (it, _):
        await it.apply({"name": "one", "function": "f", "overlap_policy": "allow"})
        await it.trigger("one")
        execution_id = await ended(it, "one")

        async def is_recorded() -> bool:
            async with it.installation.history() as history:
                row = await history.execution(execution_id)
            return row is not None and row.status == "completed"

        await it.until(is_recorded)

        async def was_refused() -> bool:
            return spans.refused > 0

        await it.until(was_refused)
        spans.status = 200
        await it.trigger("one")
        ends = await it.ended("one", Completed, 2)
        later = next(end.execution_id for end in ends if end.execution_id != execution_id)
        await exported(it, spans, trace_id_of(later), "execute one")


async def test_replay_is_linked_to_its_execution(nats_url: str, tmp_path: Path, store: tuple[TraceStore, str]) -> None:
    spans, url = store
    async with tocsin(nats_url, tmp_path, url) as (it, _):
        policy = {"retry": {"max_attempts": 1}, "dead_letter": True}
        await it.apply({"name": "bad", "function": "boom", "overlap_policy": "allow", **policy})
        client = it.installation.connection.client
        await client.publish(f"{it.settings.trigger_prefix}.bad", b"{}", headers={"traceparent": GIVEN})
        [letter] = await it.stored(f"dead-letter.{subjects.token('bad')}.>", DeadLettered, 1)
        await dead_letters.replay(it.log, letter.message.execution_id)
        ends = await it.ended("bad", Failed, 2)
        replay = next(end.execution_id for end in ends if end.execution_id != letter.message.execution_id)
        original = await exported(it, spans, PUBLISHER, "execute bad")
        trace = await exported(it, spans, trace_id_of(replay), "execute bad")
    [link] = trace.of("execute bad").links
    assert link.trace_id.hex() == PUBLISHER
    assert link.span_id == original.of("execute bad").span_id
