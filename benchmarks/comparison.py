"""Tocsin beside its peers: one figure of each for a workload, as a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.metrics import Results
from benchmarks.peers.peer import peer

TOCSIN: Final = ("tocsin", "tocsin durable")


@dataclass(frozen=True, slots=True)
class Headline:
    """The metric by which a workload compares systems."""

    title: str
    metric: str
    unit: str
    more_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one system; without a figure, the remark says why."""

    system: str
    figure: float | None
    remark: str = ""


HEADLINES: Final = {
    "W1": Headline(
        "Fire lag: 1,000 jobs due at one second, p99 from that second to the handler", "p99_ms (1,000)", "ms"
    ),
    "W2": Headline(
        "Throughput: no-op tasks, enqueued to completed", "executions_per_second", "/s", more_is_better=True
    ),
    "W3": Headline("Latency: a lone task on an idle system, p50 from enqueueing to the handler", "p50_ms", "ms"),
}


def rows(workload: str, results: Results, versions: Mapping[str, str], reasons: Mapping[str, str]) -> list[Row]:
    """Return Tocsin first, then the peers from best to worst, then those without a figure.

    Args:
        workload: a key of `HEADLINES`.
        results: the measured metrics.
        versions: the version of each peer that was measured.
        reasons: the reason why each other peer was not.
    """
    headline = HEADLINES[workload]
    keys = {system: workload + system.removeprefix("tocsin") for system in TOCSIN}
    own = [Row(name, results[key][headline.metric]) for name, key in keys.items() if key in results]
    peers = [
        Row(f"{name} {version}", metrics[headline.metric], _remark(name, metrics))
        for name, version in versions.items()
        for metrics in [results[f"{workload} {name}"]]
    ]
    peers.sort(key=lambda row: row.figure or 0.0, reverse=headline.more_is_better)
    return [*own, *peers, *(Row(name, None, f"not measured: {reason}") for name, reason in reasons.items())]


def table(workload: str, compared: list[Row]) -> str:
    """Return the rows as text, each with its ratio to Tocsin."""
    headline = HEADLINES[workload]
    reference = next((row.figure for row in compared if row.system in TOCSIN), None)
    width = max(len("system"), *(len(row.system) for row in compared))
    lines = [headline.title, f"{'system':<{width}} {'figure':>14} {'to Tocsin':>10}"]
    for row in compared:
        figure = "-" if row.figure is None else f"{number(row.figure)} {headline.unit}"
        ratio = f"{number(row.figure / reference)}×" if row.figure is not None and reference else "-"
        lines.append(f"{row.system:<{width}} {figure:>14} {ratio:>10}  {row.remark}".rstrip())
    return "\n".join(lines)


def number(value: float) -> str:
    """Return a number with three significant digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2  # noqa: PLR2004 - digits
    return f"{value:,.{digits}f}"


def _remark(name: str, metrics: Mapping[str, float]) -> str:
    counts = {metric.partition(" ")[0]: int(value) for metric, value in metrics.items()}
    failings = [f"{counts[kind]:,} {kind}" for kind in ("missed", "twice") if counts.get(kind)]
    return ", ".join([*failings, *filter(None, [peer(name).NOTE])])
