"""The workloads, by their names on the command line."""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from benchmarks.bare import bare_rate
from benchmarks.client_cost import client_cost
from benchmarks.conditions import Conditions
from benchmarks.fan_out import fan_out
from benchmarks.fire_lag import fire_lag
from benchmarks.growth import growth
from benchmarks.held import held
from benchmarks.latency import latency
from benchmarks.metrics import Metrics
from benchmarks.neighbors import neighbors, waiting_list
from benchmarks.ojs import ojs
from benchmarks.registered import registered
from benchmarks.replay import replay
from benchmarks.scale_out import REPLICAS, copies_and_matcher
from benchmarks.system import ONE_PROCESS, SEPARATE, USUAL, System, system
from benchmarks.throughput import graphs, throughput
from benchmarks.unserved import restart, unserved
from benchmarks.wide_graph import wide_graph

Workload: TypeAlias = Callable[[Conditions], Coroutine[Any, Any, Metrics]]
"""Measures on servers of its own; its metrics include the `bare_rate` of one server."""


@dataclass(frozen=True, slots=True)
class OnSystem:
    """A workload on a running system, with the bare rate of the same server."""

    measure: Callable[[System], Awaitable[Metrics]]
    parts: tuple[str, ...] = USUAL

    async def __call__(self, conditions: Conditions) -> Metrics:
        """Start the system, and measure."""
        async with system(self.parts, sync_always=conditions.sync_always) as it:
            bare = await bare_rate(it.installation.connection.client)
            return {**await self.measure(it), "bare_rate": bare}


WORKLOADS: Final[dict[str, Workload]] = {
    "W1": OnSystem(fire_lag),
    "W2": OnSystem(throughput),
    "W2-one-process": OnSystem(throughput, ONE_PROCESS),
    "W2-separate": OnSystem(throughput, SEPARATE),
    "W2d": OnSystem(graphs),
    "W3": OnSystem(latency),
    "W4": copies_and_matcher,
    "W4-R3": partial(copies_and_matcher, nodes=REPLICAS),
    "OJS": OnSystem(ojs),
    "neighbors": OnSystem(neighbors),
    "W5": growth,
    "W6": registered,
    "W7": replay,
    "client": client_cost,
    "graph": OnSystem(wide_graph),
    "held": OnSystem(held),
    "restart": restart,
    "shards": OnSystem(fan_out),
    "unserved": unserved,
    "waiting": OnSystem(waiting_list),
}
SERVERLESS: Final = frozenset({"W7"})
"""Workloads without a server; a single profile is enough."""
