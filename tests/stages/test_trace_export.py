"""The export of traces: selected or failed executions, and no others; losses are counted and hold up nothing."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from tests.domain.given import ID, JOB, NOON, admitted, first_tasks, proven, report, started
from tocsin import subjects
from tocsin.adapters.otel import traces as module
from tocsin.adapters.otel.traces import SpansLost, Traces
from tocsin.domain.events import Completed, Failed, Message, Recorded
from tocsin.domain.trace import Span
from tocsin.domain.trace_context import own_context
from tocsin.engine.report_lists import ListedReports
from tocsin.testing import InMemoryEventLog, ManualClock, settle

END: Final[dict[str, Any]] = {"job": JOB, "execution_id": ID, "scheduled_time": NOON, "trigger": "cron"}
OTHER: Final = ID[::-1]
SELECTED: Final = own_context(ID, is_sampled=True).traceparent
NOT_SELECTED: Final = own_context(ID, is_sampled=False).traceparent


class TraceStore:
    """A trace store in memory."""

    def __init__(self) -> None:
        self.requests: list[Sequence[Span]] = []
        self.error: Exception | None = None
        self.is_closed = False

    async def export(self, spans: Sequence[Span]) -> None:
        if self.error is not None:
            raise self.error
        self.requests.append(spans)

    def close(self) -> None:
        self.is_closed = True

    @property
    def executions(self) -> list[object]:
        return [
            span.attributes["tocsin.execution.id"] for spans in self.requests for span in spans if span.parent is None
        ]


class Scene:
    """A log, and the export of what is recorded of it."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOON)
        self.log = InMemoryEventLog(self.clock)
        self.store = TraceStore()
        self.causes = dict[int, str]()
        """The causes of events, by number."""
        self.traces = Traces(self.log, self.store, self.clock)

    async def stored(self, *events: Message) -> list[Recorded[Message]]:
        """Store events of the execution."""
        for event in events:
            await self.log.append(event, expect=await self.log.tail(subjects.scope_of(event)))
        return await self.log.read("execution.>")

    async def run(self, *events: Message) -> None:
        """Store an execution, record it, and export."""
        self.traces.take(await self.stored(*events), self.causes)
        await self.traces.run_once()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def begun(traceparent: str | None) -> Message:
    return admitted().changed(traceparent=traceparent)


@pytest.mark.parametrize(
    ("traceparent", "end", "is_exported"),
    [
        (SELECTED, Completed(**END), True),
        (NOT_SELECTED, Completed(**END), False),
        (None, Completed(**END), False),
        (SELECTED, Failed(**END), True),
        (NOT_SELECTED, Failed(**END), True),
        (None, Failed(**END), True),
    ],
)
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_selected_and_failed_executions_are_exported(
    scene: Scene, traceparent: str | None, end: Message, *, is_exported: bool, is_restarted: bool
) -> None:
    """A process that starts between the beginning and the end reads the decision."""
    events = await scene.stored(begun(traceparent), end)
    scene.traces.take(events[1:] if is_restarted else events, {})
    await scene.traces.run_once()
    assert scene.store.executions == ([ID] if is_exported else [])


async def test_same_id_of_another_job_decides_nothing(scene: Scene) -> None:
    beginning, end = await scene.stored(begun(SELECTED), Completed(**END))
    other = begun(NOT_SELECTED).changed(job="other")
    scene.traces.take([beginning, Recorded(other, f"execution.other.{ID}.admitted", 9, NOON), end], {})
    await scene.traces.run_once()
    assert scene.store.executions == [ID]


async def test_open_execution_is_not_exported(scene: Scene) -> None:
    await scene.run(begun(SELECTED))
    assert scene.store.requests == []


async def test_old_end_is_not_exported(scene: Scene) -> None:
    events = await scene.stored(begun(SELECTED), Completed(**END))
    scene.clock.advance(module.MAX_AGE.total_seconds() + 1)
    scene.traces.take(events, {})
    await scene.traces.run_once()
    assert scene.store.requests == []


@pytest.mark.parametrize("is_listed", [False, True])
async def test_report_that_was_decided_ends_the_handler(scene: Scene, *, is_listed: bool) -> None:
    await scene.stored(begun(SELECTED), *first_tasks(admitted()))
    claim = (await scene.stored(started()))[-1].sequence
    worker = ListedReports(scene.log, "w") if is_listed else scene.log
    decided = proven(report("completed", claim=claim))
    for own, outcome in ((False, report("completed", claim=claim)), (True, decided), (False, decided)):
        scene.clock.advance(5)
        other = outcome.changed(execution_id=OTHER)
        together = [other, outcome] if own else [outcome]
        stored = await asyncio.gather(
            *(worker.publish(subjects.subject_of(one), one, message_id=f"{own} {n}") for n, one in enumerate(together))
        )
        if own:
            scene.causes[claim + 1] = f"REPORTS-{stored[-1]}"
    await scene.run(Completed(**END, step="main", attempt=1))
    [spans] = scene.store.requests
    [handler] = [span for span in spans if span.name == "process default"]
    assert handler.end == NOON + timedelta(seconds=10)
    assert [span.start for span in spans if span.name == "report"] == [NOON + timedelta(seconds=10)]


async def test_losses_are_counted_and_logged_once(scene: Scene, metrics: InMemoryMetricReader) -> None:
    scene.store.error = SpansLost("no trace store")
    events = await scene.stored(begun(SELECTED), Completed(**END))
    for _ in range(3):
        scene.traces.take(events, {})
        await scene.traces.run_once()
    assert scene.traces._losses == 2  # the first was logged
    assert counted(metrics) == 3
    scene.store.error = None
    scene.traces.take(events, {})
    await scene.traces.run_once()
    assert scene.store.executions == [ID]


async def test_losses_are_zero_from_the_start(scene: Scene, metrics: InMemoryMetricReader) -> None:
    export = asyncio.create_task(scene.traces.run())
    await settle()
    assert counted(metrics) == 0
    export.cancel()
    with suppress(asyncio.CancelledError):
        await export


@pytest.mark.parametrize(("rejected", "lost"), [(1, 1), (100, 2)])
async def test_rejected_spans_lose_their_traces(
    scene: Scene, metrics: InMemoryMetricReader, rejected: int, lost: int
) -> None:
    scene.store.error = SpansLost("too many attributes", rejected=rejected)
    events = await scene.stored(begun(SELECTED), Completed(**END))
    scene.traces.take([*events, *events], {})
    await scene.traces.run_once()
    assert counted(metrics) == lost


@pytest.mark.parametrize("error", [SpansLost("away"), RuntimeError("a defect")])
async def test_failed_export_leaves_the_rest_alone(scene: Scene, error: Exception) -> None:
    scene.store.error = error
    await scene.run(begun(SELECTED), Completed(**END))
    assert scene.traces._losses == 0


async def test_overflow_loses_traces(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    events = await scene.stored(begun(SELECTED), Completed(**END))
    scene.traces.take([*events, *events, *events], {})
    await scene.traces.run_once()
    assert scene.store.executions == [ID]
    assert scene.traces._losses == 1


async def test_few_open_executions_are_remembered(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 1)
    events = await scene.stored(begun(NOT_SELECTED), Completed(**END))
    other = admitted().changed(execution_id=ID.replace("1", "2"), traceparent=SELECTED)
    scene.traces.take([events[0], Recorded(other, events[0].subject, 9, NOON), events[1]], {})
    await scene.traces.run_once()
    assert len(scene.traces._open) == 1
    assert scene.store.requests == []


async def test_events_that_are_gone_lose_the_trace(scene: Scene) -> None:
    events = await scene.stored(begun(SELECTED), Completed(**END))
    scene.traces.take([Recorded(r.message, r.subject, r.sequence + 100, r.time) for r in events], {})
    await scene.traces.run_once()
    assert scene.store.requests == []
    assert scene.traces._logged_at is not None


async def test_requests_hold_a_number_of_spans(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SPANS", 3)
    events = await scene.stored(begun(SELECTED), Completed(**END))
    scene.traces.take([event for _ in range(4) for event in events], {})
    await scene.traces.run_once()
    assert [len(request) for request in scene.store.requests] == [3, 1]


def counted(reader: InMemoryMetricReader) -> float | None:
    """Return the number of lost traces that the counter has; None: it has no series."""
    data = reader.get_metrics_data()
    points = [
        point
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "tocsin_lost_traces"
        for point in metric.data.data_points
    ]
    return sum(point.value for point in points if isinstance(point, NumberDataPoint)) if points else None
