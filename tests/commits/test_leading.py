"""Leaders of the stages on the log of commits: leases by stage, terms in the log, takeovers."""

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.clocks import ShiftedClock
from tests.commits.processes import NAMES, SEAL, Installation, Process, bound
from tocsin import subjects
from tocsin.adapters.memory.archive import InMemoryProjections
from tocsin.adapters.memory.clock import ManualClock, settle
from tocsin.adapters.memory.event_log import InMemoryEventLog
from tocsin.bootstrap.leading import Leading
from tocsin.domain.commit import LogHead
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Trigger
from tocsin.domain.log_events import decode
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.commit_loop import CommitLoop
from tocsin.engine.commit_writer import Chain, CommitWriter
from tocsin.engine.fold import Fold
from tocsin.engine.leader_election import LeaderElection
from tocsin.engine.stage import BoundStage
from tocsin.engine.stage_leases import StageLeases, lease_of
from tocsin.settings import Settings
from tocsin.subjects import Bucket, Stream

TTL, RENEW = 4.0, 1.0


class World(Installation):
    """An installation with a log of commits, inputs and leases in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.base = InMemoryEventLog(self.clock)
        self.projections = InMemoryProjections(self.clock)

    async def holders(self) -> dict[str, str]:
        """Return the leader of each stage, by the log."""
        holders = dict[str, str]()
        for commit in await self.commits():
            for event in commit.events:
                match decode(event):
                    case None:
                        pass
                    case change if hasattr(change, "stages"):
                        holders |= dict.fromkeys(change.stages, commit.writer)
                    case change if hasattr(change, "terms"):
                        holders = {stage: who for stage, who in holders.items() if stage not in change.terms}
        return holders

    async def control(self) -> list[str]:
        """The events of the log itself."""
        return [
            f"{event.subject.removeprefix('log.')} by {commit.writer}"
            for commit in await self.commits()
            for event in commit.events
            if decode(event) is not None
        ]


class Leader(Process):
    """A process that decides for the stages that it leads."""

    def __init__(
        self,
        world: World,
        name: str,
        stages: Collection[str] = NAMES,
        *,
        bound_stages: Sequence[BoundStage] = (),
        clock: ShiftedClock | None = None,
    ) -> None:
        """`clock`: of its machine; None: a right clock."""
        clock = clock or ShiftedClock(world.clock)
        self.installation = self.world = world
        self.name = name
        self._offered = dict[Stream, int]()
        self.fold = Fold()
        self.chain = Chain(SEAL, LogHead("k1"))
        self.writer = CommitWriter(world.log, 0, self.chain, clock)
        guard = ClockGuard(world.base, clock)
        self.elections = {
            stage: LeaderElection(
                world.projections, guard, key=lease_of(stage), holder=name, ttl=TTL, renew_interval=RENEW
            )
            for stage in stages
        }
        self.leases: Any = StageLeases(self.elections, guard, renew_interval=RENEW)
        self.loop = CommitLoop(
            bound_stages or bound(stages),
            self.fold,
            self.writer,
            clock,
            name=name,
            on_effects=self._take_effects,
            wake_at=lambda at, wake: world.clock.at(at - timedelta(seconds=clock.seconds), wake),
            leases=self.leases,
        )
        self.tasks = list[asyncio.Task[None]]()

    async def start(self) -> None:
        self.tasks = [asyncio.create_task(run()) for run in (self._follow, self._read, self.loop.run, self.leases.run)]
        await settle()

    async def _follow(self) -> None:
        async for batch in self.installation.log.follow(0, after=0):
            self.loop.receive(batch.bodies)

    async def _read(self) -> None:
        async for batch in self.world.base.follow(Stream.REQUESTS, "trigger.>", after=0):
            for recorded in batch.messages:
                self.loop.offer(Stream.REQUESTS, recorded)

    async def leave(self) -> None:
        """End as at SIGTERM."""
        *_, running, electing = self.tasks
        leader, ports = Settings().leader, (self.world.projections, self.world.base, self.world.clock)
        await Leading(*ports, leader, finish_within=2 * leader.ttl).leave(self.loop, self.leases, running, electing)
        await self.kill()

    async def kill(self) -> None:
        """End as by SIGKILL."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator["Given"]:
    async with given() as it:
        yield it


class Given(World):
    def __init__(self, stack: AsyncExitStack) -> None:
        super().__init__()
        self._stack = stack
        self._ids = 0

    async def start(
        self, name: str, stages: Collection[str] = NAMES, *, bound_stages: Sequence[BoundStage] = ()
    ) -> Leader:
        leader = Leader(self, name, stages, bound_stages=bound_stages)
        self._stack.push_async_callback(leader.kill)
        await leader.start()
        return leader

    async def trigger(self, job: str = "free") -> None:
        self._ids += 1
        await self.base.publish(subjects.trigger(job), Trigger(), message_id=f"t{self._ids}")
        await settle()

    async def executions(self) -> int:
        return sum(scope.startswith("execution.") for scope in await self.by_scope())


@asynccontextmanager
async def given() -> AsyncIterator[Given]:
    async with AsyncExitStack() as stack:
        world = Given(stack)
        await world.store(Defined(job="free", definition=JobDefinition(name="free", function="f")))
        yield world


async def test_leader_begins_its_stages_term_and_decides(world: Given) -> None:
    await world.start("one")
    await world.trigger()
    assert await world.control() == ["began by one"]
    assert await world.holders() == dict.fromkeys(NAMES, "one")
    assert await world.executions() == 1


async def test_standby_folds_everything_and_decides_nothing(world: Given) -> None:
    one = await world.start("one")
    two = await world.start("two")
    for _ in range(50):
        await world.trigger()
    await world.clock.run(10)
    assert {commit.writer for commit in await world.commits()} == {"test", "one"}
    assert two.fold.states == one.fold.states
    assert not two.loop.pending._standby.messages()


class SlowProjections(InMemoryProjections):
    """Others act while an entry is being written, some faster than others."""

    def __init__(self, clock: ManualClock, seed: int) -> None:
        super().__init__(clock)
        self._chance = random.Random(seed)  # noqa: S311 - chooses moments, guards nothing

    async def put(self, *arguments: Any, **options: Any) -> int:  # noqa: ANN401 - those of the base
        for _ in range(self._chance.randrange(12)):
            await asyncio.sleep(0)
        return await super().put(*arguments, **options)


@pytest.mark.parametrize("seed", range(6))
async def test_one_of_two_simultaneous_processes_leads_all_stages(world: Given, seed: int) -> None:
    world.projections = SlowProjections(world.clock, seed)
    one, two = Leader(world, "one"), Leader(world, "two")
    await asyncio.gather(one.start(), two.start())
    await world.clock.run(3)
    assert len(set((await world.holders()).values())) == 1
    assert len(await world.control()) == 1
    await asyncio.gather(one.kill(), two.kill())


async def test_overlapping_groups_lead_each_stage_once(world: Given) -> None:
    await world.start("planners", ["ticker", "planner"])
    await world.start("all")
    await world.clock.run(3)
    assert await world.holders() == {
        **dict.fromkeys(NAMES, "all"),
        **dict.fromkeys(("ticker", "planner"), "planners"),
    }
    await world.trigger()
    assert await world.executions() == 1


async def test_standby_reads_no_inputs_until_it_leads(world: Given) -> None:
    one = await world.start("one")
    two = await world.start("two")
    assert (one.loop.intake.begun[Stream.REQUESTS].is_set(), two.loop.intake.begun[Stream.REQUESTS].is_set()) == (
        True,
        False,
    )
    await one.kill()
    await world.clock.run(TTL + 1)
    assert two.loop.intake.begun[Stream.REQUESTS].is_set()


async def test_deadlines_are_known_of_led_stages_only(world: Given) -> None:
    await world.store(Defined(job="tick", definition=JobDefinition(name="tick", function="f", schedule="@daily")))
    one = await world.start("one")
    two = await world.start("two")
    await world.clock.run(1)
    assert one.loop.agenda.next_at is not None
    assert two.loop.agenda.next_at is None
    await one.kill()
    await world.clock.run(TTL + 1)
    assert two.loop.agenda.next_at == one.loop.agenda.next_at


async def test_standby_takes_over_after_a_killed_leaders_lease(world: Given) -> None:
    one = await world.start("one")
    await world.start("two")
    await world.clock.run(3)
    await one.kill()
    await world.trigger()
    assert await world.executions() == 0
    await world.clock.run(TTL + 1)
    assert await world.executions() == 1
    assert await world.control() == ["began by one", "began by two"]


async def test_standby_decides_at_once_after_the_leader_left(world: Given) -> None:
    one = await world.start("one")
    await world.start("two")
    await world.clock.run(3.3)
    before = world.clock.now()
    await one.leave()
    await world.trigger()
    await world.clock.run(0.1)
    assert await world.executions() == 1
    assert await world.control() == ["began by one", "left by one", "began by two"]
    assert (world.clock.now() - before).total_seconds() < 0.5


class LateProjections(InMemoryProjections):
    """The answer to what is written comes when the test says so."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.answers = asyncio.Event()
        self.answers.set()

    async def put(self, *arguments: Any, **options: Any) -> int:  # noqa: ANN401 - those of the base
        revision = await super().put(*arguments, **options)
        await self.answers.wait()
        return revision


async def test_leases_are_freed_although_they_are_being_renewed(world: Given) -> None:
    world.projections = late = LateProjections(world.clock)
    one = await world.start("one")
    late.answers.clear()
    await world.clock.run(RENEW)
    leaving = asyncio.ensure_future(one.leave())
    await settle()
    assert not leaving.done()
    late.answers.set()
    await settle()
    assert leaving.done()
    for stage in NAMES:
        assert await late.get(Bucket.LEADER, lease_of(stage)) is None


async def test_leader_that_stood_still_continues_its_term(world: Given) -> None:
    one = await world.start("one")
    await world.clock.run(2)
    world.clock._elapsed += timedelta(seconds=20)  # nothing of the process runs meanwhile
    assert one.leases.held == frozenset()
    await world.trigger()
    await world.clock.run(1)
    assert await world.executions() == 1
    assert await world.control() == ["began by one"]


async def test_overtaken_leader_that_lives_says_so(world: Given) -> None:
    one = await world.start("one")
    await world.clock.run(2)
    election = one.tasks.pop()
    election.cancel()  # it cannot renew
    two = await world.start("two")
    await world.clock.run(2 * TTL)
    assert await world.control() == ["began by one", "began by two", "left by one"]
    assert two.fold.terms("planner").deaths == ()
    await world.trigger()
    assert await world.executions() == 1


async def test_leader_whose_clock_slept_begins_no_second_term(world: Given) -> None:
    one = await world.start("one")
    one.tasks.pop().cancel()  # it renews nothing, and counts no time
    for election in one.elections.values():
        election.until = float("inf")
    await world.start("two")
    await world.clock.run(2 * TTL)
    assert await world.control() == ["began by one", "began by two", "left by one"]


async def test_lease_in_the_store_belongs_to_the_stage(world: Given) -> None:
    await world.start("one")
    stored = await world.projections.get(Bucket.LEADER, "lock-keeper")
    assert stored is not None
    assert b'"one"' in stored[0]


async def test_leader_releases_its_leases_when_log_is_silent(world: Given) -> None:
    one = await world.start("one")
    one.leases._is_answered = lambda: False
    await world.clock.run(2)
    assert one.leases.held == frozenset()
    assert await world.projections.get(Bucket.LEADER, "planner") is None
