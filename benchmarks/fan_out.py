"""shards: W1 for jobs that run on each of 16 shards.

The same number of jobs that run once is measured before, in the same run.

Stored messages per execution on a shard: its public event, and parts of commits and of lists of reports.
"""

from typing import Final

from benchmarks.fire_lag import measure
from benchmarks.metrics import Metrics, labelled
from benchmarks.system import System
from tocsin.domain.events import Shard
from tocsin.services.shards import ShardMaps

JOBS: Final = 1_000
SHARDS: Final = 16


async def fan_out(system: System, jobs: int = JOBS, shards: int = SHARDS) -> Metrics:
    """Return the metrics of W1 for jobs without and with shards.

    Raises:
        ValueError: no handler started.
    """
    await ShardMaps(system.installation.log).apply(Shard(shard_id=f"s{number}") for number in range(shards))
    alone = labelled(await measure(system, jobs), f"{jobs:,} jobs")
    return alone | labelled(await measure(system, jobs, shards=shards), f"{jobs:,} jobs on {shards} shards")
