"""W4: W2 with one, two and four processes of stages; W4-R3: the same on a cluster of three, where each keeps every stream.

All processes hold all stages that decide, beside one for the history and one worker. More copies are to take work from one
another and to add none. A machine that has no more cores cannot show that as a higher rate (`cores_busy` says how many were
in use), so what is compared is the work itself: the CPU time of all stages together for an execution, what they asked the
log for, how many of their appends a guard refused, and how many messages were delivered again.

Stored messages per execution: the 6 of W2, whatever the number of copies. Reads: a copy that is handed the report on an
execution which another one began folds it anew; all that it lacks for a batch of reports is one request. On two cores, counted
by `perf stat` in the stages: 2.2 million instructions for an execution with one copy, 2.7 with two, 3.1 with four; and 2.5
instructions a cycle, 2.0, 2.1, since the copies drive one another out of the caches.
"""

import os
from typing import Final

from benchmarks.bare import bare_rate
from benchmarks.conditions import Conditions
from benchmarks.metrics import Metrics, labelled
from benchmarks.part import WORKER
from benchmarks.system import RECORDER, STAGES, system
from benchmarks.throughput import EXECUTIONS, throughput

COPIES: Final = (1, 2, 4)
REPLICAS: Final = 3


async def scale_out(
    conditions: Conditions, *, nodes: int = 1, copies: tuple[int, ...] = COPIES, executions: int = EXECUTIONS
) -> Metrics:
    """The metrics of W2 for each number of copies, each with the bare rate on a server of the same kind."""
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


def label(copies: int) -> str:
    """How a number of copies is called in a metric."""
    return f"{copies} {'copy' if copies == 1 else 'copies'}"


def _of_stages(measured: Metrics) -> float:
    return sum(value for metric, value in measured.items() if metric.endswith(": stages)"))
