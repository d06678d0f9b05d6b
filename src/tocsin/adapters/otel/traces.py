"""The export of traces: each execution that is over and selected, or failed, becomes spans.

The recorder hands over what it has recorded, and never waits. A loop reads the events of an execution, folds them into spans
and sends these. A trace store that is away, or slower than the executions, costs traces and nothing else.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final, Protocol

import msgspec

from ... import subjects, telemetry
from ...domain import events, ids
from ...domain.errors import TocsinError
from ...domain.events import Message, Recorded
from ...domain.trace import Span, context_of, spans_of
from ...domain.trace_context import TraceContext, own_context, parse
from ...engine.report_lists import listed
from ...ports import Clock, EventLog
from ...subjects import Stream

REPORTS: Final = "report.>"
MAX_OPEN: Final = 100_000
"""Executions with a remembered selection and remembered reports. For other executions the events are read."""
MAX_WAITING: Final = 10_000
"""Executions that wait for their export; of more, the traces are lost."""
BATCH: Final = 32
"""Executions that are read and sent together."""
MAX_SPANS: Final = 512
"""Spans of one request, unless a single trace has more."""
MAX_AGE: Final = timedelta(hours=1)
"""Age of an end beyond which no trace is exported: a recorder that starts with an empty history meets all ends again."""
LOSS_INTERVAL_S: Final = 60.0
"""The shortest time between two lines about lost traces."""

_log = telemetry.get_logger("tocsin.traces")
_lost_traces: Final = telemetry.meter().create_counter(
    "tocsin_lost_traces", unit="{trace}", description="Traces of executions that were not exported."
)


class _Open(msgspec.Struct):
    is_selected: bool = True
    """Of an execution that began before this process, the events say whether it was selected."""
    reports: dict[int, None] = {}
    """The places of the reports that caused its events."""


class SpansLost(TocsinError):
    """Spans were not accepted, and are not sent again."""

    code = "spans-lost"

    def __init__(self, reason: str, *, rejected: int | None = None) -> None:
        """`rejected`: the number of the spans; None: all that were sent."""
        super().__init__(reason)
        self.rejected = rejected


class SpanExporter(Protocol):
    """Sends spans to a trace store."""

    async def export(self, spans: Sequence[Span]) -> None:
        """Send finished spans; the event loop goes on meanwhile.

        Raises:
            SpansLost: the trace store did not accept them in time.
        """

    def close(self) -> None:
        """End what is being sent; nothing is accepted afterwards."""


class Ended(msgspec.Struct, frozen=True):
    """An execution that is over."""

    job: str
    execution_id: str
    sequence: int
    """The sequence of its last event."""
    is_failed: bool
    reports: Iterable[int]
    """The places of the reports that caused its events."""


class Traces:
    """Exports the traces of executions that the recorder has recorded."""

    def __init__(self, log: EventLog, exporter: SpanExporter, clock: Clock) -> None:
        self._log = log
        self._exporter = exporter
        self._clock = clock
        self._open: OrderedDict[tuple[str, str], _Open] = OrderedDict()
        """The open executions, by job and id."""
        self._waiting: deque[Ended] = deque()
        self._wake = asyncio.Event()
        self._losses = 0
        self._logged_at: float | None = None

    def take(self, messages: Iterable[Recorded[Message]], causes: Mapping[int, str]) -> None:
        """Note beginnings, reports and ends; `causes`: the causes of events, by number."""
        for recorded in messages:
            message = recorded.message
            source, _, place = causes.get(recorded.sequence, "").partition("-")
            if source == Stream.REPORTS and isinstance(message, events.ExecutionFact):
                self._noted(message).reports[int(place)] = None
            if isinstance(message, events.Requested | events.Skipped) or (
                isinstance(message, events.Dispatched) and message.admits
            ):
                context = parse(message.traceparent)
                self._noted(message).is_selected = context is not None and context.is_sampled
            if isinstance(message, events.Terminal | events.Skipped):
                self._note_end(recorded, message)

    async def run(self) -> None:
        _lost_traces.add(0)  # so that a dashboard sees the first loss
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    await self.run_once()
        finally:
            self._exporter.close()

    async def run_once(self) -> None:
        """Export the traces that have waited longest."""
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        results = await asyncio.gather(*map(self._spans, batch), return_exceptions=True)
        for failure in results:
            if isinstance(failure, BaseException):
                self._lose(1, failure)
        traces = [spans for spans in results if not isinstance(spans, BaseException) and spans]
        for portion in _portions(traces):
            try:
                await self._exporter.export([span for spans in portion for span in spans])
            except Exception as error:  # noqa: BLE001 - a defect of a library must cost traces alone
                rejected = error.rejected if isinstance(error, SpansLost) else None
                self._lose(len(portion) if rejected is None else min(rejected, len(portion)), error)

    def _noted(self, message: events.ExecutionFact) -> _Open:
        noted = self._open.setdefault((message.job, message.execution_id), _Open())
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
        return noted

    def _note_end(self, recorded: Recorded[Message], message: events.Terminal | events.Skipped) -> None:
        noted = self._open.pop((message.job, message.execution_id), _Open())
        is_failed = isinstance(message, events.Failed)
        if not (noted.is_selected or is_failed) or self._clock.now() - recorded.time > MAX_AGE:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._lose(1, SpansLost("executions end faster than their traces are sent"))
            return
        self._waiting.append(Ended(message.job, message.execution_id, recorded.sequence, is_failed, noted.reports))
        self._wake.set()

    async def _spans(self, ended: Ended) -> list[Span]:
        """Return the spans of an execution; none: its trace was not selected."""
        facts = await self._facts(ended)
        context = context_of(facts)
        if context is None or not (context.is_sampled or ended.is_failed):
            return []
        reports = [report for place in ended.reports for report in await self._reports(ended, place)]
        return spans_of(facts, reports, original=await self._original(facts))

    async def _facts(self, ended: Ended) -> list[Recorded[Message]]:
        facts = await self._log.load(subjects.execution(ended.job, ended.execution_id))
        if not facts or facts[-1].sequence < ended.sequence:
            raise SpansLost("the events of an execution are gone")
        return facts

    async def _reports(self, ended: Ended, place: int) -> list[Recorded[Message]]:
        """Return the reports on an execution in one message, which may be a list."""
        stored = await self._log.get(REPORTS, place)
        return [
            one
            for one in (() if stored is None else listed(stored))
            if isinstance(one.message, events.Report)
            and (one.message.job, one.message.execution_id) == (ended.job, ended.execution_id)
        ]

    async def _original(self, facts: Sequence[Recorded[Message]]) -> TraceContext | None:
        """Return the context of the execution that an execution replays, if it replays one."""
        request = next((r.message for r in facts if isinstance(r.message, events.Requested | events.Dispatched)), None)
        if request is None or request.replay_of is None or not ids.is_execution_id(request.replay_of):
            return None
        context = context_of(await self._log.load(subjects.execution(request.job, request.replay_of)))
        root = own_context(request.replay_of, is_sampled=True)
        return root if context is None else TraceContext(context.trace_id, root.span_id, context.is_sampled)

    def _lose(self, count: int, error: BaseException) -> None:
        _lost_traces.add(count)
        self._losses += count
        now = self._clock.monotonic()
        if self._logged_at is not None and now - self._logged_at < LOSS_INTERVAL_S:
            return
        _log.warning("traces lost", action="traces-lost", traces=self._losses, error=str(error) or repr(error))
        self._losses, self._logged_at = 0, now


def _portions(traces: Iterable[list[Span]]) -> Iterator[list[list[Span]]]:
    portion: list[list[Span]] = []
    count = 0
    for trace in traces:
        if portion and count + len(trace) > MAX_SPANS:
            yield portion
            portion, count = [], 0
        portion.append(trace)
        count += len(trace)
    if portion:
        yield portion
