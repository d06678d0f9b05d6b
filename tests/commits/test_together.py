"""Processes that take the stages from each other, begin with snapshots and hold inputs that wait decide what one process decides."""

import asyncio
import random
from collections.abc import Collection

import pytest

from tests.commits import scripts
from tests.commits.processes import NAMES, Held, Process, same_state
from tests.commits.scripts import Action, Commits, Events, script
from tests.commits.test_snapshots import bodies, check_every_number
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.events import CancelRequest, Trigger
from tocsin.engine.departures import Departures
from tocsin.engine.snapshot_rows import FoldBuilder, FoldCopy, lines
from tocsin.engine.snapshots import Loaded
from tocsin.subjects import Stream


class Takeovers(Commits):
    """Processes with stages in common, whose leases move at any time, and that end and begin again."""

    def __init__(self, seed: int, *, cut: bool = False, is_separate: bool = False) -> None:
        """`is_separate`: two processes for each of some groups of stages; else most processes have all."""
        super().__init__()
        self.chance = random.Random(seed)  # noqa: S311 - the same for each seed
        self.installation = self._installation
        self._cut = cut
        self._names = 0
        self._is_dead = False
        """Whether a process died without a word; two of them make leaders careful."""
        groups = self._split() * 2 if is_separate else [NAMES, NAMES, self.chance.sample(NAMES, 4)]
        self.processes = [self._begin(stages) for stages in groups]
        self._move_leases()

    def _split(self) -> list[list[str]]:
        """Return the stages in up to four groups."""
        groups: list[list[str]] = [[] for _ in range(4)]
        for stage in NAMES:
            self.chance.choice(groups).append(stage)
        return [group for group in groups if group]

    def _begin(self, stages: Collection[str], snapshot: Loaded | None = None) -> Process:
        self._names += 1
        leases = Held(self.clock)
        return self.installation.process(
            stages, cut=self._cut, snapshot=snapshot, leases=leases, name=f"p{self._names}"
        )

    def _move_leases(self) -> None:
        given = {id(process): set[str]() for process in self.processes}
        for stage in NAMES:
            having = [process for process in self.processes if stage in process.fold.stages]
            given[id(self.chance.choice(having))].add(stage)
        for process in self.processes:
            process.leases.held = given[id(process)]

    async def _replace(self) -> None:
        """Have a process end, and another begin, with a snapshot or with the first commit."""
        index = self.chance.randrange(len(self.processes))
        old = self.processes[index]
        await old.read_on()
        if self._is_dead or self.chance.random() < 0.7:
            old.leases.is_leaving = True
            while await old.loop.run_once():
                await old.read_on()
        else:
            self._is_dead = True
        snapshot = await self._snapshot(old) if self.chance.random() < 0.6 else None
        self.processes[index] = fresh = self._begin(old.fold.stages, snapshot)
        await self._read(fresh, snapshot)
        await self._read(old)
        assert same_state(fresh.fold, old.fold)
        self._move_leases()

    async def _snapshot(self, process: Process) -> Loaded:
        copying = asyncio.ensure_future(process.loop.copy())
        await asyncio.sleep(0)
        await process.loop.run_once()
        copy, head, start = await copying
        builder = FoldBuilder(b"")
        rows = list(lines(copy))
        self.chance.shuffle(rows)
        for kind, line in rows:
            builder.add(kind, line)
        return Loaded(builder.finish(head.at, copy.needed_definitions), head, start, "")

    async def _read(self, process: Process, snapshot: Loaded | None = None) -> None:
        after = process.chain.head.sequence if snapshot is None else snapshot.start.sequence
        process.loop.receive(body for body in await bodies(self.installation) if body.sequence > after)
        process.loop.fold_received()

    async def run(self) -> None:
        """Run all processes until nothing is left to decide."""
        changes, is_idle = 3, False
        while not is_idle:
            is_idle = True
            if changes and self.chance.random() < 0.3:
                changes -= 1
                await self._replace() if self.chance.random() < 0.4 else self._move_leases()
            self.chance.shuffle(self.processes)
            for process in self.processes:
                await process.read_on()
                if await process.loop.run_once():
                    is_idle = False


def with_early_cancellations(seed: int) -> list[Action]:
    """A script in which cancellations come before the triggers of their executions, or these never come.

    Their job needs no lock: a cancellation is decided again beside the cascade of its trigger, and both could be first at a queue.
    """
    chance, actions = random.Random(seed), script(seed)  # noqa: S311 - the same script for each seed
    for number in range(6):
        begin = chance.randrange(len(actions) - 6)
        actions.insert(begin, {"do": "cancel early", "job": "early", "name": f"e{number}"})
        if number % 3:
            actions.insert(begin + chance.randrange(1, 6), {"do": "trigger late", "job": "early", "name": f"e{number}"})
    early = {"do": "define", "job": {"name": "early", "function": "f", "overlap_policy": "allow"}}
    return [early, *actions, {"do": "advance", "seconds": 31}, {"do": "advance", "seconds": 2}]


async def play(actions: list[Action], engine: Commits) -> Events:
    """Play a script with early cancellations."""
    chosen = dict[str, str]()
    for number, action in enumerate(actions):
        name = action.get("name", "")
        match action["do"]:
            case "cancel early":
                chosen[name] = ids.trigger_id(action["job"], name, engine.clock.now())
                subject = subjects.cancel(action["job"], chosen[name])
                await engine.publish(Stream.REQUESTS, CancelRequest(), subject, f"c{name}")
            case "trigger late":
                subject = subjects.trigger(action["job"], chosen[name])
                await engine.publish(Stream.REQUESTS, Trigger(), subject, chosen[name])
            case _:
                await scripts._act(engine, action, number)
        await engine.run()
    return await scripts.play([], engine)


@pytest.mark.parametrize("seed", range(30))
async def test_processes_taking_each_others_stages_decide_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    actions = with_early_cancellations(seed)
    with monkeypatch.context() as patch:
        patch.setattr(Departures, "settle", lambda *_: None)  # a fold that forgets nothing
        expected = await play(actions, Commits())
    engine = Takeovers(seed, cut=seed % 3 == 0, is_separate=seed % 2 == 0)
    assert await play(actions, engine) == expected
    for process in engine.processes:
        await process.read_on()
        assert not len(process.fold.waiting)
        assert same_state(process.fold, engine.processes[0].fold)
        one, other = (sorted(lines(FoldCopy.of(each.fold))) for each in (process, engine.processes[0]))
        assert one == other
    subjects_ = {event.subject for commit in await engine.installation.commits() for event in commit.events}
    assert {"log.began", "log.left", "log.waits", "log.waited"} <= subjects_


@pytest.mark.parametrize("seed", range(100, 106))
async def test_snapshot_at_any_number_has_terms_and_waits(seed: int) -> None:
    engine = Takeovers(seed)
    await play(with_early_cancellations(seed), engine)
    check_every_number(await bodies(engine.installation), random.Random(seed))  # noqa: S311
