"""Turns of processes that store commits: a slow process is not refused forever."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from tests.commits.processes import SEAL, Installation, bound
from tests.conformance.worlds import fresh_names
from tests.servers import FAST_CLIENT
from tocsin import subjects
from tocsin.adapters.memory.agents import InMemoryTurnChannel
from tocsin.adapters.memory.clock import ManualClock, settle
from tocsin.adapters.memory.commit_log import InMemoryCommitLog
from tocsin.adapters.nats.client.connection import connect
from tocsin.adapters.nats.log.commit_log import NatsTurnChannel
from tocsin.domain.commit import LogHead
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Recorded, Trigger
from tocsin.engine import commit_loop
from tocsin.engine.commit_loop import CommitLoop
from tocsin.engine.commit_writer import Chain, CommitWriter
from tocsin.engine.fold import Fold
from tocsin.engine.write_turns import HOLD_BACK_S, REFUSALS, WriteTurns
from tocsin.ports.commit_log import TurnChannel
from tocsin.subjects import Stream


@dataclass
class Channel:
    turns: TurnChannel
    arrived: Callable[[], Awaitable[None]]


@pytest.fixture(params=["memory", "nats"])
async def channel(request: pytest.FixtureRequest) -> AsyncIterator[Channel]:
    if request.param == "memory":
        yield Channel(InMemoryTurnChannel(), settle)
        return
    async with connect(request.getfixturevalue("nats_url"), fast_client=FAST_CLIENT) as connection:

        async def arrived() -> None:
            await connection.client.flush()
            await connection.client.flush()
            await settle()

        yield Channel(NatsTurnChannel(connection, f"{fresh_names().root}.turn"), arrived)


async def test_request_is_passed_on_to_all_that_listen(channel: Channel) -> None:
    one, two = list[str](), list[str]()
    async with channel.turns.asked(one.append):
        async with channel.turns.asked(two.append):
            await channel.arrived()
            await channel.turns.ask("a")
            await channel.arrived()
        await channel.turns.ask("b")
        await channel.arrived()
    assert (one, two) == (["a", "b"], ["a"])


class Held:
    """A process that holds back, and measures for how long."""

    def __init__(self, name: str = "m") -> None:
        self.clock = ManualClock()
        self.channel = InMemoryTurnChannel()
        self.turns = WriteTurns(name, self.clock, self.channel)

    async def seconds(self) -> float:
        task = asyncio.ensure_future(self.turns.hold_back(lambda: None))
        begin = self.clock.monotonic()
        await settle()
        while not task.done():
            await self.clock.run(0.01)
        return round(self.clock.monotonic() - begin, 2)


async def test_processes_hold_back_once_per_second_for_another() -> None:
    held = Held()
    held.turns.take("a")
    assert await held.seconds() == HOLD_BACK_S
    await held.clock.run(0.5)
    held.turns.take("a")
    assert await held.seconds() == 0
    await held.clock.run(0.5)
    held.turns.take("a")
    assert await held.seconds() == HOLD_BACK_S


async def test_invented_names_cost_at_most_half_the_time() -> None:
    held = Held()
    total = 0.0
    for number in range(200):
        held.turns.take(f"name{number}")
        total += await held.seconds()
        await held.clock.run(0.005)
    assert total > 0
    assert total <= 0.55 * held.clock.monotonic()
    assert len(held.turns._given) <= 100


@pytest.mark.parametrize(("other", "seconds"), [("a", HOLD_BACK_S), ("z", 0.0), ("m", 0.0)])
async def test_process_that_waits_lets_smaller_names_go_first(other: str, seconds: float) -> None:
    held = Held()
    for _ in range(REFUSALS):
        await held.turns.refused()
    held.turns.take(other)
    assert await held.seconds() == seconds
    held.turns.stored()
    await held.clock.run(1)
    held.turns.take(f"{other}2")
    assert await held.seconds() == HOLD_BACK_S


async def test_turn_is_requested_after_three_consecutive_refusals() -> None:
    held, asked = Held(), list[str]()
    async with held.channel.asked(asked.append):
        await held.turns.refused()
        await held.turns.refused()
        held.turns.stored()
        await held.turns.refused()
        await held.turns.refused()
        assert asked == []
        await held.turns.refused()
    assert asked == ["m"]


async def test_turn_ends_when_the_requesting_process_commits() -> None:
    held = Held()
    held.turns.take("a")
    writers = iter("ba")
    task = asyncio.ensure_future(held.turns.hold_back(lambda: held.turns.seen(next(writers))))
    await held.clock.run(0.012)
    assert task.done()


async def test_process_gets_its_turn_after_a_smaller_name() -> None:
    held = Held("a")
    for _ in range(REFUSALS):
        await held.turns.refused()
    held.turns.take("z")
    assert await held.seconds() == 0
    held.turns.stored()
    assert await held.seconds() == HOLD_BACK_S


class SlowLog(InMemoryCommitLog):
    """The log as a process sees it that needs a millisecond for each event."""

    def __init__(self, log: InMemoryCommitLog, clock: ManualClock, seconds: float) -> None:
        super().__init__(clock)
        self._stored = log._stored
        self._log = log
        self._seconds = seconds

    async def append(self, partition: int, body: bytes, *, expect: int) -> int:
        await self._clock.sleep(max(self._seconds, 0.001 * body.count(b'"subject"')))
        return await self._log.append(partition, body, expect=expect)


async def contended(channel: InMemoryTurnChannel | None) -> int:
    """Let a planner with 200 triggers store beside three writers for 6 s; return its commits."""
    installation = Installation()
    clock = installation.clock
    definition = JobDefinition.model_validate({"name": "free", "function": "f", "overlap_policy": "allow"})
    await installation.store(Defined(job="free", definition=definition))
    async with AsyncExitStack() as stack:

        async def start(name: str, stages: tuple[str, ...], seconds: float) -> CommitLoop:
            chain = Chain(SEAL, LogHead("k1"))
            writer = CommitWriter(SlowLog(installation.log, clock, seconds), 0, chain, clock)
            turns = WriteTurns(name, clock, channel)
            if channel is not None:
                await stack.enter_async_context(channel.asked(turns.take))
            loop = CommitLoop(
                bound(stages),
                Fold(),
                writer,
                clock,
                name=name,
                on_effects=lambda _: asyncio.sleep(0),
                wake_at=clock.at,
                turns=turns,
            )
            tasks = [asyncio.create_task(loop.run()), asyncio.create_task(follow(loop))]
            stack.callback(lambda: [task.cancel() for task in tasks])
            return loop

        async def follow(loop: CommitLoop) -> None:
            async for batch in installation.log.follow(0, after=0):
                loop.receive(batch.bodies)

        async def propose(loop: CommitLoop, number: int) -> None:
            job, expect = f"job{number}", 0
            while True:
                defined = Defined(job=job, definition=JobDefinition(name=job, function="f"))
                [expect] = await loop.propose("test", [defined], expect=expect)

        slow = await start("slow", ("planner",), 0.015)
        for number in range(3):
            task = asyncio.create_task(propose(await start(f"quick{number}", (), 0.003), number))
            stack.callback(task.cancel)
        await settle()
        for number in range(1, 201):
            recorded = Recorded(Trigger(), subjects.trigger("free"), number, clock.now(), f"t{number}")
            slow.offer(Stream.REQUESTS, recorded)
        await clock.run(6)
        return sum(commit.writer == "slow" for commit in await installation.commits())


async def test_slow_writer_stores_commits_beside_quick_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_loop, "MAX_DECIDING_S", 1e9)  # a busy machine changes nothing
    assert await contended(None) == 0
    assert await contended(InMemoryTurnChannel()) >= 3
