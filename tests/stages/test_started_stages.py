"""The matcher and the agent keeper as a process starts them: the settings that reach them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from tests.domain.given import KEY, proven
from tests.stages.world import World
from tocsin import subjects
from tocsin.adapters.memory.agents import InMemoryAgentChannel, InMemoryFetchChannel
from tocsin.domain.agent import AgentRecord, HoldList
from tocsin.domain.events import AgentSwitched, Dispatched, Report, Started
from tocsin.domain.queue_backlog import QueueBacklog
from tocsin.engine.stage import StageContext
from tocsin.settings import Settings
from tocsin.stages.agent_keeper.stage import AGENT_KEEPER, AgentKeeper
from tocsin.stages.matcher.backlog_display import INTERVAL_S
from tocsin.stages.matcher.stage import MATCHER_STAGE, Matcher
from tocsin.subjects import Bucket
from tocsin.testing import settle

ID: Final = "01890f3e-0000-7000-8000-000000000001"
FIELDS: Final = {"mode": "enabled", "functions": ["load"], "max_concurrent_jobs": 9}
QUEUES: Final = {
    "narrow": {"concurrency": 1},
    "slow": {"rate": {"limit": 1, "per": "1h", "burst": 1}},
    "outside": {"transport": "mq"},
}


class Process:
    """A world in which the two stages are started with settings."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.world = World()
        self.agents = InMemoryAgentChannel()
        self.fetches = InMemoryFetchChannel()
        self._stack = stack
        self._number = 0
        self._triggers = Counter[str]()

    def context(self, channels: tuple[str, ...] = ("agents", "fetches"), **settings: Any) -> StageContext:  # noqa: ANN401
        world = self.world
        return StageContext(
            settings=Settings(**settings),
            log=world.log,
            projections=world.projections,
            clock=world.clock,
            stored=world.past,
            report_key=KEY,
            elect=world.elect,
            agents=self.agents if "agents" in channels else None,
            fetches=self.fetches if "fetches" in channels else None,
        )

    async def matcher(self, **settings: Any) -> Matcher:  # noqa: ANN401 - any section
        matcher = MATCHER_STAGE.start(self.context(queues=QUEUES, **settings))
        assert isinstance(matcher, Matcher)
        await matcher._leadership.run_once()
        await self._stack.enter_async_context(self.agents.hold_lists(matcher.receive))
        self._run(matcher.follow(), matcher.follow_decisions())
        await settle()
        return matcher

    async def keeper(self, **settings: Any) -> AgentKeeper:  # noqa: ANN401 - any section
        keeper = AGENT_KEEPER.start(self.context(**settings))
        assert isinstance(keeper, AgentKeeper)
        await keeper.leadership.run_once()
        await self._stack.enter_async_context(self.agents.hold_lists(keeper.receive))
        self._run(keeper.roster.follow())
        await settle()
        return keeper

    def _run(self, *loops: Any) -> None:  # noqa: ANN401 - coroutines
        for loop in loops:
            self._stack.callback(asyncio.ensure_future(loop).cancel)

    async def announce(self, *queues: str) -> None:
        self._number += 1
        body = HoldList.model_validate({**FIELDS, "number": self._number, "queues": queues}).model_dump_json()
        await self.agents.announce("mail-1", ID, body.encode())

    async def trigger(self, queue: str, number: int) -> None:
        if not self._triggers[queue]:
            await self.world.define({"name": queue, "function": "load", "queue": queue, "overlap_policy": "allow"})
        for _ in range(number):
            self._triggers[queue] += 1
            await self.world.trigger(queue, message_id=f"{queue}-{self._triggers[queue]}")
        await self.world.run(self.world.planner, self.world.dag_advancer)
        await settle()

    async def queues_of_claims(self) -> list[str]:
        tasks = {task.execution_id: task.queue for task in await self.world.stored(Dispatched)}
        return [tasks[claim.execution_id] for claim in await self.world.stored(Started)]


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    async with AsyncExitStack() as stack:
        yield Process(stack)


@pytest.mark.parametrize("channels", [(), ("agents",), ("fetches",)])
def test_matcher_needs_both_channels(process: Process, channels: tuple[str, ...]) -> None:
    assert MATCHER_STAGE.start(process.context(channels)) is None


def test_keeper_needs_a_channel_to_agents(process: Process) -> None:
    assert AGENT_KEEPER.start(process.context(("fetches",))) is None
    assert isinstance(AGENT_KEEPER.start(process.context(("agents",))), AgentKeeper)


async def test_limits_of_queues_reach_the_matcher(process: Process) -> None:
    """Tasks of executors outside are left to the bridge; a queue without a setting has no limit."""
    matcher = await process.matcher()
    for queue, number in (("narrow", 3), ("slow", 3), ("outside", 1), ("unnamed", 3)):
        await process.trigger(queue, number)
    await process.announce("narrow", "slow", "outside", "unnamed")
    await matcher.run_once()
    assert sorted(await process.queues_of_claims()) == ["narrow", "slow", *["unnamed"] * 3]
    process.world.clock.advance(INTERVAL_S)
    await matcher.run_once()
    entries = (await process.world.projections.entries(Bucket.QUEUES)).items()
    backlogs = [QueueBacklog.model_validate_json(body) for key, body in entries if not key.startswith("rate")]
    assert {"default", "narrow", "slow"} <= {backlog.queue for backlog in backlogs}
    assert "outside" not in {backlog.queue for backlog in backlogs}


@pytest.mark.parametrize("is_required", [True, False])
async def test_grants_are_required_by_the_settings(process: Process, *, is_required: bool) -> None:
    agents = {"require_grant": is_required}
    matcher, keeper = await process.matcher(agents=agents), await process.keeper(agents=agents)
    await process.trigger("mail", 1)
    await process.announce("mail")
    await matcher.run_once()
    await keeper.run_once(process.world.clock.now())
    assert len(await process.queues_of_claims()) == (0 if is_required else 1)
    [entry] = (await process.world.projections.entries(Bucket.AGENTS)).values()
    assert AgentRecord.model_validate_json(entry).needs_grant is is_required


async def test_disabled_name_is_followed_after_the_start(process: Process) -> None:
    matcher = await process.matcher()
    await process.world.given(AgentSwitched(name="mail-1", enabled=False))
    await settle()
    await process.trigger("mail", 1)
    await process.announce("mail")
    await matcher.run_once()
    assert await process.queues_of_claims() == []


@pytest.mark.parametrize(
    ("outcome", "of_claim", "is_forged", "frees"),
    [
        ("completed", "own", False, True),
        ("failed", "own", False, True),
        ("completed", "other", False, True),
        ("failed", "other", False, False),
        ("completed", "own", True, False),
        ("failed", "own", True, False),
    ],
)
async def test_proven_report_frees_its_slot(
    process: Process, outcome: str, of_claim: str, *, is_forged: bool, frees: bool
) -> None:
    """A success ends the attempt, of whichever claim it is; the failure of an earlier claim does not."""
    matcher = await process.matcher()
    await process.trigger("narrow", 2)
    await process.announce("narrow")
    await matcher.run_once()
    [claim] = await process.world.recorded(Started)
    [task] = [t for t in await process.world.stored(Dispatched) if t.execution_id == claim.message.execution_id]
    report = Report(
        job=task.job,
        execution_id=task.execution_id,
        outcome="completed" if outcome == "completed" else "failed",
        step=task.step,
        attempt=task.attempt,
        token=task.token,
        claim=claim.sequence - (of_claim == "other"),
    )
    report = proven(report, key=b"guessed" if is_forged else KEY)
    await process.world.log.publish(subjects.subject_of(report), report, message_id="report")
    await process.world.run(process.world.dag_advancer, process.world.retrier)
    await settle()
    await matcher.run_once()
    assert len(await process.world.stored(Started)) == 1 + frees


async def test_report_of_a_later_attempt_frees_its_slot(process: Process) -> None:
    matcher = await process.matcher()
    await process.announce("narrow")
    await process.trigger("narrow", 1)
    for attempt, outcome in ((1, "failed"), (2, "completed")):
        await matcher.run_once()
        claim = (await process.world.recorded(Started))[-1]
        task = (await process.world.stored(Dispatched))[-1]
        assert (claim.message.attempt, task.attempt) == (attempt, attempt)
        report = Report(
            job=task.job,
            execution_id=task.execution_id,
            outcome="failed" if outcome == "failed" else "completed",
            step=task.step,
            attempt=attempt,
            token=task.token,
            claim=claim.sequence,
        )
        if outcome == "completed":
            await process.trigger("narrow", 1)  # it waits for the slot
        report = proven(report)
        await process.world.log.publish(subjects.subject_of(report), report, message_id=f"report-{attempt}")
        await process.world.run(process.world.dag_advancer, process.world.retrier)
        process.world.clock.advance(120)
        await matcher._leadership.run_once()
        await process.announce("narrow")
        await process.world.run(process.world.dag_advancer)
        await settle()
    await matcher.run_once()
    assert [claim.attempt for claim in await process.world.stored(Started)] == [1, 2, 1]
