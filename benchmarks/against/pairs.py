"""Runs every measurement on both sides in turn, with the peers beside them."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.against.sides import Side
from benchmarks.against.sizes import Sizes
from benchmarks.against.targets import Row, Unit
from benchmarks.metrics import Metrics
from benchmarks.part import FUNCTIONS
from benchmarks.peers import measurement

LOAD: Final = "load_average"
PROGRAM: Final = Path("benchmarks") / "against" / "measure_one.py"
WITHIN: Final = 1_200.0
"""Seconds for one measurement, beside the filling of W5 and W6."""
FILLED_PER_SECOND: Final = 100
"""Executions or jobs a second; a slower filling is given up."""
ENDS_WITHIN: Final = 60.0
GIVEN_UP_AFTER: Final = 2
"""Failures in a row after which a system is no longer measured in a workload."""

Measure: TypeAlias = Callable[[Unit], Metrics]


class NotRunError(Exception):
    """The reason why a measurement has no figures."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement.

    Attributes:
        pair: the number of its pair, from 1.
        unit: the title of the unit.
        system: `base`, `new`, or the name of a peer.
        metrics: its results; None if it failed.
        reason: why it failed.
    """

    pair: int
    unit: str
    system: str
    metrics: Metrics | None = None
    reason: str = ""


@dataclass
class Runs:
    """All measurements so far, in their order.

    Attributes:
        runs: the measurements.
        versions: of the peers.
    """

    runs: list[Run] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def of(self, unit: Unit, system: str) -> dict[int, Run]:
        """Return the measurements of a system in a unit, by pair."""
        return {run.pair: run for run in self.runs if run.unit == unit.title and run.system == system}

    def given_up(self, unit: Unit, system: str) -> bool:
        """Return whether a system failed too often in a row."""
        last = list(self.of(unit, system).values())[-GIVEN_UP_AFTER:]
        return len(last) == GIVEN_UP_AFTER and all(run.metrics is None for run in last)


@dataclass(frozen=True, slots=True)
class Step:
    """The next measurement: its pair, its unit, and the system."""

    pair: int
    unit: Unit
    system: str


def steps(rows: Sequence[Row], pairs: Callable[[Unit], int]) -> Iterator[Step]:
    """Yield all measurements in their order.

    Odd pairs begin with the base, even pairs with the new side; peers follow. Units with fewer pairs stop earlier.

    Args:
        rows: the rows to fill.
        pairs: the number of pairs of a unit.
    """
    units = list(dict.fromkeys(row.unit for row in rows))
    for pair in range(1, max(map(pairs, units), default=0) + 1):
        for unit in units:
            if pair > pairs(unit):
                continue
            sides = ["new"] if unit.only_new else ["base", "new"] if pair % 2 else ["new", "base"]
            others = dict.fromkeys(row.other for row in rows if row.unit == unit and row.other)
            for system in [*sides, *(name for name in others if name not in sides and name != "base")]:
                yield Step(pair, unit, system)


def measure(order: Iterator[Step], systems: Mapping[str, Measure], runs: Runs, after: Callable[[Run], None]) -> None:
    """Make the measurements, and report them.

    Args:
        order: what to measure.
        systems: the measurement of each system; a system that is absent is left out.
        runs: receives the results.
        after: called after each measurement.
    """
    for step in order:
        if step.system not in systems or runs.given_up(step.unit, step.system):
            continue
        try:
            metrics = systems[step.system](step.unit)
        except NotRunError as error:
            run = Run(step.pair, step.unit.title, step.system, reason=str(error))
        else:
            run = Run(step.pair, step.unit.title, step.system, metrics)
        runs.runs.append(run)
        after(run)


def side(which: Side, new: Side, sizes: Sizes, folder: Path) -> Measure:
    """Return the measurement of a side.

    Args:
        which: the side.
        new: the side whose program measures both.
        sizes: of the workloads.
        folder: for the output of the programs.
    """

    def run(unit: Unit) -> Metrics:
        output, log = folder / "metrics.json", folder / f"{which.name}.log"
        output.unlink(missing_ok=True)
        spec: dict[str, Any] = {
            "workload": unit.workload,
            "sync_always": unit.sync_always,
            "compression": unit.compression,
            **asdict(sizes),
            "functions": unit.functions,
            "nodes": unit.nodes,
            "tasks": unit.tasks,
        }
        environment = {**which.environment(), **({FUNCTIONS: str(unit.functions)} if unit.functions else {})}
        command = [which.python, "-P", str(new.folder / PROGRAM), json.dumps(spec), str(output)]
        filling = {"W5": sum(sizes.behind), "W6": sizes.jobs, "unserved": unit.tasks}.get(unit.workload, 0)
        within = WITHIN + filling / FILLED_PER_SECOND
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 - our own
                command, cwd=which.folder, env=environment, stdout=out, stderr=out, start_new_session=True
            )
            try:
                code = process.wait(within)
            except subprocess.TimeoutExpired:
                raise NotRunError(f"not over within {within:,.0f} s") from None
            finally:
                _end(process)
        if code or not output.exists():
            raise NotRunError(last_error(log.read_text("utf-8", "replace")) or f"ended with {code}")
        metrics: Metrics = json.loads(output.read_text("utf-8"))
        return {**metrics, LOAD: os.getloadavg()[0]}

    return run


def other(name: str, python: str, sizes: Sizes, versions: dict[str, str]) -> Measure:
    """Return the measurement of a peer, which notes its version."""

    def run(unit: Unit) -> Metrics:
        try:
            found = asyncio.run(measurement.measure(name, unit.workload, python=python, number=sizes.peers))
        except measurement.NotMeasuredError as error:
            raise NotRunError(str(error)) from error
        versions[name] = found.version
        return found.metrics

    return run


def last_error(log: str) -> str:
    """Return the last error of a log, or else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = (line for line in reversed(lines) if "Error" in line.partition(":")[0])
    return next(named, lines[-1] if lines else "")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a program and what it started; its own cleaning up comes first."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_WITHIN)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
