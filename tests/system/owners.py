"""Kill -9 of two of the three workers that own sixteen shards, while an occurrence is fanned out over them.

    python -m tests.system.owners --rounds 100 [--seed 1] [--json FILE]

Each round fans one occurrence out, kills two owners at a random moment of it, in every other round the stages that fan out as well,
and starts two other workers. In the end each shard of each occurrence must have run, and completed once, on the worker that owned it.
"""

import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.stored_events import StoredEvents
from tests.system.processes import DECIDERS, GROUPS, Program, Site, site
from tests.system.rounds_command import figures
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.domain.events import Admitted, Completed, FannedOut, OwnershipAssigned, Recorded, Shard
from tocsin.services.shards import ShardMaps

SHARDS: Final = tuple(f"s{number:02}" for number in range(16))
WORKERS: Final = "tests.system.shard_process:worker"
OWNERS: Final = 3
KILLED: Final = 2
SPREAD_S: Final = 3.0
"""Seconds over which the moment of a kill is random; a handler takes as long."""


async def prepare(tocsin: Site, **job: object) -> None:
    """Define the shards, and a job that runs on each of them."""
    await ShardMaps(tocsin.log).apply(Shard(shard_id=name) for name in SHARDS)
    await tocsin.apply({"name": "sweep", "function": "sweep", "partition": "all_shards", "timeout": 60, **job})


def runs(tocsin: Site) -> list[list[str]]:
    """The runs of the handler: execution, shard, worker and epoch."""
    return [line.split() for line in tocsin.runs.read_text("utf-8").splitlines()] if tocsin.runs.exists() else []


@dataclass
class Outcome:
    """The result of all rounds."""

    rounds: int
    runs: int
    """Runs of the handler: what a killed worker ran runs again."""
    owners: int
    """Changes of owners."""
    moved: int
    """Changes because an owner was silent."""
    longest_move_s: float
    """The longest time from a kill of owners alone until a shard with open tasks had its next owner, by the log's clock."""
    longest_move_without_matcher_s: float
    """The same in the rounds in which the only matcher was killed too: the next has to hear for 30 seconds."""
    longest_s: float
    """The longest time from a kill until the occurrence was over."""
    problems: list[str] = field(default_factory=list)


class Owners:
    """All stages in three processes, and three workers that declare every shard."""

    def __init__(self, tocsin: Site, chance: random.Random) -> None:
        self._tocsin = tocsin
        self._chance = chance
        self._workers: list[Program] = []

    async def run(self, rounds: int) -> Outcome:
        """Kill owners so many times; return what the log says of it."""
        tocsin = self._tocsin
        await prepare(tocsin, overlap_policy="enqueue", input={"is_long": True})
        stages = {group: tocsin.start(*group) for group in GROUPS}
        spans = list[tuple[datetime, datetime]]()
        for number in range(1, rounds + 1):
            killed_at = await self._round(number, stages[DECIDERS])
            await self._ends(number)
            spans.append((killed_at, datetime.now(UTC)))
        everything = await tocsin.checked()
        await tocsin.history_agrees_with(everything)
        assigned = await tocsin.facts("ownership.>", OwnershipAssigned)
        changes = {recorded.sequence: recorded.message for recorded in assigned}
        return Outcome(
            rounds=rounds,
            runs=len(runs(tocsin)),
            owners=len(changes),
            moved=sum(change.reason == "silent" for change in changes.values()),
            longest_move_s=_longest_move(assigned, spans[1::2]),
            longest_move_without_matcher_s=_longest_move(assigned, spans[::2]),
            longest_s=round(max((end - kill).total_seconds() for kill, end in spans), 1),
            problems=[*_wrong_runs(everything, rounds), *_wrong_owners(runs(tocsin), changes)],
        )

    async def _round(self, number: int, deciders: Program) -> datetime:
        """Begin an occurrence, and return the time at which owners were killed."""
        tocsin = self._tocsin
        self._workers += [
            tocsin.start_worker(WORKERS, worker__shards='["*"]') for _ in range(OWNERS - len(self._workers))
        ]
        await tocsin.ready()
        before = len(runs(tocsin))
        await tocsin.trigger("sweep")

        async def all_run() -> bool:
            return len({run[2] for run in runs(tocsin)[before:]}) == OWNERS

        await tocsin.until(all_run)
        await asyncio.sleep(self._chance.uniform(0, SPREAD_S))
        killed_at = datetime.now(UTC)
        for killed in self._chance.sample(self._workers, KILLED):
            killed.kill()
            self._workers.remove(killed)
            tocsin.programs.remove(killed)
        if number % 2:
            deciders.kill()
            deciders.start()
            await tocsin.ready()
        return killed_at

    async def _ends(self, number: int) -> None:
        """Wait until each occurrence, and each of its executions, is over."""

        async def ended() -> bool:
            return (await self._tocsin.ends())["sweep"] == number * (1 + len(SHARDS))

        await self._tocsin.until(ended)


def _longest_move(assigned: Iterable[Recorded[OwnershipAssigned]], spans: Sequence[tuple[datetime, datetime]]) -> float:
    """Return the longest time from a kill to a new owner instead of a silent one, within its round.

    A shard without open tasks moves with the next round.
    """
    moves = [recorded.time for recorded in assigned if recorded.message.reason == "silent"]
    times = ((at - kill).total_seconds() for kill, end in spans for at in moves if kill <= at <= end)
    return round(max(times, default=0.0), 1)


def _wrong_runs(everything: StoredEvents, rounds: int) -> list[str]:
    """Return the shards whose executions are not one that completed once, for each occurrence."""
    fanned = [recorded.message.shards for recorded in everything.facts(FannedOut)]
    admitted = Counter(recorded.message.plan.shard for recorded in everything.facts(Admitted))
    completed = [recorded.message for recorded in everything.facts(Completed)]
    expected = Counter({str(shard): rounds for shard in SHARDS})
    problems = []
    if fanned != [SHARDS] * rounds:
        problems.append(f"fanned out over {fanned}")
    if admitted != expected:
        problems.append(f"admitted on {admitted}")
    if Counter(event.shard for event in completed) != expected:
        problems.append(f"completed on {Counter(event.shard for event in completed)}")
    if len({event.execution_id for event in completed}) != rounds * len(SHARDS):
        problems.append("an execution completed twice")
    return problems


def _wrong_owners(ran: list[list[str]], changes: dict[int, OwnershipAssigned]) -> list[str]:
    """Return the runs on workers that were no owners of their shards."""
    problems = []
    for execution, shard, worker, epoch in ran:
        owner = changes.get(int(epoch))
        if owner is None or (owner.resource, owner.name) != (f"shard-{shard}", worker):
            problems.append(f"{execution} ran on {shard} by {worker}, and epoch {epoch} is of {owner}")
    return problems


async def measure(rounds: int, seed: int) -> Outcome:
    """Run all rounds on a nats-server of their own."""
    with tempfile.TemporaryDirectory(prefix="tocsin-owners-") as folder:
        chance = random.Random(seed)  # noqa: S311 - chooses moments, guards nothing
        with EmbeddedServer(Path(folder) / "nats", port=ANY_PORT).start() as server:
            async with site(server.url, Path(folder), metrics={"enabled": False}) as tocsin:
                return await Owners(tocsin, chance).run(rounds)


def main() -> int:
    """The command; 1: a shard was lost, doubled, or ran on a worker that did not own it."""
    return int(bool(figures("tests.system.owners", __doc__, measure, rounds=100)["problems"]))


if __name__ == "__main__":
    sys.exit(main())
