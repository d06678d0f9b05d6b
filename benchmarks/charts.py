"""The charts: which figures of which workloads belong side by side."""

from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks import scale_out
from benchmarks.comparison import HEADLINES, TOCSIN, Row, number
from benchmarks.metrics import Metrics, Results
from benchmarks.plots import OURS, THEIRS, Bar, Chart, Mark

SECOND: Final = 1_000.0
"""Milliseconds. Schedules have a resolution of one second, so a handler that starts within it is on time."""
TOLERATED: Final = 0.9
"""The share of the first rate that a large log may cost: a tenth."""
MORE: Final = "longer is better"
LESS: Final = "shorter is better"


def charts(results: Results) -> Iterator[Chart]:
    """Return every chart of Tocsin alone that the results allow."""
    for chart in (_lag(results), _throughput(results), _latency(results), _scale_out(results), _ojs(results)):
        if chart.bars:
            yield chart
    for title in ("W5", "W5 durable"):
        if title in results:
            yield _growth(title, results[title])


def peers(workload: str, rows: Sequence[Row]) -> Chart:
    """Return charts of Tocsin beside its peers; a system without a figure has no bar."""
    headline = HEADLINES[workload]
    return Chart(
        f"{workload}-peers",
        headline.title,
        MORE if headline.more_is_better else LESS,
        [
            Bar(row.system, (row.figure,), f"{number(row.figure)} {headline.unit}", _colour(row))
            for row in rows
            if row.figure is not None
        ],
    )


def _lag(results: Results) -> Chart:
    bars = [
        Bar(f"{jobs} jobs, {name}{kind}", (value,), f"{number(value)} ms")
        for jobs in ("1,000", "10,000")
        for title, kind in (("W1", ""), ("W1 durable", ", durable"))
        for name in ("p50", "p99", "max")
        if (value := results.get(title, {}).get(f"{name}_ms ({jobs})")) is not None
    ]
    mark = Mark(SECOND, "one second: the resolution of a schedule")
    return Chart("W1", "W1: jobs due at one second, from that second to their handlers", LESS, bars, mark=mark)


def _throughput(results: Results) -> Chart:
    shown = {
        "W2": "three processes",
        "W2 durable": "three processes, durable",
        "W2-one-process": "one process",
        "W2-one-process durable": "one process, durable",
        "W2d": "graphs of six steps",
        "W2d durable": "graphs of six steps, durable",
    }
    bars = []
    for title, label in shown.items():
        if metrics := results.get(title):
            rate, bare = metrics["executions_per_second"], metrics["bare_rate"]
            bars.append(Bar(label, (rate,), f"{number(rate)} /s, 1 : {number(bare / rate)}"))
    note = f"{MORE}; behind the rate, its ratio to the messages that bare NATS moves in the same run"
    return Chart("W2", "W2: executions, from the trigger to `completed` in the history", note, bars)


def _latency(results: Results) -> Chart:
    bars = [
        Bar(f"{name}{kind}", (metrics[f"{name}_ms"],), f"{number(metrics[f'{name}_ms'])} ms")
        for title, kind in (("W3", ""), ("W3 durable", ", durable"))
        if (metrics := results.get(title))
        for name in ("p50", "p99", "max")
    ]
    return Chart("W3", "W3: a lone execution on an idle system, from the trigger to its handler", LESS, bars)


def _scale_out(results: Results) -> Chart:
    parts = {
        "stages": ": stages)",
        "nats": ", nats",
        "history": ": recorder)",
        "worker": ": worker)",
        "client": ", client)",
    }
    bars = []
    for title in ("W4", "W4 durable", "W4-R3", "W4-R3 durable"):
        metrics, kind = results.get(title, {}), title.removeprefix("W4").replace("-R3", " R3").strip()
        for label in map(scale_out.label, scale_out.COPIES):
            if f"cpu_ms_per_execution ({label})" in metrics:
                each = {m: v for m, v in metrics.items() if m.startswith(f"cpu_ms_per_execution ({label}, ")}
                sums = tuple(sum(v for m, v in each.items() if part in m) for part in parts.values())
                rate = metrics[f"executions_per_second ({label})"]
                bars.append(Bar(", ".join(filter(None, [label, kind])), sums, f"{sum(sums):.2f} ms, {number(rate)} /s"))
    title = "W4: CPU time of an execution, by the number of copies of the stages"
    return Chart("W4", title, f"{LESS}; the first part is that of all copies together", bars, legend=tuple(parts))


def _growth(title: str, metrics: Metrics) -> Chart:
    prefix = "executions_per_second ("
    found = {m.removeprefix(prefix).rstrip(")"): rate for m, rate in metrics.items() if m.startswith(prefix)}
    first = next(iter(found.values()))
    bars = [Bar(label, (rate,), f"{number(rate)} /s, {rate / first:.0%}") for label, rate in found.items()]
    mark = Mark(first * TOLERATED, f"{TOLERATED:.0%} of the first")
    text = f"{title}: executions a second behind others that are over"
    return Chart(title.replace(" ", "-"), text, MORE, bars, mark=mark)


def _ojs(results: Results) -> Chart:
    bars = []
    for title, kind in (("OJS", ""), ("OJS durable", ", durable")):
        if metrics := results.get(title):
            for label, metric in (("native worker", "native_executions_per_second"), ("HTTP", "executions_per_second")):
                bars.append(Bar(label + kind, (metrics[metric],), f"{number(metrics[metric])} /s"))
    return Chart("OJS", "OJS: executions a second, by whom the tasks are taken", MORE, bars)


def _colour(row: Row) -> int:
    return OURS if row.system in TOCSIN else THEIRS
