"""A fold that forgets decides what a fold that forgets nothing decides."""

import asyncio
import random
from typing import Any

import pytest

from tests.commits.test_memory import Work
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    CancelRequest,
    DeadLettered,
    Enqueued,
    Replayed,
    Report,
    Shard,
    ShardsDefined,
    UniqueRule,
)
from tocsin.engine import departures
from tocsin.engine.departures import Departures
from tocsin.engine.snapshot_rows import FoldBuilder, lines
from tocsin.engine.snapshots import Loaded
from tocsin.subjects import Stream

STATES = ("available", "active", "scheduled", "retryable", "completed", "cancelled", "discarded")
GRAPH = [
    {"name": "a", "function": "f"},
    {"name": "b", "function": "f", "depends_on": ["a"], "retry": {"max_attempts": 2}},
]
JOBS: dict[str, dict[str, Any]] = {
    "free": {"schedule": "*/20 * * * * *", "dead_letter": True},
    "queued": {"overlap_policy": "enqueue", "max_waiting": 3, "schedule": "*/30 * * * * *"},
    "skips": {"overlap_policy": "skip", "dead_letter": True},
    "cancels": {"overlap_policy": "cancel_previous"},
    "graph": {"dag": GRAPH, "dead_letter": True, "overlap_policy": "enqueue"},
    "divided": {"partition": "all_shards", "overlap_policy": "enqueue", "dead_letter": True},
}


class Player:
    """Plays actions that chance chooses, and sees the events alone."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - the same for each seed
        self.work = Work()
        self.reports = list[Report]()
        self.replays = dict[str, int]()

    async def start(self) -> None:
        await self.work.installation.store(ShardsDefined(shards=(Shard(shard_id="a"), Shard(shard_id="b"))))
        for name, fields in JOBS.items():
            await self.work.define(name, **fields)

    async def act(self, number: int) -> None:
        chance, work = self.chance, self.work
        match chance.choices(
            ["trigger", "enqueue", "cancel", "advance", "work", "late", "replay", "define"],
            weights=[6, 6, 3, 5, 8, 2, 3, 1],
        )[0]:
            case "trigger":
                key = chance.choice([None, f"k{chance.randrange(8)}"])
                await work.trigger(chance.choice(list(JOBS)), f"m{number}", idempotency_key=key)
            case "enqueue":
                await self._enqueue(number)
            case "cancel":
                await self._cancel(number)
            case "advance":
                work.installation.clock.advance(chance.choice([0.5, 3, 20, 70, 400, 1500]))
                await work.runner.run()
            case "work":
                self.reports += await work.claim()
                for report in chance.sample(self.reports, min(len(self.reports), 3)):
                    await work.report(report, fails=chance.random() < 0.4)
            case "late":
                for report in self.reports[-30:]:
                    await work.report(report, fails=chance.random() < 0.5)
            case "replay":
                await self._replay()
            case _:
                name = chance.choice(list(JOBS))
                await work.define(name, **{**JOBS[name], "input": {"n": number}})

    async def _enqueue(self, number: int) -> None:
        chance = self.chance
        rule = UniqueRule(
            key=chance.choice("ab") * 64,
            states=tuple(chance.sample(STATES, chance.randrange(1, 7))),  # type: ignore[arg-type]
            period=chance.choice([None, 30.0, 600.0]),
            on_conflict=chance.choice(["reject", "replace", "ignore"]),
        )
        id_ = ids.trigger_id("ojs.mail", str(chance.choice([number, number // 5])), self.work.installation.clock.now())
        definition = JobDefinition(name="ojs.mail", function="f", overlap_policy="allow", dead_letter=True)
        message = Enqueued(execution_id=id_, definition=definition, unique=chance.choice([rule, rule, None]))
        self.work.installation.publish(Stream.REQUESTS, message, subjects.subject_of(message), id_)
        await self.work.runner.run()

    async def _cancel(self, number: int) -> None:
        scopes = list(await self.work.states())
        if not scopes:
            return
        _, job, id_, _ = self.chance.choice(scopes).split(".")
        subject = subjects.cancel(subjects.job_of(f"execution.{job}.x"), id_)
        if self.chance.random() < 0.2:
            subject = subjects.cancel("free", ids.trigger_id("free", f"u{number}", self.work.installation.clock.now()))
        self.work.installation.publish(Stream.REQUESTS, CancelRequest(), subject, f"c{number}")
        await self.work.runner.run()

    async def _replay(self) -> None:
        events = await self.work.installation.events()
        letters = [r.message for r in events if type(r.message).__name__ == "DeadLettered"]
        if not letters:
            return
        letter: Any = self.chance.choice(letters)
        number = self.replays[letter.id] = self.replays.get(letter.id, 0) + 1
        again = ids.replay_id(letter.job, letter.id, number, self.work.installation.clock.now())
        ledgers = [r.sequence for r in events if r.subject.startswith(f"ledger.{letter.job}.")]
        replayed = Replayed(
            job=letter.job,
            id=letter.id,
            number=number,
            execution_id=again,
            failed_only=self.chance.random() < 0.5,
            ledger=ledgers[-1] if ledgers else None,
        )
        await self.work.installation.store(replayed)
        await self.work.runner.run()


async def begin_again(work: Work) -> None:
    """Replace the process by one that begins with a snapshot."""
    old = work.process
    copying = asyncio.ensure_future(old.loop.copy())
    await asyncio.sleep(0)
    await old.run()
    copy, head, start = await copying
    builder = FoldBuilder(b"")
    for kind, line in lines(copy):
        builder.add(kind, line)
    loaded = Loaded(builder.finish(head.at, copy.needed_definitions), head, start, "")
    process = work.installation.process(snapshot=loaded)
    process.loop.receive(stored for stored in work.installation.log._stored[0] if stored.sequence > start.sequence)
    process.loop.fold_received()
    work.runner._processes = [process]


async def played(
    seed: int, length: int, *, beginnings: random.Random | None = None
) -> tuple[list[tuple[str, str, bytes]], Work]:
    player = Player(seed)
    await player.start()
    for number in range(length):
        await player.act(number)
        if beginnings is not None and beginnings.random() < 0.3:
            await begin_again(player.work)
    commits = await player.work.installation.commits()
    return [(event.subject, event.by, bytes(event.body)) for commit in commits for event in commit.events], player.work


@pytest.mark.parametrize("seed", range(12))
async def test_forgetting_changes_no_decision(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forgetful, work = await played(seed, 80)
    monkeypatch.setattr(Departures, "settle", lambda *_: None)
    expected, other = await played(seed, 80)
    assert forgetful == expected
    assert len(work.fold.states) < len(other.fold.states)


@pytest.mark.parametrize("seed", range(100, 108))
async def test_process_begun_with_a_snapshot_decides_the_same(seed: int) -> None:
    expected, _ = await played(seed, 80)
    decided, _ = await played(seed, 80, beginnings=random.Random(seed))  # noqa: S311
    assert by_key(decided) == by_key(expected)  # a new process gives each class its first turn


def by_key(events: list[tuple[str, str, bytes]]) -> dict[str, list[tuple[str, str, bytes]]]:
    """Return the events of each key, in their order."""
    keys: dict[str, list[tuple[str, str, bytes]]] = {}
    for event in events:
        keys.setdefault(subjects.guard_of(event[0]) or event[0], []).append(event)
    return keys


def test_windows_are_longer_than_the_scripts() -> None:
    """Within them, nothing that a request can name is forgotten."""
    assert departures.KEPT_FOR.total_seconds() > 80 * 1500 / 2


@pytest.mark.parametrize("is_begun_again", [False, True])
async def test_dead_letter_runs_again_after_weeks(is_begun_again: bool) -> None:  # noqa: FBT001
    work = Work()
    await work.define("nightly", dead_letter=True, retry={"max_attempts": 1}, input={"a": 1})
    await work.trigger("nightly", "m")
    await work.finish("main")
    [letter] = [one.message for one in await work.installation.events() if isinstance(one.message, DeadLettered)]
    failed = f"execution.nightly.{letter.id}.>"
    assert failed in work.fold.states
    work.installation.clock.advance(21 * 86_400)
    await work.define("other")
    await work.runner.rest()
    assert failed not in work.fold.states  # its results are gone, and the letter has the input
    if is_begun_again:
        await begin_again(work)
    again = ids.replay_id("nightly", letter.id, 1, work.installation.clock.now())
    await work.installation.store(Replayed(job="nightly", id=letter.id, number=1, execution_id=again))
    await work.runner.run()
    await work.finish()
    assert (await work.kinds(f"execution.nightly.{again}.>"))[-1] == "completed"
    work.installation.clock.advance(2 * 86_400)
    await work.define("other", tags=["later"])
    await work.runner.rest()
    assert not [scope for scope in work.fold.states if scope.startswith("dead-letter.")]
