"""W4: W2 with one, two and four processes of stages; W4-R3: on three nodes.

Every process runs all deciding stages; the history and one worker have processes of their own. One copy leads, and the others stand by: they
decode and fold what it decides. The workload compares the rate, and the CPU time of all stages together per execution.

Of the matcher one copy works. So it is then measured in two processes of its own: the CPU time of the copy that leads, the tasks per
second that a core could assign so, and the seconds from kill -9 of that copy to the next start of a handler.
"""

import os
import signal
import time
from typing import Final

from benchmarks.bare import bare_rate
from benchmarks.conditions import Conditions
from benchmarks.metrics import Metrics, labelled
from benchmarks.part import WORKER
from benchmarks.system import RECORDER, STAGES, System, system
from benchmarks.throughput import EXECUTIONS, throughput, trigger

COPIES: Final = (1, 2, 4)
REPLICAS: Final = 3
MATCHER: Final = "matcher"
OTHER_STAGES: Final = ",".join(name for name in STAGES.split(",") if name != MATCHER)
PATIENCE_S: Final = 60.0
"""Seconds within which a standby must lead."""


async def copies_and_matcher(conditions: Conditions, *, nodes: int = 1, executions: int = EXECUTIONS) -> Metrics:
    """Return the metrics of each number of copies, and those of the matcher alone."""
    found = await scale_out(conditions, nodes=nodes, executions=executions)
    return found | await matcher(conditions, nodes=nodes, executions=executions)


async def scale_out(
    conditions: Conditions, *, nodes: int = 1, copies: tuple[int, ...] = COPIES, executions: int = EXECUTIONS
) -> Metrics:
    """Return the metrics of W2 for each number of copies, with the bare rate."""
    found: Metrics = {"cores": float(os.cpu_count() or 1)}
    for number in copies:
        parts = (*(STAGES for _ in range(number)), RECORDER, WORKER)
        async with system(parts, sync_always=conditions.sync_always, nodes=nodes) as it:
            bare = await bare_rate(it.installation.connection.client, replicas=nodes)
            measured = await throughput(it, executions)
        measured |= {"stages_cpu_ms_per_execution": _of_stages(measured), "bare_rate": bare}
        found |= labelled(measured, label(number))
    first = label(copies[0])
    for metric in ("executions_per_second", "stages_cpu_ms_per_execution"):
        for number in copies[1:]:
            found[f"ratio ({metric}, {label(number)})"] = (
                found[f"{metric} ({label(number)})"] / found[f"{metric} ({first})"]
            )
    return found | {"bare_rate": found[f"bare_rate ({first})"]}


async def matcher(conditions: Conditions, *, nodes: int = 1, executions: int = EXECUTIONS) -> Metrics:
    """Return the capacity of the matcher that leads, and the time that its fail-over takes."""
    parts = (OTHER_STAGES, MATCHER, MATCHER, RECORDER, WORKER)
    async with system(parts, sync_always=conditions.sync_always, nodes=nodes) as it:
        measured = await throughput(it, executions)
        copies = {name: it.processes[name] for name in ("2: stages", "3: stages")}
        used = {name: measured[f"cpu_ms_per_execution ({name})"] for name in copies}
        leader = max(used, key=lambda name: used[name])
        return {
            "matcher_cpu_ms_per_execution": used[leader],
            "matcher_tasks_per_second": 1_000 / used[leader],
            "matcher_failover_s": await _failover(it, copies[leader]),
        }


async def _failover(it: System, leader: int) -> float:
    """Kill the matcher that leads; return the seconds until the next handler starts."""
    before = len(it.started)
    began = time.monotonic()
    os.kill(leader, signal.SIGKILL)
    await trigger(it, "throughput", range(-1, 0))
    await it.until_started(before + 1, within=PATIENCE_S)
    return it.started[-1].monotonic - began


def label(copies: int) -> str:
    """Return the label of a number of copies in a metric."""
    return f"{copies} {'copy' if copies == 1 else 'copies'}"


def _of_stages(measured: Metrics) -> float:
    return sum(value for metric, value in measured.items() if metric.endswith(": stages)"))
