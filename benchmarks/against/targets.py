"""The compared figures, and the target of each."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.against.sizes import Sizes
from benchmarks.growth import label as behind
from benchmarks.scale_out import COPIES, REPLICAS
from benchmarks.scale_out import label as copies

BASE: Final = "base"
NEW: Final = "new"
TASKIQ: Final = "taskiq"
BULLMQ: Final = "bullmq"
PEERS: Final = (TASKIQ, BULLMQ)
MATCHER: Final = "matcher"
"""The name that selects the measurements of the matcher."""
DEFAULT: Final = ("W1", "W2", "W3", "W4", "W5", "graph")
WORKLOADS: Final = (*DEFAULT, "W6", MATCHER)
SLOW: Final = frozenset({"W5", "W6", "unserved"})
"""Workloads that take long to fill an installation."""
MANY_JOBS: Final = 1_000_000
"""The number of registered jobs from which W6 has targets."""
AUDIT: Final = ("audit_failed",)
MEGA: Final = 1e6


@dataclass(frozen=True, slots=True)
class Unit:
    """One measurement of one side, which a program of its own makes.

    Attributes:
        workload: the name of a workload.
        sync_always: whether the server flushes every write to disk before it acknowledges the write.
        compression: of the streams; only W5 sets it.
        only_new: whether the base is left out.
        suite: the name that selects it together with others; empty: that of its workload.
        functions: of the worker; only W2 of a suite sets it.
        nodes: of the server.
        tasks: that no worker can do, of unserved.
    """

    workload: str
    sync_always: bool = False
    compression: str = "none"
    only_new: bool = False
    suite: str = ""
    functions: int = 0
    nodes: int = 1
    tasks: int = 0

    @property
    def title(self) -> str:
        """The name in reports."""
        s2 = f" {self.compression}" if self.compression != "none" else ""
        parts = (
            f"{self.workload}{' durable' if self.sync_always else ''}{s2}",
            f"R{self.nodes}" if self.nodes > 1 else "",
            f"{self.functions} function{'s' if self.functions > 1 else ''}" if self.functions else "",
            f"{self.tasks:,} tasks" if self.tasks else "",
        )
        return " ".join(filter(None, (self.suite, ", ".join(filter(None, parts)))))

    @property
    def selector(self) -> str:
        """The name on the command line."""
        return self.suite or self.workload


W1: Final = Unit("W1")
W1_DURABLE: Final = Unit("W1", sync_always=True)
W2: Final = Unit("W2")
W2_DURABLE: Final = Unit("W2", sync_always=True)
W3: Final = Unit("W3")
W4: Final = Unit("W4")
W5: Final = Unit("W5")
W5_S2: Final = Unit("W5", compression="s2", only_new=True)
W6: Final = Unit("W6")
GRAPH: Final = Unit("graph")
UNITS: Final = (W1, W1_DURABLE, W2, W2_DURABLE, W3, W4, W5, W5_S2, W6, GRAPH)


@dataclass(frozen=True, slots=True)
class Target:
    """A limit that the median must keep."""

    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Return whether a value keeps the limit."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """A compared figure.

    Attributes:
        title: its name.
        unit: the measurement that gives it.
        value: computes it from the metrics.
        of: its unit of measure.
        other: what it is divided by: `base`, or a peer. None: the figure itself has the target.
        target: of the ratio, or of the figure if there is no other; None: shown only.
        flaws: metrics that must be 0 for the target to be met.
        is_difference: the figure of `other` is subtracted, in place of a ratio.
    """

    title: str
    unit: Unit
    value: Callable[[Mapping[str, float]], float]
    of: str
    other: str | None = BASE
    target: Target | None = None
    flaws: Sequence[str] = ()
    is_difference: bool = False


def rows(
    sizes: Sizes, workloads: Sequence[str] = WORKLOADS, *, profiles: Collection[bool] = (False, True)
) -> list[Row]:
    """Return the rows of some workloads, on servers with these values of `sync_always`."""
    every = [
        *_lag(sizes),
        *_throughput(),
        *_latency(),
        *_scale_out(),
        *_growth(sizes),
        *_registered(sizes),
        *_graph(sizes),
        *_matcher(sizes),
    ]
    return [row for row in every if row.unit.selector in workloads and row.unit.sync_always in profiles]


def _lag(sizes: Sizes) -> list[Row]:
    few, many = (f"{jobs:,}" for jobs in sizes.lag)

    def row(jobs: str, unit: Unit, target: Target, other: str = BASE) -> Row:
        flaws = (f"missed ({jobs})", f"twice ({jobs})", *AUDIT)
        return Row(f"{unit.title}, {jobs} jobs: p99", unit, metric(f"p99_ms ({jobs})"), "ms", other, target, flaws)

    return [
        row(few, W1, Target(0.25)),
        row(few, W1, Target(0.5), TASKIQ),
        row(many, W1, Target(0.35)),
        row(many, W1_DURABLE, Target(0.2)),
    ]


def _throughput() -> list[Row]:
    def rate(unit: Unit, target: Target, other: str = BASE) -> Row:
        return Row(f"{unit.title}: rate", unit, metric("executions_per_second"), "/s", other, target, AUDIT)

    def cpu(unit: Unit, target: Target | None) -> Row:
        return Row(f"{unit.title}: CPU per execution", unit, metric("cpu_ms_per_execution"), "ms", BASE, target, AUDIT)

    return [
        cpu(W2, Target(0.43)),
        rate(W2, Target(2.5, at_least=True)),
        rate(W2, Target(1.8, at_least=True), TASKIQ),
        rate(W2, Target(1, at_least=True), BULLMQ),
        rate(W2_DURABLE, Target(3, at_least=True)),
        cpu(W2_DURABLE, None),
    ]


def _latency() -> list[Row]:
    return [Row(f"W3: {p}", W3, metric(f"{p}_ms"), "ms", BASE, Target(0.45)) for p in ("p50", "p99")]


def _scale_out() -> list[Row]:
    """Return the CPU of several copies as a multiple of one copy's."""
    one, *others = map(copies, COPIES)
    whole, stages = "cpu_ms_per_execution", "stages_cpu_ms_per_execution"
    return [
        Row(f"W4, {many}: {name} per execution, one copy = 1", W4, over(f"{key} ({many})", f"{key} ({one})"), "", None, target)
        for many in others
        for name, key, target in (("CPU", whole, Target(1.15)), ("CPU of the stages", stages, None))
    ]  # fmt: skip


def _growth(sizes: Sizes) -> list[Row]:
    first, last = behind(sizes.behind[0]), behind(sizes.behind[-1])
    between = sizes.behind[-1] - sizes.behind[0]

    def memory(metrics: Mapping[str, float]) -> float:
        grown = metrics[f"nats_memory_mb ({last})"] - metrics[f"nats_memory_mb ({first})"]
        return grown * MEGA / between

    def compared(name: str, key: str, target: Target) -> Row:
        return Row(
            f"W5, {last}: {name}, {first} = 1", W5, over(f"{key} ({last})", f"{key} ({first})"), "", None, target
        )

    name = "memory of nats-server per execution"
    return [
        compared("rate", "executions_per_second", Target(0.95, at_least=True)),
        compared("CPU per execution", "cpu_ms_per_execution", Target(1.05)),
        Row(f"W5, {last}: {name}", W5, memory, "B", BASE, Target(0.9)),
        Row(f"W5 s2, {last}: {name}", W5_S2, memory, "B", None),
    ]


def _registered(sizes: Sizes) -> list[Row]:
    """Return the figures of W6 beside the base, and those with limits."""
    every = [
        ("restart to first tick", "restart_to_first_tick_s", "s", Target(20)),
        ("memory of all stages", "memory_mb", "MB", Target(700)),
    ]
    title = f"W6, {sizes.jobs:,} jobs: "
    ratios = [Row(title + name, W6, metric(key), of) for name, key, of, _ in every]
    limits = [Row(title + name, W6, metric(key), of, None, target) for name, key, of, target in every]
    return [*ratios, *limits] if sizes.jobs >= MANY_JOBS else ratios


def _graph(sizes: Sizes) -> list[Row]:
    slower = over("p99_ms (beside)", "p99_ms (alone)")
    return [
        Row(f"graph of {sizes.steps:,} parallel steps", GRAPH, metric("graph_s"), "s", None, Target(10)),
        Row("graph: p99 of a one-step job beside it, alone = 1", GRAPH, slower, "", None, Target(2)),
    ]


def _matcher(sizes: Sizes) -> list[Row]:
    """Return the figures of the matcher.

    The base is a commit in which workers pull their tasks.
    """

    def more(unit: Unit, target: Target) -> Row:
        return Row(f"{unit.title}: p50, more than base", unit, metric("p50_ms"), "ms", BASE, target, is_difference=True)

    every: list[Row] = []
    for number in sizes.functions:
        unit = Unit("W2", suite=MATCHER, functions=number)
        rate, cpu = metric("executions_per_second"), metric("cpu_ms_per_execution")
        every.append(Row(f"{unit.title}: rate", unit, rate, "/s", BASE, Target(0.95, at_least=True), AUDIT))
        every.append(Row(f"{unit.title}: CPU per execution", unit, cpu, "ms", BASE, Target(1.1), AUDIT))
    every += [more(Unit("W3", suite=MATCHER), Target(0.5)), more(Unit("W3", suite=MATCHER, nodes=REPLICAS), Target(0))]
    lag = Unit("W1", suite=MATCHER)
    for jobs in sizes.lag:
        flaws = (f"missed ({jobs:,})", f"twice ({jobs:,})", *AUDIT)
        p99 = metric(f"p99_ms ({jobs:,})")
        every.append(Row(f"{lag.title}, {jobs:,} jobs: p99", lag, p99, "ms", BASE, Target(1.1), flaws))
    beside, restart = (Unit("unserved", only_new=True, suite=MATCHER, tasks=number) for number in sizes.tasks)
    start = "restart_to_first_start_s"
    with_tasks, without = metric(f"{start} ({restart.tasks:,} tasks)"), metric(f"{start} (0 tasks)")
    ratio = metric("p99_ratio")
    return [
        *every,
        Row(f"{beside.title}: p99 of others, without = 1", beside, ratio, "", None, Target(2)),
        Row(f"{restart.title}: start to first handler", restart, with_tasks, "s", None, Target(3)),
        Row(f"{restart.title}: the same without tasks", restart, without, "s", None),
        Row(f"{restart.title}: added by the tasks", restart, lambda it: with_tasks(it) - without(it), "s", None),
    ]


def metric(name: str) -> Callable[[Mapping[str, float]], float]:
    """Return a function that reads a metric."""
    return lambda metrics: metrics[name]


def over(name: str, divisor: str) -> Callable[[Mapping[str, float]], float]:
    """Return a function that divides one metric by another."""
    return lambda metrics: metrics[name] / metrics[divisor]
