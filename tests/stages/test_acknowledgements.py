"""Acknowledgements: an execution waits for agents, and no agent speaks for another."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from tests.stages.world import World
from tocsin import subjects
from tocsin.adapters.memory.agents import InMemoryAgentChannel
from tocsin.domain import execution
from tocsin.domain.agent import MAX_PROPOSALS, Command
from tocsin.domain.events import (
    Acknowledged,
    Acquired,
    Admitted,
    AgentDrainStarted,
    AgentGranted,
    AgentSwitched,
    Completed,
    CronAnswer,
    CronSkipped,
    Dispatched,
    ExecutionFact,
    Proposed,
    QueueGrant,
    QuorumSettled,
    Skipped,
)
from tocsin.domain.execution import Execution, Status
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.leader_election import LeaderElection
from tocsin.services.audit import audit
from tocsin.services.health import coordination
from tocsin.services.health.coordination import Proposals, waiting_proposals
from tocsin.stages.agent_keeper.acknowledgements import CURSOR
from tocsin.stages.agent_keeper.roster import Entry
from tocsin.stages.agent_keeper.stage import SILENCE_S, AgentKeeper
from tocsin.subjects import Bucket, Stream
from tocsin.testing import InMemoryProjections, settle

PAY = {
    "name": "pay",
    "function": "pay",
    "job_class": "QUORUM_REQUIRED",
    "acknowledgements": 2,
    "overlap_policy": "allow",
    "retry": {"max_attempts": 2},
}
TIMEOUT_S = 10.0


def id_of(number: int) -> str:
    return f"01890f3e-0000-7000-8000-{number:012}"


@dataclass
class Scene:
    """A world with an agent keeper that leads, and agents that answer at once."""

    world: World
    channel: InMemoryAgentChannel
    keepers: list[AgentKeeper] = field(default_factory=list)
    numbers: int = 0
    sent: dict[str, list[int]] = field(default_factory=dict)
    """The proposals that each agent received, also repeatedly."""

    async def hold(self, name: str, number: int = 1, **fields: Any) -> None:  # noqa: ANN401 - of a hold list
        """An agent sends a hold list."""
        self.numbers += 1
        body = {"number": self.numbers, "mode": "enabled", "functions": ["pay"], "queues": ["default"], **fields}
        await self.channel.announce(name, id_of(number), json.dumps(body).encode())

    async def agent(
        self,
        stack: AsyncExitStack,
        name: str,
        number: int = 1,
        *,
        answers: bool = True,
        **fields: Any,  # noqa: ANN401
    ) -> None:
        """An agent registers, and answers each question if it `answers`."""

        def receive(body: bytes) -> None:
            command = Command.model_validate_json(body)
            self.sent.setdefault(name, []).extend(command.proposals)
            if answers and command.proposals:
                answering.append(
                    asyncio.ensure_future(self.hold(name, number, acknowledged=command.proposals, **fields))
                )

        answering: list[asyncio.Future[None]] = []
        await stack.enter_async_context(self.channel.commands(name, id_of(number), receive))
        await self.hold(name, number, **fields)
        await self.play()

    async def trigger(self, message_id: str = "m") -> None:
        await self.world.trigger("pay", message_id)
        await self.play()

    async def play(self, seconds: float = 0.0) -> None:
        """Let all stages and keepers do what they can."""
        self.world.clock.advance(seconds)
        for _ in range(4):
            await self.world.run(
                self.world.planner, self.world.dependency_keeper, self.world.lock_keeper, self.world.dag_advancer
            )
            for keeper in self.keepers:
                await settle()
                await keeper.run_once(self.world.clock.now())
                await settle()
                await keeper.acknowledgements.run_once(self.world.clock.now())
            await settle()

    async def state(self) -> Execution:
        [planned] = await self.world.log.read("execution.pay.*.planned.dependent")
        assert isinstance(planned.message, ExecutionFact)
        return execution.fold(await self.world.log.load(subjects.scope_of(planned.message)))

    async def of(self, kind: type[ExecutionFact]) -> list[Any]:
        return list(await self.world.stored(kind))

    async def checked(self) -> None:
        """The audit finds nothing wrong."""
        facts = [r for name in ("ledger.>", "execution.>", "lock.>") for r in await self.world.log.read(name)]
        wrong = [v for v in audit(facts).violations if v.invariant == "I6" and v.entity.endswith(" of pay")]
        assert not wrong, wrong


@asynccontextmanager
async def keeper_of(scene: Scene, *, requires_grant: bool = False) -> AsyncIterator[AgentKeeper]:
    """Another agent keeper, which believes that it leads."""
    world = scene.world
    election = LeaderElection(
        InMemoryProjections(world.clock), ClockGuard(world.log, world.clock), key="agent-keeper", holder="t", ttl=1e9
    )
    await election.run_once()
    keeper = AgentKeeper(
        world.log,
        world.projections,
        scene.channel,
        election,
        world.clock,
        fold=lambda: world.parts.fold,
        requires_grant=requires_grant,
    )
    following = asyncio.create_task(keeper.roster.follow())
    async with scene.channel.hold_lists(keeper.receive):
        keeper._listens_since = world.clock.monotonic()
        scene.keepers.append(keeper)
        while not keeper.roster.is_complete:
            await settle()
        yield keeper
    scene.keepers.remove(keeper)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def scene(world: World, stack: AsyncExitStack) -> Scene:
    scene = Scene(world, InMemoryAgentChannel())
    await world.define(PAY)
    await stack.enter_async_context(keeper_of(scene))
    return scene


async def test_majority_of_agents_admits(scene: Scene, stack: AsyncExitStack) -> None:
    for name in ("a", "b"):
        await scene.agent(stack, name)
    await scene.agent(stack, "dead", answers=False)
    await scene.trigger()
    assert (await scene.state()).status is Status.ADMITTED
    [proposed] = await scene.of(Proposed)
    assert (proposed.agents, proposed.needed) == (tuple(f"{name}.{id_of(1)}" for name in ("a", "b", "dead")), 2)
    assert {fact.name for fact in await scene.of(Acknowledged)} == {"a", "b"}
    assert [fact.outcome for fact in await scene.of(QuorumSettled)] == ["reached"]
    await scene.checked()


async def test_execution_is_proposed_again_and_skipped(scene: Scene, stack: AsyncExitStack) -> None:
    await scene.agent(stack, "a")
    for name in ("b", "c"):
        await scene.agent(stack, name, answers=False)
    await scene.trigger()
    state = await scene.state()
    assert (state.status, execution.waits_for(state)) == (Status.PLANNED, "acknowledgements")
    assert str(execution.acknowledgements(state)) == "1 of 2 (proposal 1 of 2, to 3 agents)"
    await scene.play(TIMEOUT_S - 1)
    assert len(await scene.of(Proposed)) == 1
    await scene.play(2)
    assert [fact.attempt for fact in await scene.of(Proposed)] == [1, 2]
    await scene.play(TIMEOUT_S + 1)
    assert [fact.reason for fact in await scene.of(Skipped)] == ["no_quorum"]
    assert [(fact.outcome, fact.attempt) for fact in await scene.of(QuorumSettled)] == [("no_quorum", 2)]
    assert [event.data.reason for event in await scene.world.stored(CronSkipped)] == ["no_quorum"]
    codes = [(event.data.answer, event.data.code) for event in await scene.world.stored(CronAnswer)]
    assert codes == [("queued", "quorum_not_reached"), ("skipped", "no_quorum")]
    assert not await scene.of(Admitted)
    await scene.checked()


async def test_late_estimate_of_the_time_shortens_no_wait(scene: Scene, stack: AsyncExitStack) -> None:
    for name in ("a", "b"):
        await scene.agent(stack, name, answers=False)
    await scene.world.trigger("pay")
    await scene.world.run(scene.world.planner)
    for _ in range(3):
        await settle()
        await scene.keepers[0].acknowledgements.run_once(scene.world.clock.now() - timedelta(seconds=5))
    await scene.play(TIMEOUT_S - 1)
    assert len(await scene.of(Proposed)) == 1
    await scene.play(2)
    assert len(await scene.of(Proposed)) == 2


async def test_next_proposal_names_new_agent(scene: Scene, stack: AsyncExitStack) -> None:
    await scene.agent(stack, "a")
    await scene.trigger()
    await scene.agent(stack, "b")
    assert (await scene.state()).status is Status.PLANNED
    await scene.play(TIMEOUT_S)
    await scene.play(1)
    assert (await scene.state()).status is Status.ADMITTED


async def test_lost_proposal_is_sent_again(scene: Scene, stack: AsyncExitStack) -> None:
    for name in ("a", "b"):
        await scene.agent(stack, name, answers=False)
    await scene.trigger()
    await scene.play(2.5)
    assert {name: len(sequences) for name, sequences in scene.sent.items()} == {"a": 2, "b": 2}
    for name in ("a", "b"):
        await scene.hold(name, acknowledged=[scene.sent[name][0]])
    await scene.play()
    assert (await scene.state()).status is Status.ADMITTED


HOSTILE: dict[str, dict[str, Any]] = {
    "other name": {"name": "evil"},
    "other process of the name": {"name": "b", "number": 7},
    "other proposal": {"offset": 1},
    "disabled": {"mode": "disabled"},
    "draining": {"mode": "draining"},
    "ended": {"ended": True},
    "without the function": {"functions": ["other"]},
    "without the queue": {"queues": ["other"]},
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_answer_of_the_wrong_agent_changes_nothing(scene: Scene, stack: AsyncExitStack, case: str) -> None:
    await scene.agent(stack, "a")
    await scene.agent(stack, "b", answers=False)
    await scene.trigger()
    [sequence] = set(scene.sent["b"])
    fields = dict(HOSTILE[case])
    name, number, offset = fields.pop("name", "b"), fields.pop("number", 1), fields.pop("offset", 0)
    await scene.hold(name, number, acknowledged=[sequence + offset] * 3, **fields)
    await scene.play(1)
    assert [fact.name for fact in await scene.of(Acknowledged)] == ["a"]
    assert (await scene.state()).status is Status.PLANNED


async def test_answer_counts_once(scene: Scene, stack: AsyncExitStack) -> None:
    await scene.agent(stack, "a")
    await scene.agent(stack, "b", answers=False)
    await scene.trigger()
    for _ in range(3):
        await scene.hold("a", acknowledged=scene.sent["a"])
        await scene.play(1)
    assert len(await scene.of(Acknowledged)) == 1


async def test_answer_to_earlier_proposal_changes_nothing(scene: Scene, stack: AsyncExitStack) -> None:
    await scene.agent(stack, "a", answers=False)
    await scene.agent(stack, "b", answers=False)
    await scene.trigger()
    [first] = set(scene.sent["a"])
    await scene.play(TIMEOUT_S + 1)
    for name in ("a", "b"):
        await scene.hold(name, acknowledged=[first])
    await scene.play()
    assert not await scene.of(Acknowledged)


async def test_late_answer_changes_nothing(scene: Scene, stack: AsyncExitStack) -> None:
    await scene.agent(stack, "a", answers=False)
    await scene.agent(stack, "b", answers=False)
    await scene.trigger()
    for _ in range(2):
        await scene.play(TIMEOUT_S + 1)
    assert (await scene.state()).status is Status.SKIPPED
    for name in ("a", "b"):
        await scene.hold(name, acknowledged=scene.sent[name])
    await scene.play()
    assert not await scene.of(Acknowledged)
    await scene.checked()


async def test_proposal_names_enabled_agents_with_function(scene: Scene, stack: AsyncExitStack) -> None:
    for name in ("a", "b", "disabled", "drained", "ungranted", "lost", "other"):
        await scene.agent(stack, name, functions=["other" if name == "other" else "pay"])
    nothing = (QueueGrant(queue="default", functions=("other",)),)
    await scene.world.given(
        AgentSwitched(name="disabled", enabled=False),
        AgentDrainStarted(name="drained", agent_id=id_of(1)),
        AgentGranted(name="ungranted", grants=nothing),
    )
    await settle()
    await scene.play(SILENCE_S - 5)
    for name in ("a", "b", "disabled", "drained", "ungranted"):
        await scene.hold(name)
    await scene.play(6)
    await scene.trigger()
    [proposed] = await scene.of(Proposed)
    assert proposed.agents == (f"a.{id_of(1)}", f"b.{id_of(1)}")


async def test_names_take_turns_in_proposal(
    scene: Scene, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.stages.agent_keeper.acknowledgements.MAX_PROPOSED_TO", 3)
    for number in range(1, 6):
        await scene.hold("crowd", number)
    await scene.agent(stack, "a", 9)
    await scene.agent(stack, "b", 9)
    await scene.trigger()
    [proposed] = await scene.of(Proposed)
    assert proposed.agents == (f"a.{id_of(9)}", f"b.{id_of(9)}", f"crowd.{id_of(1)}")


async def test_two_leaders_store_each_answer_once(scene: Scene, stack: AsyncExitStack) -> None:
    await stack.enter_async_context(keeper_of(scene))
    for name in ("a", "b"):
        await scene.agent(stack, name)
    await scene.agent(stack, "c", answers=False)
    await scene.trigger()
    assert (await scene.state()).status is Status.ADMITTED
    assert len(await scene.of(Proposed)) == 1
    assert sorted(fact.name for fact in await scene.of(Acknowledged)) == ["a", "b"]
    await scene.checked()


@pytest.mark.parametrize("stored", range(5))
async def test_keeper_killed_after_any_event_goes_on(world: World, stack: AsyncExitStack, stored: int) -> None:
    """The first keeper dies after so many of its events; the second knows only the log."""
    scene = Scene(world, InMemoryAgentChannel())
    await world.define(PAY)
    first = AsyncExitStack()
    await first.enter_async_context(keeper_of(scene))
    for name in ("a", "b"):
        await scene.agent(stack, name)
    begun = await world.log.end(Stream.LOG)
    append, left = world.log.append, [stored + 1]

    async def append_some(fact: Any, *, expect: int) -> int:  # noqa: ANN401 - an event
        if isinstance(fact, Proposed | Acknowledged | QuorumSettled):
            if not left[0]:
                raise asyncio.CancelledError
            left[0] -= 1
        return await append(fact, expect=expect)

    world.log.append = append_some  # type: ignore[method-assign]
    with suppress(asyncio.CancelledError):
        await scene.trigger()
    world.log.append = append  # type: ignore[method-assign]
    await first.aclose()
    assert await world.log.end(Stream.LOG) > begun
    await stack.enter_async_context(keeper_of(scene))
    for name in ("a", "b"):
        await scene.hold(name)
    await scene.play(1)
    await scene.play(1)
    assert (await scene.state()).status is Status.ADMITTED
    assert len(await scene.of(Proposed)) == 1
    await scene.checked()


async def test_time_without_a_keeper_does_not_count(world: World, stack: AsyncExitStack) -> None:
    scene = Scene(world, InMemoryAgentChannel())
    await world.define({**PAY, "retry": {"max_attempts": 1}})
    async with keeper_of(scene):
        for name in ("a", "b"):
            await scene.agent(stack, name, answers=False)
        await scene.trigger()
    world.clock.advance(TIMEOUT_S * 2)
    await stack.enter_async_context(keeper_of(scene))
    for name in ("a", "b"):
        await scene.hold(name)
    await scene.play()
    assert (await scene.state()).status is Status.PLANNED
    for name in ("a", "b"):
        await scene.hold(name, acknowledged=scene.sent[name])
    await scene.play()
    assert (await scene.state()).status is Status.ADMITTED


async def test_time_without_the_lease_does_not_count(scene: Scene, stack: AsyncExitStack) -> None:
    await scene.world.define({**PAY, "retry": {"max_attempts": 1}})
    for name in ("a", "b"):
        await scene.agent(stack, name, answers=False)
    await scene.trigger()
    [keeper] = scene.keepers
    await keeper.leadership.release()
    gathering = asyncio.create_task(keeper.acknowledgements.run())
    await settle()
    scene.world.clock.advance(TIMEOUT_S)
    await settle()
    gathering.cancel()
    await scene.play()
    assert (await scene.state()).status is Status.PLANNED
    await scene.play(TIMEOUT_S)
    assert (await scene.state()).status is Status.SKIPPED


async def test_repeated_answer_is_examined_once(
    scene: Scene, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.agent(stack, "a", answers=False)
    await scene.agent(stack, "b", answers=False)
    await scene.trigger()
    acknowledgements, examined = scene.keepers[0].acknowledgements, list[str]()
    may_run = acknowledgements._may_run

    def counted(entry: Entry, *fields: Any) -> bool:  # noqa: ANN401 - passed on
        examined.append(entry.name)
        return may_run(entry, *fields)

    monkeypatch.setattr(acknowledgements, "_may_run", counted)
    [sequence] = set(scene.sent["a"])
    await scene.hold("a", acknowledged=[sequence] * MAX_PROPOSALS, functions=["other"])
    await scene.play()
    assert examined == ["a"]


async def test_redelivery_adds_nothing(scene: Scene, stack: AsyncExitStack) -> None:
    for name in ("a", "b"):
        await scene.agent(stack, name)
    await scene.trigger()
    end = await scene.world.log.end(Stream.LOG)
    await scene.world.redeliver(scene.world.planner, scene.world.lock_keeper)
    await scene.play()
    assert await scene.world.log.end(Stream.LOG) == end


async def test_lock_is_taken_after_the_quorum(scene: Scene, stack: AsyncExitStack) -> None:
    await scene.world.define({**PAY, "overlap_policy": "enqueue"})
    await scene.agent(stack, "a", answers=False)
    await scene.agent(stack, "b", answers=False)
    await scene.trigger()
    assert not await scene.world.log.read("lock.>")
    for name in ("a", "b"):
        await scene.hold(name, acknowledged=scene.sent[name])
    await scene.play()
    state = await scene.state()
    assert (state.status, state.fence is not None) == (Status.ADMITTED, True)
    await scene.checked()


async def test_cancelled_execution_is_not_proposed_again(scene: Scene, stack: AsyncExitStack) -> None:
    await scene.agent(stack, "a", answers=False)
    await scene.trigger()
    state = await scene.state()
    await scene.world.ask_to_cancel("pay", state.request.execution_id)
    await scene.play(TIMEOUT_S + 1)
    assert (await scene.state()).status is Status.CANCELLED
    assert len(await scene.of(Proposed)) == 1
    assert not scene.world.parts.fold.proposed


async def lock_taken_early(scene: Scene) -> str:
    """Let one execution wait for agents with the lock, and another for the lock; return the id of the first.

    An earlier delivery of its trigger took the lock, under a definition that needed no acknowledgements.
    """
    await scene.world.define({**PAY, "overlap_policy": "enqueue", "retry": {"max_attempts": 1}})
    await scene.trigger("early")
    early = (await scene.state()).request.execution_id
    await scene.world.given(Acquired(job="pay", execution_id=early, scheduled_time=scene.world.clock.now(), ttl=70.0))
    await scene.world.define({"name": "pay", "function": "pay", "overlap_policy": "enqueue"})
    await scene.trigger("late")
    return early


async def test_holder_of_a_lock_waits_for_agents(scene: Scene) -> None:
    early = await lock_taken_early(scene)
    assert await scene.of(Dispatched) == []
    await scene.world.ask_to_cancel("pay", early)
    await scene.play()
    [admitted] = await scene.of(Dispatched)
    assert admitted.execution_id != early
    await scene.checked()


async def test_skipped_holder_hands_its_lock_on(scene: Scene) -> None:
    early = await lock_taken_early(scene)
    await scene.play(TIMEOUT_S + 1)
    assert [(fact.execution_id, fact.reason) for fact in await scene.of(Skipped)] == [(early, "no_quorum")]
    [admitted] = await scene.of(Dispatched)
    assert admitted.execution_id != early
    await scene.checked()


async def test_too_many_waiting_executions_are_skipped(scene: Scene) -> None:
    await scene.world.define({**PAY, "max_waiting": 1})
    await scene.trigger("first")
    await scene.trigger("second")
    assert [fact.reason for fact in await scene.of(Skipped)] == ["queue_full"]
    await scene.checked()


async def test_dependencies_come_before_the_proposal(scene: Scene, stack: AsyncExitStack) -> None:
    await scene.world.define({"name": "load", "function": "pay", "overlap_policy": "allow"})
    await scene.world.define({**PAY, "depends_on": [{"job": "load", "within": "1h"}]})
    scene.world.clock.advance(7_200)  # all runs in the window are known
    for name in ("a", "b"):
        await scene.agent(stack, name)
    await scene.trigger()
    state = await scene.state()
    assert (execution.waits_for(state), await scene.of(Proposed)) == ("dependency", [])
    await scene.world.trigger("load", "load")
    await scene.play()
    [opened] = [task for task in await scene.world.stored(Dispatched) if task.job == "load"]
    await scene.world.given(
        Completed(
            job="load",
            execution_id=opened.execution_id,
            scheduled_time=opened.scheduled_time,
            trigger=opened.trigger,
        )
    )
    for _ in range(4):
        await scene.play(1)
    assert [fact.outcome for fact in await scene.of(QuorumSettled)] == ["reached"]
    assert (await scene.state()).status is Status.ADMITTED
    await scene.checked()


async def test_status_counts_executions_that_wait(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination, "PAGE", 2)
    monkeypatch.setattr(coordination, "MAX_READ", 20)
    log, projections = scene.world.log, scene.world.projections
    assert await waiting_proposals(log, projections) == Proposals(0)
    await scene.trigger("over")  # it is skipped after two proposals
    for _ in range(2):
        await scene.play(TIMEOUT_S + 1)
    assert len(await scene.of(Skipped)) == 1
    await scene.trigger("cancelled")
    cancelled = (await scene.of(Proposed))[-1].execution_id
    since = scene.world.clock.now()
    for number in range(3):
        await scene.trigger(f"m-{number}")
    await scene.world.ask_to_cancel("pay", cancelled)
    await scene.play()
    assert await waiting_proposals(log, projections) == Proposals(3, since)
    monkeypatch.setattr(coordination, "MAX_WAITING", 2)
    shown = await waiting_proposals(log, projections)
    assert (shown.waiting, shown.is_complete) == (1, False)


@pytest.mark.parametrize("event", ["proposed.1", "proposed.2", "quorum-settled", "dispatched.main.1"])
async def test_status_leaves_out_executions_of_another_version(scene: Scene, event: str) -> None:
    """Some of their events are unreadable."""
    log, projections = scene.world.log, scene.world.projections
    await scene.trigger("first")
    [first] = await scene.of(Proposed)
    await scene.play(1)
    since = scene.world.clock.now()
    for number in range(3):
        await scene.trigger(f"m-{number}")
    for execution_id in (first.execution_id, *map(id_of, range(12))):
        scope = subjects.execution("pay", execution_id)
        subject = f"{scope.removesuffix('>')}{event}"
        await scene.world.decide(subject, b'{"v": 9}')
    await scene.trigger("last")
    shown = await waiting_proposals(log, projections)
    assert (shown.waiting, shown.oldest) == (4, since)


async def test_status_reads_from_the_saved_place(scene: Scene) -> None:
    await scene.trigger("over")
    for _ in range(3):
        await scene.play(TIMEOUT_S + 1)
    await scene.trigger("waits")
    for _ in range(2):
        await scene.play(TIMEOUT_S + 1)
    log, projections = scene.world.log, scene.world.projections
    assert await projections.get(Bucket.CURSORS, CURSOR)
    assert (await waiting_proposals(log, projections)).waiting == 0
    await scene.trigger("new")
    assert (await waiting_proposals(log, projections)).waiting == 1
