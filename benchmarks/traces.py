"""CPU time of traces for each message, by the part that is exported.

    python -m benchmarks.traces [--executions 2000] [--rounds 5]

An execution of one step stores four messages in the log: its first task, the claim, the report and its end. The parts that tracing adds
are measured alone, without a server: the planner's decision on the trace, the encoding of the bytes that a task has more, the context
that a worker makes, the recorder's note of each event, and the export of what is selected: the fold into spans and their encoding,
without the reads from the log and the request. The fastest round of each counts, because other load only adds.
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Final, NamedTuple, TypeVar

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from tocsin import subjects
from tocsin.adapters.otel.span_exporter import OtlpSpanExporter
from tocsin.adapters.otel.traces import Traces
from tocsin.domain import execution_plan
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Completed, Dispatched, Message, Recorded, Started, Trigger
from tocsin.domain.execution import admit_and_dispatch
from tocsin.domain.trace import Span, spans_of
from tocsin.domain.trace_context import Sampling, context_in
from tocsin.testing import InMemoryEventLog, ManualClock
from tocsin.worker.handler_runner import in_trace

T = TypeVar("T")

NOON: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
KEY: Final = b"a key of this benchmark"
JOB: Final = JobDefinition(name="nightly", function="f", overlap_policy="allow")
MESSAGES: Final = 4
"""Messages of an execution: the task, the claim, the report and the end."""
CASES: Final[dict[str, Sampling | None]] = {
    "off": None,
    "1 %": Sampling(0.01, follows_parent=True),
    "100 %": Sampling(1.0, follows_parent=True),
}
MICROSECONDS: Final = 1e6


class Costs(NamedTuple):
    """Microseconds of CPU time for each message, by process."""

    planner: float
    worker: float
    recorder: float
    export: float


class _Nowhere:
    async def export(self, spans: Sequence[Span]) -> None:
        """Send nothing."""

    def close(self) -> None:
        """Close nothing."""


def measure(sampling: Sampling | None, number: int) -> Costs:
    """Measure one round over a number of executions."""
    first = [
        execution_plan.from_trigger(Recorded(Trigger(), "trigger.nightly", n + 1, NOON, f"m{n}"), JOB, 1)
        for n in range(number)
    ]
    planned, planner = _timed(lambda: [execution_plan.traced(event, sampling) for event in first])
    tasks = [event for event in (admit_and_dispatch(p, key=KEY) for p in planned) if isinstance(event, Dispatched)]  # type: ignore[arg-type] # without a lock each is an admission
    _, written = _timed(lambda: [task.encode() for task in tasks])
    bare = [task.changed(traceparent=None) for task in tasks]
    _, without = _timed(lambda: [task.encode() for task in bare])
    _, worker = _timed(lambda: _handle(tasks))
    events = [_events(task) for task in tasks]
    traces = Traces(InMemoryEventLog(ManualClock(NOON)), _Nowhere(), ManualClock(NOON))
    recorder = 0.0
    if sampling is not None:
        _, recorder = _timed(lambda: _take(traces, events))
    selected = [facts for task, facts in zip(tasks, events, strict=True) if (task.traceparent or "").endswith("01")]
    exporter = OtlpSpanExporter("benchmark")
    _, export = _timed(lambda: [_encoded(exporter, facts) for facts in selected])
    exporter.close()
    scale = MICROSECONDS / number / MESSAGES
    return Costs((planner + max(0.0, written - without)) * scale, worker * scale, recorder * scale, export * scale)


def _handle(tasks: Sequence[Dispatched]) -> None:
    """Do what a worker does for the trace around each handler."""
    for task in tasks:
        trace = context_in(task.execution_id, task.traceparent, "process", task.step, task.attempt, 1)
        with nullcontext() if trace is None else in_trace(trace):
            pass


def _take(traces: Traces, events: Sequence[Sequence[Recorded[Message]]]) -> None:
    for facts in events:
        traces.take(facts, {})


def _encoded(exporter: OtlpSpanExporter, facts: Sequence[Recorded[Message]]) -> bytes:
    spans = [exporter.readable(span) for span in spans_of(facts)]
    body: bytes = encode_spans(spans).SerializeToString()
    return body


def _events(task: Dispatched) -> list[Recorded[Message]]:
    of = {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": 1}
    claim = Started(**of, delivery=1, worker="w")  # type: ignore[arg-type] # a mapping of several types
    end = Completed(**of, scheduled_time=task.scheduled_time, trigger=task.trigger)  # type: ignore[arg-type]
    return [
        Recorded(event, subjects.subject_of(event), n, NOON + timedelta(milliseconds=n))
        for n, event in enumerate((task, claim, end), start=1)
    ]


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    begin = perf_counter()
    result = work()
    return result, perf_counter() - begin


def main() -> None:
    """Print a line for each case."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--executions", type=int, default=2_000, help="executions in each round (default: 2,000)")
    options.add_argument("--rounds", type=int, default=5, help="rounds of which the fastest counts (default: 5)")
    given = options.parse_args()
    print(f"{'µs per message':16} {'planner':>9} {'worker':>9} {'recorder':>9} {'export':>9} {'all':>9}")
    for name, sampling in CASES.items():
        rounds = [measure(sampling, given.executions) for _ in range(given.rounds)]
        best = Costs(*map(min, zip(*rounds, strict=True)))
        print(f"{name:16} {' '.join(f'{cost:9.2f}' for cost in best)} {sum(best):9.2f}")


if __name__ == "__main__":
    main()
