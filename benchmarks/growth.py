"""W5: W2 on an installation that already holds many finished executions.

Every size has an installation of its own. It is filled (`benchmarks.seed`) on a server that flushes now and then, and measured
after a restart on a server with the requested flushing. The figure is the median of `ROUNDS` rounds; an incomplete fill gives no
figure. With default settings an installation never grows this large, because the archiver keeps 500,000 messages in the log; here
it does not run. A million executions take gigabytes of disk, in the folder that TMPDIR names.

Stored messages per execution: as in W2. Reads: none on the usual path, at any size.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.bare import bare_rate
from benchmarks.conditions import Conditions
from benchmarks.metrics import Metrics, labelled
from benchmarks.part import WORKER
from benchmarks.processes import disk_of
from benchmarks.seed import WITHOUT_ARCHIVER, fill
from benchmarks.servers import Servers, initialized, servers
from benchmarks.system import RECORDER, running
from benchmarks.throughput import EXECUTIONS, throughput

PARTS: Final = (WITHOUT_ARCHIVER, RECORDER, WORKER)
ROUNDS: Final = 3
COMPARED: Final = ("executions_per_second", "cpu_ms_per_execution")


async def growth(conditions: Conditions, *, executions: int = EXECUTIONS) -> Metrics:
    """Return the metrics of W2 at each size, the memory and disk, and the ratios."""
    found: Metrics = {}
    for size in conditions.sizes:
        print(f"{conditions.title('W5')}: {size:,} executions before", file=sys.stderr, flush=True)
        found |= labelled(await _measure(size, executions, sync_always=conditions.sync_always), label(size))
    first, *others = map(label, conditions.sizes)
    ratios = {
        f"ratio ({m}, {other})": found[f"{m} ({other})"] / found[f"{m} ({first})"] for other in others for m in COMPARED
    }
    return found | ratios | {"bare_rate": found[f"bare_rate ({first})"]}


def label(size: int) -> str:
    """Return the label of a number of executions in a metric."""
    return f"{size:,} before"


async def _measure(size: int, executions: int, *, sync_always: bool) -> Metrics:
    with tempfile.TemporaryDirectory(prefix="tocsin-benchmark-") as name:
        folder = Path(name)
        filled: Metrics = {}
        if size:
            async with servers(folder=folder) as nats, initialized(nats.settings) as installation:
                rates = await fill(installation, size, nats=nats.pids)
                filled = {"filled_per_second": rates.executed, "recorded_per_second": rates.recorded}
        async with servers(folder=folder, sync_always=sync_always) as nats, initialized(nats.settings) as installation:
            bare = await bare_rate(installation.connection.client)
            async with running(installation, PARTS, nats=nats.pids) as system:
                rounds = [await throughput(system, executions, job=f"after-{round_}") for round_ in range(ROUNDS)]
                held = {f"{name}_memory_mb": memory for name, memory in system.memory().items() if name in nats.pids}
            return {**_median(rounds), **held, **_on_disk(nats, folder), **filled, "bare_rate": bare}


def _median(rounds: list[Metrics]) -> Metrics:
    return {metric: statistics.median(one[metric] for one in rounds) for metric in rounds[0]}


def _on_disk(nats: Servers, folder: Path) -> Metrics:
    history = (path for path in folder.iterdir() if path.is_file())
    return {"nats_disk_mb": disk_of(*nats.stores), "history_disk_mb": disk_of(*history)}
