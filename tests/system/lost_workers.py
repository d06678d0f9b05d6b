"""Measure how soon the tasks of a killed worker run again, and no others.

    python -m tests.system.lost_workers --rounds 10 [--seed 1] [--json FILE]

Each round fills the slots of both workers, kills one at a random moment, and starts another. A time is that from the kill to the second
start of a task, by the log's clock. The exit code is 1 if one is more than 35 seconds, or if a task ran again that the killed worker did not hold.
"""

import asyncio
import random
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from tests.stored_events import StoredEvents
from tests.system.processes import GROUPS, Program, Site, site
from tests.system.rounds_command import figures
from tests.system.team_process import released
from tests.system.worker_process import noted
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.domain.events import Completed, Failed, Recorded, RetryScheduled, Started

WORKER: Final = "tests.system.team_process:left"
"""A worker of two slots."""
JOB: Final[dict[str, Any]] = {
    "name": "held",
    "function": "left/held",
    "overlap_policy": "allow",
}
TASKS: Final = 4
"""The tasks of a round: as many as two workers have slots."""
SPREAD_S: Final = 1.0
"""Seconds over which the moment of a kill is random."""
LIMIT_S: Final = 35.0
"""The longest time that the command accepts: 30 seconds of silence, and some for the claims."""


class Kill(NamedTuple):
    """The end of a process."""

    pid: int
    time: datetime


@dataclass
class Losses:
    """The cost of all kills, by the log."""

    kills: int
    ran_again: int
    """Tasks that started a second time."""
    p50_s: float
    longest_s: float
    problems: list[str] = field(default_factory=list)


async def lose(tocsin: Site, rounds: int, chance: random.Random) -> Losses:
    """Kill one of two workers in each round; no other worker runs."""
    await tocsin.apply(JOB)
    workers = [tocsin.start_worker(WORKER), tocsin.start_worker(WORKER)]
    kills = list[Kill]()
    for number in range(rounds):
        await tocsin.ready()
        released(tocsin.runs).unlink(missing_ok=True)
        await _fill(tocsin, number)
        await asyncio.sleep(chance.uniform(0, SPREAD_S))
        kills.append(await _kill(tocsin, workers.pop(0)))
        released(tocsin.runs).touch()
        workers.append(tocsin.start_worker(WORKER))
        await _all_end(tocsin, TASKS * (number + 1))
    return judged(await tocsin.checked(), kills)


async def _fill(tocsin: Site, number: int) -> None:
    """Give each worker as many tasks as it has slots."""
    for _ in range(TASKS):
        await tocsin.trigger(JOB["name"])

    async def all_run() -> bool:
        return tocsin.runs.exists() and len({run for run, *_ in noted(tocsin.runs)}) == TASKS * (number + 1)

    await tocsin.until(all_run)


async def _kill(tocsin: Site, worker: Program) -> Kill:
    pid = worker.pid
    worker.kill()
    tocsin.programs.remove(worker)
    return Kill(pid, await tocsin.log.now())


async def _all_end(tocsin: Site, number: int) -> None:
    async def have_ended() -> bool:
        return (await tocsin.ends())[JOB["name"]] == number

    await tocsin.until(have_ended)


def judged(everything: StoredEvents, kills: list[Kill]) -> Losses:
    """Return the cost of kills; a worker's name has its process id."""
    claims: dict[str, list[Recorded[Started]]] = defaultdict(list)
    for recorded in everything.facts(Started):
        claims[recorded.message.execution_id].append(recorded)
    waits, problems = list[float](), list[str]()
    for execution_id, (first, *others) in claims.items():
        if not others:
            continue
        killed = next((kill for kill in kills if f"-{kill.pid}-" in first.message.worker), None)
        if killed is None or len(others) > 1:
            problems.append(f"{execution_id} was started by {first.message.worker}, and {len(others)} times again")
        else:
            waits.append(round((others[0].time - killed.time).total_seconds(), 1))
    if len(everything.facts(Completed)) != len(claims):
        problems.append(f"{len(claims)} executions started, and {len(everything.facts(Completed))} completed")
    if len(everything.facts(RetryScheduled)) + len(everything.facts(Failed)):
        problems.append("an attempt failed")
    return Losses(len(kills), len(waits), median(waits or [0.0]), max(waits, default=0.0), problems)


async def measure(rounds: int, seed: int) -> Losses:
    """Run all rounds on a nats-server of their own."""
    with tempfile.TemporaryDirectory(prefix="tocsin-lost-workers-") as folder:
        chance = random.Random(seed)  # noqa: S311 - chooses moments, guards nothing
        with EmbeddedServer(Path(folder) / "nats", port=ANY_PORT).start() as server:
            async with site(server.url, Path(folder), metrics={"enabled": False}) as tocsin:
                for group in GROUPS:
                    tocsin.start(*group)
                return await lose(tocsin, rounds, chance)


def main() -> int:
    """The command; 1: another task ran again, or it took too long."""
    losses = figures("tests.system.lost_workers", __doc__, measure, rounds=10)
    return int(bool(losses["problems"]) or losses["longest_s"] > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
