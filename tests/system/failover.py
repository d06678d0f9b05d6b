"""Time without firings or starts after a leader is killed, measured on real processes from the log (`gaps`).

    python -m tests.system.failover --rounds 50 --kill ticker --leader 2s/500ms [--seed 1] [--json FILE]
    python -m tests.system.failover --rounds 50 --kill matcher --leader 4s/1s

At a random moment, each round sends SIGKILL to the leading ticker, to the leading matcher or to the NATS node that leads the ledger's
stream. It waits until the job fires again, or its tasks start again, and restarts the dead process. The lease of the matcher does not
depend on `--leader`.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from rich.console import Console
from rich.table import Table

from tests.stored_events import StoredEvents
from tests.system.clustered import clustered
from tests.system.gaps import KILL, TICK, Gaps, measured
from tests.system.processes import STAGES_WITHOUT_CLOCK, Program, Site
from tocsin import telemetry
from tocsin.adapters.nats.server.cluster import RunningCluster
from tocsin.domain.events import Due, Message, Recorded
from tocsin.subjects import MATCHER_LEASE, TICKER_LEASE, Bucket

Victim: TypeAlias = Literal["ticker", "node", "matcher"]
USUAL: Final[tuple[Victim, ...]] = ("ticker", "node")
"""The victims without `--kill`."""

FAST: Final = {"ttl": "2s", "renew_interval": "500ms"}
"""A lease under which a successor fires within three seconds."""
LEASES: Final[dict[Victim, str]] = {"ticker": TICKER_LEASE, "matcher": MATCHER_LEASE}
CALM: Final = 2
"""How many instants fire between two kills, at least."""
SPREAD: Final = 2.0
"""Seconds over which the moment of a kill is random."""


class Failover:
    """Two tickers, two matchers, the other stages, and a worker."""

    def __init__(self, tocsin: Site, chance: random.Random, cluster: RunningCluster | None = None) -> None:
        self._tocsin = tocsin
        self._chance = chance
        self._cluster = cluster
        self._copies = {
            TICKER_LEASE: [tocsin.start("ticker"), tocsin.start("ticker")],
            MATCHER_LEASE: [tocsin.start("matcher"), tocsin.start("matcher")],
        }
        self._measured = f"ledger.{TICK['name']}.due"
        self._seen = 0

    async def run(self, victim: Victim, rounds: int) -> Gaps:
        """Kill so many times; what the log says of it."""
        tocsin = self._tocsin
        if victim == "matcher":
            self._measured = f"execution.{TICK['name']}.*.started.>"
        tocsin.start(*(stage for stage in STAGES_WITHOUT_CLOCK if stage != "matcher"))
        tocsin.start_worker()
        await tocsin.ready()
        await tocsin.apply(TICK, KILL)
        for _ in range(rounds):
            await self._fires(CALM)
            await asyncio.sleep(self._chance.uniform(0, SPREAD))
            await (self._kill_node() if victim == "node" else self._kill_leader(victim))
        await self._fires(CALM)
        await tocsin.delete(TICK["name"])
        await tocsin.quiet()
        return measured(await StoredEvents.of(tocsin.log), victim)

    async def _fires(self, number: int) -> None:
        """Wait for instants that are still to come, or for starts."""
        begin = self._tocsin.installation.clock.now()

        async def has_fired() -> bool:
            newest = await self._tocsin.log.read(self._measured, after=self._seen)
            self._seen = newest[-1].sequence if newest else self._seen
            came.extend(
                r for r in newest if (r.message.scheduled_time if isinstance(r.message, Due) else r.time) > begin
            )
            return len(came) >= number

        came: list[Recorded[Message]] = []
        await self._tocsin.until(has_fired)

    async def _kill_leader(self, victim: Victim) -> None:
        leader = await self._tocsin.until(partial(self._leader, LEASES[victim]))
        assert leader is not None
        await self._tocsin.trigger(KILL["name"], reason=victim)
        leader.kill()
        await self._fires(1)
        leader.start()
        await self._tocsin.ready()

    async def _leader(self, lease: str) -> Program | None:
        shown = await self._tocsin.installation.projections.get(Bucket.LEADER, lease)
        if shown is None:
            return None
        holder: str = json.loads(shown[0])["holder"]
        pid = int(holder.split("-")[-2])
        return next((copy for copy in self._copies[lease] if copy.pid == pid), None)

    async def _kill_node(self) -> None:
        assert self._cluster is not None
        names, connection = self._tocsin.installation.names, self._tocsin.installation.connection
        info = await connection.manage(f"STREAM.INFO.{names.commits_stream}")
        leader = self._cluster.node(info["cluster"]["leader"])
        await self._tocsin.trigger(KILL["name"], reason="node")
        os.kill(leader.server.pid, signal.SIGKILL)
        await self._fires(1)
        await asyncio.to_thread(leader.restart)
        await asyncio.to_thread(self._cluster.await_complete)


async def measure(victim: Victim, rounds: int, leader: dict[str, str], seed: int) -> dict[str, Any]:
    """One row of the report."""
    with tempfile.TemporaryDirectory(prefix="tocsin-failover-") as folder:
        async with clustered(Path(folder), leader=leader) as (tocsin, cluster):
            chance = random.Random(seed)  # noqa: S311 - chooses moments, guards nothing
            gaps = await Failover(tocsin, chance, cluster).run(victim, rounds)
    lease = f"{leader['ttl']}/{leader['renew_interval']}"
    return {"killed": victim, "lease": lease, **gaps.row(), "gaps": [asdict(gap) for gap in gaps.gaps]}


def main() -> int:
    """The command; 1: an instant was lost or doubled."""
    arguments = argparse.ArgumentParser(prog="python -m tests.system.failover", description=__doc__)
    arguments.add_argument("--rounds", type=int, default=50)
    arguments.add_argument(
        "--kill", choices=get_args(Victim), action="append", help=f"default: {' and '.join(USUAL)}, one after the other"
    )
    arguments.add_argument(
        "--leader",
        metavar="TTL/RENEW",
        action="append",
        help="the lease, e.g. 15s/5s; default: that, and then 2s/500ms",
    )
    arguments.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments.add_argument("--json", type=Path, help="write the rows to this file too")
    given = arguments.parse_args()
    leases = [dict(zip(FAST, lease.split("/"), strict=True)) for lease in given.leader or ("15s/5s", "2s/500ms")]
    terminal = Console()
    telemetry.configure("error")
    terminal.print(f"seed {given.seed}")
    rows = [
        asyncio.run(measure(victim, given.rounds, lease, given.seed))
        for lease in leases
        for victim in given.kill or USUAL
    ]
    caption = "in seconds: `next` from the kill to the next firing or start, `gap` from that before it"
    shown = Table(*(name.replace("_", " ") for name in rows[0] if name != "gaps"), caption=caption)
    for row in rows:
        shown.add_row(*(str(value) for name, value in row.items() if name != "gaps"))
    terminal.print(shown)
    if given.json:
        given.json.write_text(json.dumps({"seed": given.seed, "rows": rows}, indent=2))
    return int(any(row["lost"] or row["doubled"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
