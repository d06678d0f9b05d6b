"""The matcher: claims in the name of agents, hand-over, lost agents, failover, and hostile hold lists."""

import asyncio
import json
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import msgspec
import pytest

from tests.domain.given import KEY
from tests.domain.test_task_rates import A, limited
from tests.stages.world import World
from tocsin import subjects
from tocsin.adapters.memory.agents import InMemoryAgentChannel, InMemoryFetchChannel
from tocsin.domain import ids
from tocsin.domain.agent import MAX_HOLD_LIST_BYTES, Assignment, EndNotice, agent_key, unframed
from tocsin.domain.events import (
    Completed,
    Dispatched,
    Failed,
    Message,
    Namespace,
    PastHoldUp,
    PolicyDefined,
    Released,
    Report,
    RetryScheduled,
    Started,
    validated,
)
from tocsin.domain.open_task import OpenTask
from tocsin.domain.queue_backlog import HeldBack, HeldGroup, QueueBacklog
from tocsin.domain.task_board import TaskBoard
from tocsin.domain.token_bucket import TokenBucket
from tocsin.engine import agent_memory
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.leader_election import LeaderElection
from tocsin.ports import HandOver, LogUnavailable
from tocsin.services.agents import backlogs
from tocsin.services.namespaces import Namespaces
from tocsin.settings import Queue, QueueRate
from tocsin.stages.matcher import claim_checks, claims, stage, trials
from tocsin.stages.matcher.agents import KEPT_S, SILENCE_S
from tocsin.stages.matcher.backlog_display import INTERVAL_S
from tocsin.stages.matcher.claim_checks import CALL_INTERVAL_S, MAX_HAND_OVERS, REPEAT_AFTER_S
from tocsin.stages.matcher.claims import REFUSAL_S
from tocsin.stages.matcher.stage import Channels, Matcher
from tocsin.subjects import Bucket, rate_key
from tocsin.testing import InMemoryProjections, settle

ONE: Final = "01890f3e-0000-7000-8000-000000000001"
TWO: Final = "01890f3e-0000-7000-8000-000000000002"


class Agent:
    """A scripted agent."""

    def __init__(self, hall: "Hall", agent_id: str, name: str, **fields: Any) -> None:  # noqa: ANN401 - of a hold list
        self.hall = hall
        self.agent_id = agent_id
        self.name = name
        self.fields = {
            "mode": "enabled",
            "queues": ["default"],
            "functions": ["load"],
            "max_concurrent_jobs": 1,
            **fields,
        }
        self.number = 0
        self.got: list[tuple[Assignment, Dispatched]] = []
        self.ended: list[str] = []
        """The executions that are over, as the matcher said."""

    def receive(self, message: bytes) -> None:
        assignment, body = unframed(message)
        task = subjects.decode(assignment.subject, body)
        assert isinstance(task, Dispatched)
        self.got.append((assignment, task.task))

    def hear_ends(self, message: bytes) -> None:
        self.ended += msgspec.json.decode(message, type=EndNotice).executions

    async def announce(self, **fields: Any) -> None:  # noqa: ANN401 - of a hold list
        self.number += 1
        self.fields.update(fields)
        body = json.dumps({"number": self.number, **self.fields}).encode()
        await self.hall.channel.announce(self.name, self.agent_id, body)

    async def holds(self, *tasks: Dispatched) -> None:
        await self.announce(held=[f"{task.job}.{task.execution_id}.{task.step}.{task.attempt}" for task in tasks])

    async def reports(self, index: int = -1, outcome: str = "completed") -> None:
        assignment, task = self.got[index]
        report = validated(
            Report,
            {
                "job": task.job,
                "execution_id": task.execution_id,
                "outcome": outcome,
                "step": task.step,
                "attempt": task.attempt,
                "delivery": assignment.delivery,
                "claim": assignment.claim,
                "token": task.token,
                "proof": assignment.proof,
                "error": {"type": "Oops"} if outcome == "failed" else None,
            },
        )
        subject = subjects.subject_of(report)
        await self.hall.world.log.publish(subject, report, message_id=ids.report_id(assignment.proof, subject))
        await self.hall.work()


class Hall:
    """Stages in memory, matchers, and agents."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.world = World()
        self.channel = InMemoryAgentChannel()
        self.fetches = InMemoryFetchChannel()
        self._stack = stack
        self._matchers: dict[Matcher, AsyncExitStack] = {}
        self._follows: dict[Matcher, asyncio.Task[None]] = {}
        self._triggers = 0
        self.queues = {name: Queue(transport="matched") for name in ("default", "mail")}

    async def matcher(
        self, *, leads: bool = True, requires_grant: bool = False, reserved: Collection[str] = ()
    ) -> Matcher:
        """Start a matcher; two may believe that they lead."""
        world = self.world
        projections = InMemoryProjections(world.clock)
        election = LeaderElection(
            projections, ClockGuard(world.log, world.clock), key="matcher", holder="test", ttl=1e9
        )
        if leads:
            await election.run_once()
        matcher = Matcher(
            world.log,
            world.projections,
            Channels(self.channel, self.fetches),
            election,
            world.clock,
            self.queues,
            self.queues.__contains__,
            key=KEY,
            requires_grant=requires_grant,
            reserved=reserved,
        )
        own = await self._stack.enter_async_context(AsyncExitStack())
        await own.enter_async_context(self.channel.hold_lists(matcher.receive))
        await own.enter_async_context(self.channel.absences(matcher.receive_absence))
        await own.enter_async_context(self.fetches.requests(matcher.receive_fetch))
        self._follow(matcher, own)
        own.callback(asyncio.create_task(matcher.follow_decisions()).cancel)
        self._matchers[matcher] = own
        await settle()
        return matcher

    @property
    def matchers(self) -> tuple[Matcher, ...]:
        """The matchers that run."""
        return tuple(self._matchers)

    async def stop(self, matcher: Matcher) -> None:
        """Kill a matcher."""
        await self._matchers.pop(matcher).aclose()

    def _follow(self, matcher: Matcher, own: AsyncExitStack) -> None:
        self._follows[matcher] = asyncio.create_task(matcher.follow())
        own.callback(self._follows[matcher].cancel)

    @asynccontextmanager
    async def lagging(self, matcher: Matcher) -> AsyncIterator[None]:
        """Keep the events of the log from a matcher."""
        self._follows[matcher].cancel()
        yield
        self._follow(matcher, self._matchers[matcher])
        await settle()

    async def agent(self, agent_id: str = ONE, name: str = "mail-1", **fields: Any) -> Agent:  # noqa: ANN401
        """Start an agent that announces itself."""
        agent = Agent(self, agent_id, name, **fields)
        await self._stack.enter_async_context(self.channel.tasks(name, agent_id, agent.receive))
        await self._stack.enter_async_context(self.channel.ends(name, agent_id, agent.hear_ends))
        await agent.announce()
        await self.work()
        return agent

    async def job(self, name: str = "nightly", **fields: Any) -> None:  # noqa: ANN401 - of a definition
        definition = {
            "name": name,
            "function": "load",
            "overlap_policy": "allow",
            "retry": {"max_attempts": 1},
            **fields,
        }
        await self.world.define(definition)

    async def trigger(self, job: str = "nightly") -> None:
        self._triggers += 1
        await self.world.trigger(job, message_id=f"t{self._triggers}")
        await self.work()

    async def work(self) -> None:
        """Let every stage and matcher do what there is to do."""
        world = self.world
        size = -1
        while size != len(stored := await world.recorded(Message)):
            size = len(stored)
            await world.run(world.planner, world.dag_advancer, world.lease_keeper, world.retrier)
            await settle()
            for matcher in tuple(self._matchers):
                await matcher.run_once()
            await settle()

    async def passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        await self.work()

    async def releases(self) -> list[Report]:
        """Return the matcher's reports that end claims."""
        return [report for report in await self.world.stored(Report) if report.worker == subjects.MATCHER]

    async def started(self) -> list[Started]:
        return await self.world.stored(Started)


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    async with AsyncExitStack() as stack:
        yield Hall(stack)


async def test_task_is_claimed_and_handed_over(hall: Hall) -> None:
    await hall.job(input={"to": "ann"})
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    [claim] = await hall.world.recorded(Started)
    assert (claim.message.worker, claim.message.agent, claim.message.delivery) == ("mail-1", ONE, 1)
    [(assignment, task)] = agent.got
    [dispatched] = await hall.world.recorded(Dispatched)
    assert (assignment.claim, assignment.sequence, assignment.delivery) == (claim.sequence, dispatched.sequence, 1)
    assert task.input == {"to": "ann"}
    await agent.reports()
    assert len(await hall.world.stored(Completed)) == 1


async def test_task_waits_for_a_free_slot(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=2)
    for _ in range(3):
        await hall.trigger()
    assert len(agent.got) == 2
    await agent.reports(0)
    assert len(agent.got) == 3


async def test_policy_limits_the_tasks_of_each_agent(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent, other = await hall.agent(max_concurrent_jobs=9), await hall.agent(TWO, "mail-2", max_concurrent_jobs=2)

    async def define(number: int | None) -> None:
        await hall.world.given(PolicyDefined(max_concurrent_jobs=number))
        await settle()
        await hall.work()

    def held() -> tuple[int, int]:
        return len(agent.got), len(other.got)

    await define(3)
    for _ in range(20):
        await hall.trigger()
    assert held() == (3, 2)
    await define(4)
    assert held() == (4, 2)
    await define(2)
    await agent.reports(0)
    await agent.reports(1)
    assert held() == (4, 2), "it has as many as it may"
    await agent.reports(2)
    assert held() == (5, 2)
    await define(None)
    assert held() == (12, 2)


async def test_task_waits_for_an_agent_with_its_function(hall: Hall) -> None:
    await hall.job("mailing", function="mail")
    await hall.job()
    await hall.matcher()
    other = await hall.agent()
    await hall.trigger("mailing")
    await hall.trigger()
    assert [task.function for _, task in other.got] == ["load"]
    right = await hall.agent(TWO, "mail-2", functions=["mail"])
    assert [task.function for _, task in right.got] == ["mail"]


async def test_agent_of_another_queue_gets_nothing(hall: Hall) -> None:
    await hall.job(queue="mail")
    await hall.matcher()
    default, mail = await hall.agent(), await hall.agent(TWO, "mail-2", queues=["mail"])
    await hall.trigger()
    assert (len(default.got), len(mail.got)) == (0, 1)


@pytest.mark.parametrize("fields", [{"mode": "disabled"}, {"mode": "draining"}, {"mode": "starting"}, {"ended": True}])
async def test_agent_that_takes_no_tasks_gets_none(hall: Hall, fields: dict[str, Any]) -> None:
    await hall.job()
    await hall.matcher()
    agent = await hall.agent(**fields)
    await hall.trigger()
    assert agent.got == []
    assert await hall.started() == []


async def test_ready_steps_of_a_graph_are_assigned(hall: Hall) -> None:
    steps = [{"name": "a", "function": "load"}, {"name": "b", "function": "load"}]
    await hall.job("graph", function=None, dag=[*steps, {"name": "c", "function": "load", "depends_on": ["a", "b"]}])
    await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=5)
    await hall.trigger("graph")
    assert [task.step for _, task in agent.got] == ["a", "b"]
    await agent.reports(0)
    await agent.reports(1)
    assert [task.step for _, task in agent.got] == ["a", "b", "c"]
    await agent.reports(2)
    assert len(await hall.world.stored(Completed)) == 1


async def test_hold_list_counts_from_the_next_wave_on(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matcher with many waiting tasks claims wave after wave."""
    monkeypatch.setattr(stage, "AT_ONCE", 1)
    await hall.job()
    matcher = await hall.matcher()
    agent = Agent(hall, ONE, "mail-1", max_concurrent_jobs=3)

    def drain_on_arrival(message: bytes) -> None:
        agent.receive(message)
        matcher.receive("mail-1", ONE, json.dumps({**agent.fields, "number": 9, "mode": "draining"}).encode())

    for _ in range(3):
        await hall.trigger()
    async with hall.channel.tasks("mail-1", ONE, drain_on_arrival):
        await agent.announce()
        await hall.work()
    assert len(agent.got) == 1
    assert len(await hall.started()) == 1


@pytest.mark.parametrize("mode", ["draining", "disabled"])
async def test_chosen_agent_that_drains_gets_nothing(hall: Hall, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """A hold list may arrive after an agent is chosen, while the tokens of a rate are taken."""
    hall.queues["default"] = Queue(rate=QueueRate(limit=100, per=1.0))
    await hall.job()
    await hall.matcher()
    agent = await hall.agent()
    put = hall.world.projections.put

    async def drain_meanwhile(bucket: Bucket, key: str, value: bytes, **fields: Any) -> int:  # noqa: ANN401
        if key == rate_key("default"):
            await agent.announce(mode=mode)
        return await put(bucket, key, value, **fields)

    monkeypatch.setattr(hall.world.projections, "put", drain_meanwhile)
    await hall.trigger()
    assert await hall.started() == []
    assert not agent.got


async def test_fetch_is_served_between_waves(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "AT_ONCE", 1)
    await hall.job()
    matcher = await hall.matcher()
    agent = Agent(hall, ONE, "mail-1", max_concurrent_jobs=3)
    fetch = {"id": TWO, "gateway": TWO, "queues": ["default"], "functions": ["*"], "count": 1, "usual_lease": 10}

    def fetch_on_arrival(message: bytes) -> None:
        agent.receive(message)
        matcher.receive_fetch(json.dumps({**fetch, "identity": "ada"}).encode())

    hand_over = hall.channel.hand_over

    async def deliver(tasks: Sequence[HandOver]) -> Sequence[HandOver]:
        refused = await hand_over(tasks)
        await settle()
        return refused

    monkeypatch.setattr(hall.channel, "hand_over", deliver)
    for _ in range(3):
        await hall.trigger()
    async with hall.channel.tasks("mail-1", ONE, fetch_on_arrival):
        await agent.announce()
        await hall.work()
    assert [claim.agent for claim in await hall.started()] == [ONE, None, ONE]


async def test_cancelled_execution_is_not_assigned(hall: Hall) -> None:
    await hall.job()
    matcher = await hall.matcher()
    await hall.trigger()
    [task] = await hall.world.stored(Dispatched)
    await hall.world.ask_to_cancel("nightly", task.execution_id)
    await hall.work()
    agent = await hall.agent()
    assert agent.got == []
    assert len(matcher.board) == 0


async def test_higher_priority_is_assigned_first(hall: Hall) -> None:
    await hall.job()
    await hall.job("urgent", priority=10)
    await hall.matcher()
    await hall.trigger()
    await hall.trigger("urgent")
    agent = await hall.agent()
    assert [task.job for _, task in agent.got] == ["urgent"]


async def test_task_waits_for_its_limit(hall: Hall) -> None:
    await hall.job(concurrency={"limit": 2})
    await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=9)
    for _ in range(4):
        await hall.trigger()
    assert len(agent.got) == 2
    await agent.reports(0)
    assert len(agent.got) == 3


async def test_claim_records_what_held_up_its_task(hall: Hall) -> None:
    await hall.job(concurrency={"limit": 1})
    await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=9)
    for _ in range(2):
        await hall.trigger()
    await hall.passes(3)
    await agent.reports(0)
    first, second = await hall.world.recorded(Started)
    assert (first.message.held_up, b"held_up" in first.message.encode()) == ((), False)
    assert second.message.held_up == (PastHoldUp(cause="job_limit", seconds=3.0),)


async def test_standby_counts_hold_ups_too(hall: Hall) -> None:
    await hall.job(concurrency={"limit": 1})
    first, second = await hall.matcher(), await hall.matcher(leads=False)
    agent = await hall.agent(max_concurrent_jobs=9)
    for _ in range(2):
        await hall.trigger()
    await hall.passes(3)
    await hall.stop(first)
    await second._leadership.run_once()
    await agent.holds(agent.got[0][1])
    await hall.passes(2)
    await agent.reports(0)
    assert [fact.held_up for fact in await hall.started()] == [(), (PastHoldUp(cause="job_limit", seconds=5.0),)]


@pytest.mark.parametrize(
    ("queue", "cause"),
    [
        (Queue(transport="matched", concurrency=1), "queue_limit"),
        (Queue(transport="matched", rate=QueueRate(limit=1, per=5)), "queue_rate"),
    ],
)
async def test_claim_records_the_limit_of_its_queue(hall: Hall, queue: Queue, cause: str) -> None:
    hall.queues["default"] = queue
    await hall.job()
    await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=9)
    for _ in range(2):
        await hall.trigger()
    await hall.passes(5)
    if cause == "queue_limit":
        await agent.reports(0)
    await agent.announce()
    await hall.work()
    first, second = await hall.started()
    assert [first.held_up, [(part.cause, part.seconds) for part in second.held_up]] == [(), [(cause, 5.0)]]


async def test_limit_holds_after_failover(hall: Hall) -> None:
    await hall.job(concurrency={"limit": 2})
    first = await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=9)
    await hall.trigger()
    await hall.stop(first)
    await hall.trigger()
    await hall.trigger()
    await hall.matcher()
    await agent.holds(agent.got[0][1])
    await hall.work()
    assert len(agent.got) == 2


async def claim_one_each(hall: Hall, job: str, *agents: Agent) -> None:
    """Let two leading matchers claim one of two tasks each, before either reads the other's claim."""
    one, two = await hall.matcher(), await hall.matcher()
    for agent in agents:
        await agent.announce()
    for name in "ab":
        await hall.world.trigger(job, message_id=name)
    await hall.world.run(hall.world.planner, hall.world.dag_advancer)
    await settle()
    first, _ = two.board
    two.board.refuse(first.scope, first.step, frozenset(agent_key(agent.name, agent.agent_id) for agent in agents))
    async with hall.lagging(two):
        await one.run_once()
        await two.run_once()
        assert len(await hall.started()) == 2
    await hall.work()


async def test_limit_holds_with_two_leaders(hall: Hall) -> None:
    await hall.job(concurrency={"limit": 1})
    agents = [await hall.agent(max_concurrent_jobs=9), await hall.agent(TWO, "mail-2", max_concurrent_jobs=9)]
    await claim_one_each(hall, "nightly", *agents)
    [released] = await hall.world.stored(Released)
    assert released.reason == "handed_back"
    assert sum(len(agent.got) for agent in agents) == 1


async def test_queue_has_its_own_limit(hall: Hall) -> None:
    hall.queues["default"] = Queue(transport="matched", concurrency=2)
    await hall.job()
    await hall.job("other")
    await hall.job("mailing", queue="mail")
    await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=9, queues=["default", "mail"])
    for name in ("nightly", "nightly", "other", "mailing"):
        await hall.trigger(name)
    assert sorted(task.job for _, task in agent.got) == ["mailing", "nightly", "nightly"]
    await hall.passes(INTERVAL_S)
    waiting = (await backlogs(hall.world.projections))["default"]
    assert (waiting.waiting, waiting.running, waiting.held_by) == (1, 2, "concurrency")
    await agent.reports(0)
    assert len(agent.got) == 4


async def test_namespace_has_a_limit_over_its_queues(hall: Hall) -> None:
    hall.queues |= {name: Queue(transport="matched") for name in ("a.q", "a.r", "b.q")}
    await Namespaces(hall.world.log).apply([Namespace(name="a", max_running=1), Namespace(name="b")])
    await hall.job("a.one", queue="a.q")
    await hall.job("a.two", queue="a.r")
    await hall.job("b.one", queue="b.q")
    await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=9, queues=["a.q", "a.r", "b.q"])
    for name in ("a.one", "a.two", "b.one", "b.one"):
        await hall.trigger(name)
    assert [task.job for _, task in agent.got] == ["a.one", "b.one", "b.one"]
    await hall.passes(INTERVAL_S)
    waiting = await backlogs(hall.world.projections)
    assert waiting["a.r"].held_by == "namespace"
    await Namespaces(hall.world.log).apply([Namespace(name="a", max_running=2)])
    await hall.work()
    assert [task.job for _, task in agent.got][3:] == ["a.two"]


async def test_claim_beyond_namespace_limit_is_released(hall: Hall) -> None:
    hall.queues["a.q"] = Queue(transport="matched")
    await Namespaces(hall.world.log).apply([Namespace(name="a", max_running=1)])
    await hall.job("a.one", queue="a.q")
    agent = await hall.agent(max_concurrent_jobs=9, queues=["a.q"])
    await claim_one_each(hall, "a.one", agent)
    assert len(await hall.world.stored(Released)) == 1
    assert len(agent.got) == 1


async def test_claim_beyond_queue_limit_is_released(hall: Hall) -> None:
    hall.queues["default"] = Queue(transport="matched", concurrency=1)
    await hall.job()
    agent = await hall.agent(max_concurrent_jobs=9)
    await claim_one_each(hall, "nightly", agent)
    assert len(await hall.world.stored(Released)) == 1
    assert len(agent.got) == 1


async def test_tasks_start_at_the_rate_of_their_queue(hall: Hall) -> None:
    hall.queues["default"] = Queue(transport="matched", rate=QueueRate(limit=6, per=60, burst=2))
    await hall.job()
    await hall.job("mailing", queue="mail")
    first = await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=9, queues=["default", "mail"])
    for _ in range(5):
        await hall.trigger()
    await hall.trigger("mailing")
    assert [task.job for _, task in agent.got] == ["nightly", "nightly", "mailing"]
    await hall.passes(INTERVAL_S)
    assert (await backlogs(hall.world.projections))["default"].held_by == "rate"
    await hall.passes(10 - INTERVAL_S)
    assert len(agent.got) == 4
    await hall.stop(first)
    await hall.matcher()  # it goes on where the other stopped
    for seconds, number in ((0, 4), (9, 4), (1, 5)):
        hall.world.clock.advance(seconds)
        await agent.announce()
        await hall.work()
        assert len(await hall.started()) == number


async def test_two_leaders_share_one_rate(hall: Hall) -> None:
    hall.queues["default"] = Queue(transport="matched", rate=QueueRate(limit=1, per=60))
    await hall.job()
    one, two = await hall.matcher(), await hall.matcher()
    for number in range(3):
        await hall.world.trigger("nightly", message_id=f"t{number}")
    await hall.world.run(hall.world.planner, hall.world.dag_advancer)
    await hall.agent(max_concurrent_jobs=9)
    await asyncio.gather(one.run_once(), two.run_once())
    await hall.work()
    assert len(await hall.started()) == 1


async def test_leader_with_an_old_rate_starts_no_task(hall: Hall) -> None:
    hall.queues["default"] = Queue(transport="matched", rate=QueueRate(limit=1, per=60))
    await hall.job()
    leaders = await hall.matcher(), await hall.matcher()
    await hall.agent(max_concurrent_jobs=9)  # both have read that a task may start
    for number, leader in enumerate(leaders):
        await hall.world.trigger("nightly", message_id=f"t{number}")
        await hall.world.run(hall.world.planner, hall.world.dag_advancer)
        await settle()
        await leader.run_once()
        await settle()
    assert len(await hall.started()) == 1


async def test_former_leader_forgets_the_rates(hall: Hall) -> None:
    matcher, each = await hall.matcher(), limited(1, A)
    matcher.board.dispatch(each)
    matcher.board.let_start({A: 0})
    hall.world.clock.advance(3)
    await matcher._leadership.release()
    await matcher.run_once()
    hall.world.clock.advance(300)
    matcher.board.let_start({A: 1})
    assert matcher.board.choose(["default"], lambda _: True, limit=1) == [each]
    assert each.held_up == {"start_rate": 3.0}


@pytest.mark.parametrize("body", [b"x", b'{"used_until": 1e300}'])
async def test_wrong_entry_of_rate_is_empty_bucket(hall: Hall, body: bytes) -> None:
    hall.queues["default"] = Queue(transport="matched", rate=QueueRate(limit=1, per=60))
    await hall.world.projections.put(Bucket.QUEUES, "rate.default", body)
    await hall.job()
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    assert agent.got == []
    hall.world.clock.advance(61)
    await agent.announce()
    await hall.work()
    assert len(agent.got) == 1


async def test_held_groups_are_shown(hall: Hall) -> None:
    await hall.job(concurrency={"limit": 1, "key": "input.customer"}, input={"customer": 42})
    await hall.matcher()
    await hall.agent(max_concurrent_jobs=9)
    for _ in range(3):
        await hall.trigger()
    await hall.passes(INTERVAL_S)
    held = (await backlogs(hall.world.projections))["default"].held_back
    group = HeldGroup(job="nightly", key="input.customer", value="42", limit=1, running=1, waiting=2)
    assert held == HeldBack(waiting=2, groups=(group,))


async def test_lost_task_is_handed_over_again(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    first = agent.got.pop()
    hall.world.clock.advance(REPEAT_AFTER_S / 2)
    await agent.holds()
    await hall.work()
    assert agent.got == []  # the hold list may be older than the hand-over
    hall.world.clock.advance(REPEAT_AFTER_S)
    await agent.holds()
    await hall.work()
    assert agent.got == [first]
    hall.world.clock.advance(REPEAT_AFTER_S)
    await agent.holds(first[1])
    await hall.work()
    assert agent.got == [first]
    assert len(await hall.started()) == 1


async def test_absent_process_loses_its_task_at_once(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    gone = Agent(hall, TWO, "mail-2", max_concurrent_jobs=9)
    await gone.announce()
    await hall.work()
    await hall.trigger()
    [released] = await hall.world.stored(Released)
    assert released.reason == "handed_back"
    agent = await hall.agent()
    [(assignment, task)] = agent.got
    assert (task.attempt, assignment.delivery) == (1, 2)
    assert len(await hall.started()) == 2


async def test_silent_agent_loses_its_tasks(hall: Hall) -> None:
    await hall.job(timeout=600)
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    await hall.passes(SILENCE_S - 1)
    assert await hall.world.stored(Released) == []
    await hall.passes(2)
    [released] = await hall.world.stored(Released)
    assert released.reason == "lease_over"
    other = await hall.agent(TWO, "mail-2")
    assert [task.attempt for _, task in other.got] == [1]
    await agent.announce()  # it comes back, and may work again
    await hall.trigger()
    assert len(agent.got) == 2


async def test_matcher_without_connection_loses_no_agent(hall: Hall) -> None:
    await hall.job(timeout=600)
    matcher = await hall.matcher()
    await hall.agent()
    await hall.trigger()
    hall.channel.connections = 0
    hall.world.clock.advance(2 * SILENCE_S)
    with pytest.raises(LogUnavailable):
        await matcher.run_once()
    hall.channel.connections = 1
    await hall.passes(1)
    assert await hall.world.stored(Released) == []
    await hall.passes(SILENCE_S)
    assert len(await hall.world.stored(Released)) == 1


async def test_task_too_large_is_handed_back(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    await hall.job()
    await hall.matcher()
    agent = await hall.agent()
    monkeypatch.setattr("tocsin.adapters.memory.agents.MAX_BYTES", 10)
    await hall.trigger()
    [released] = await hall.world.stored(Released)
    assert (released.reason, agent.got, len(await hall.started())) == ("handed_back", [], 1)


async def test_absences_call_the_roll_at_a_bounded_rate(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that lost its connection for a moment answers."""
    calls, call_roll = list[float](), hall.channel.call_roll

    async def counted() -> None:
        calls.append(hall.world.clock.monotonic())
        await call_roll()

    monkeypatch.setattr(hall.channel, "call_roll", counted)
    matcher = await hall.matcher()
    await hall.agent()
    calls.clear()
    for seconds in (CALL_INTERVAL_S, 0, 0, CALL_INTERVAL_S):
        hall.world.clock.advance(seconds)
        matcher.receive_absence("nobody", 7)
        await matcher.run_once()
    assert len(calls) == 2


async def test_agent_that_ended_gets_no_task_again(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent = await hall.agent()
    await agent.announce(ended=True)
    await hall.work()
    await agent.announce(ended=False)
    await hall.trigger()
    assert agent.got == []


@pytest.mark.parametrize("silent", [0, 1])
async def test_agent_that_is_heard_hides_no_lost_agent(hall: Hall, silent: int) -> None:
    await hall.job(timeout=600)
    await hall.matcher()
    agents = [await hall.agent(ONE, "mail-1"), await hall.agent(TWO, "mail-2")]
    for _ in agents:
        await hall.trigger()
    hall.world.clock.advance(SILENCE_S)
    heard = agents[1 - silent]
    await heard.holds(*(task for _, task in heard.got))
    await hall.work()
    [released] = await hall.world.stored(Released)
    [(_, task)] = agents[silent].got
    assert (released.execution_id, released.reason) == (task.execution_id, "lease_over")


async def test_task_whose_report_is_stored_is_not_released(hall: Hall) -> None:
    await hall.job(timeout=600)
    matcher = await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    assignment, task = agent.got[0]
    report = Report(
        job=task.job,
        execution_id=task.execution_id,
        outcome="completed",
        step=task.step,
        attempt=1,
        delivery=1,
        claim=assignment.claim,
        token=task.token,
        proof=assignment.proof,
    )
    await hall.world.log.publish(subjects.subject_of(report), report, message_id="r")
    hall.world.clock.advance(SILENCE_S + 1)
    await matcher.run_once()
    assert len(await hall.releases()) == 1
    await hall.work()
    assert await hall.world.stored(Released) == []
    assert len(await hall.world.stored(Completed)) == 1


async def test_attempt_that_kills_every_agent_ends(hall: Hall) -> None:
    await hall.job(timeout=6_000)
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    for _ in range(30):
        hall.world.clock.advance(SILENCE_S + 1)
        await hall.work()
        await agent.announce()
        await hall.work()
    [failed] = await hall.world.stored(Failed)
    assert failed.error is not None
    assert (failed.error.type, len(failed.error.deaths)) == ("worker_lost", 3)


async def test_release_is_repeated_after_trouble(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    await hall.job()
    matcher = await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()

    async def unavailable(*_: object, **__: object) -> int:
        raise LogUnavailable("no answer")

    monkeypatch.setattr(matcher._log, "publish", unavailable)
    await agent.announce(ended=True)
    with pytest.raises(LogUnavailable):
        await matcher.run_once()
    monkeypatch.undo()
    await hall.work()
    assert [released.reason for released in await hall.world.stored(Released)] == ["handed_back"]


async def test_agent_that_ends_hands_its_tasks_back(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent, other = await hall.agent(), await hall.agent(TWO, "mail-2", max_concurrent_jobs=0)
    await hall.trigger()
    await agent.announce(ended=True)
    await other.announce(max_concurrent_jobs=1)
    await hall.work()
    assert [released.reason for released in await hall.world.stored(Released)] == ["handed_back"]
    assert len(other.got) == 1
    assert await hall.world.stored(RetryScheduled) == []


async def test_handed_back_task_returns_after_a_minute(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    await agent.announce(handed_back=[agent.got[0][0].claim])
    await hall.work()
    assert len(agent.got) == 1
    await hall.passes(REFUSAL_S / 3)
    await agent.announce(handed_back=[])
    await hall.passes(REFUSAL_S / 3)
    await agent.announce()
    await hall.passes(REFUSAL_S / 3)
    assert [task.attempt for _, task in agent.got] == [1, 1]


async def test_successor_knows_the_open_claims(hall: Hall) -> None:
    await hall.job(timeout=600)
    old = await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    await hall.trigger()
    await hall.stop(old)
    await hall.matcher()
    await hall.work()
    assert len(agent.got) == 1
    await agent.holds(agent.got[0][1])
    await hall.work()
    assert len(agent.got) == 1
    await agent.reports()
    assert len(agent.got) == 2
    assert len(await hall.started()) == 2


async def test_successor_hands_over_what_was_only_claimed(hall: Hall) -> None:
    await hall.job()
    old = await hall.matcher()
    agent = await hall.agent()
    hand_over = hall.channel.hand_over

    async def lost(_: object) -> tuple[()]:
        return ()

    hall.channel.hand_over = lost  # type: ignore[method-assign,assignment]
    await hall.trigger()
    await hall.stop(old)
    hall.channel.hand_over = hand_over  # type: ignore[method-assign]
    await hall.matcher()
    await agent.holds()
    await hall.work()
    assert len(agent.got) == 1
    assert len(await hall.started()) == 1


async def test_two_leaders_claim_each_task_once(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=100)
    for _ in range(5):
        await hall.world.trigger("nightly", message_id=f"u{_}")
    await hall.world.run(hall.world.planner)
    await settle()
    await asyncio.gather(*(matcher.run_once() for matcher in hall.matchers))
    await hall.work()
    assert len(await hall.started()) == 5
    assert len(agent.got) == 5


async def test_standby_assigns_nothing(hall: Hall) -> None:
    await hall.job()
    await hall.matcher(leads=False)
    agent = await hall.agent()
    await hall.trigger()
    assert agent.got == []


async def test_leader_calls_the_roll(hall: Hall) -> None:
    called: list[None] = []
    async with hall.channel.roll_calls(lambda: called.append(None)):
        await hall.matcher()
        await hall.work()
        await hall.work()
    assert len(called) == 1


async def test_end_that_no_matcher_saw_frees_the_slot(hall: Hall) -> None:
    await hall.job()
    matcher = await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    await hall.stop(matcher)
    await agent.reports()
    hall.world.clock.advance(1)
    await hall.matcher()
    await agent.holds()
    await hall.trigger()
    assert len(agent.got) == 2
    assert len(await hall.world.stored(Released)) == 0


@pytest.mark.parametrize("outcome", ["completed", "failed"])
async def test_new_leader_knows_all_ends_since_oldest_task(hall: Hall, outcome: str) -> None:
    hall.queues["default"] = Queue(transport="matched", concurrency=2)
    await hall.job("unserved", function="no-worker-has-this")
    await hall.job()
    old = await hall.matcher()
    await hall.trigger("unserved")
    agent = await hall.agent(max_concurrent_jobs=2)
    for _ in range(5):
        await hall.trigger()
        await agent.reports(outcome=outcome)
    await hall.stop(old)
    hall.world.clock.advance(1)
    await hall.matcher()
    successor = await hall.agent(TWO, "mail-2")
    await hall.trigger()
    assert len(successor.got) == 1, "no claim of the agent that is gone fills the queue"
    assert len(await hall.world.stored(Released)) == 0


async def test_completion_is_known_before_its_task(hall: Hall) -> None:
    await hall.job()
    leader, late = await hall.matcher(), await hall.matcher()
    agent = await hall.agent()
    async with hall.lagging(late):
        await hall.trigger()
        await agent.reports()
        assert len(await hall.world.stored(Completed)) == 1
    assert tuple(late.board) == ()
    await hall.stop(leader)
    await agent.announce()
    await hall.trigger()
    assert len(agent.got) == 2


async def _never() -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield


async def left_open(hall: Hall, agent: Agent, kind: str) -> None:
    """Open tasks of some kind, and leave them."""
    await agent.announce(functions=[] if kind in {"waits", "crowd"} else ["load"])
    for _ in range(3 if kind == "crowd" else 1):
        await hall.trigger()
    if kind == "released":
        await agent.announce(functions=[])
        await agent.announce(handed_back=[agent.got[-1][0].claim])
        await hall.work()
    await agent.announce(functions=["other"])


@pytest.mark.parametrize("kind", ["waits", "claimed", "ended", "released", "crowd"])
async def test_restart_finds_the_open_tasks(hall: Hall, kind: str) -> None:
    await hall.job()
    await hall.job("after", function="other")
    matcher, agent = await hall.matcher(), await hall.agent(max_concurrent_jobs=5)
    await left_open(hall, agent, kind)
    await hall.trigger("after")
    await agent.reports()
    if kind == "ended":
        await agent.reports(0)
    board = matcher.board
    known = {task.key: (task.sequence, task.delivery, board.newest(task.scope)) for task in board}
    claims_before = [claim.sequence for claim in board.claims_of(agent_key(agent.name, agent.agent_id))]
    await hall.stop(matcher)
    board = (await hall.matcher()).board
    assert {task.key: (task.sequence, task.delivery, board.newest(task.scope)) for task in board} == known
    assert [claim.sequence for claim in board.claims_of(agent_key(agent.name, agent.agent_id))] == claims_before
    await agent.announce(functions=["load"])
    await hall.work()
    assert len(await hall.started()) == {"crowd": 4, "released": 3}.get(kind, 2)


@pytest.mark.parametrize("kind", ["foreign", "unreadable"])
async def test_restart_keeps_a_task_beside_odd_events(hall: Hall, kind: str) -> None:
    await hall.job()
    matcher = await hall.matcher()
    await hall.trigger()
    [task] = await hall.world.recorded(Dispatched)
    scope = subjects.execution_scope(task.subject)
    if kind == "foreign":
        hall.world.log.receive(scope.replace(">", "cancelled"), b"{}")
    if kind == "unreadable":  # by this version
        hall.world.log.receive(scope.replace(">", "postponed"), b"{}")
    await hall.stop(matcher)
    assert [each.key for each in (await hall.matcher()).board] == [(scope, "main")]


async def test_restart_keeps_the_order_of_tasks(hall: Hall) -> None:
    steps = [{"name": "x", "function": "other"}, {"name": "y", "function": "load"}]
    last = {"name": "z", "function": "load", "depends_on": ["y"]}
    await hall.job("graph", function=None, dag=[*steps, last])
    matcher, agent = await hall.matcher(), await hall.agent()
    await hall.trigger("graph")
    await agent.announce(functions=[])
    await hall.trigger("graph")
    await agent.reports()
    await hall.stop(matcher)
    await hall.matcher()
    await agent.announce(functions=["load"], max_concurrent_jobs=2)
    await hall.work()
    assert [task.step for _, task in agent.got] == ["y", "y", "z"]


async def test_turn_does_not_look_at_every_task(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    await hall.job()
    matcher = await hall.matcher()
    await hall.trigger()
    looked = list[int]()
    tasks = TaskBoard.__iter__

    def counting(board: TaskBoard) -> Iterator[OpenTask]:
        looked.append(len(board))
        return tasks(board)

    monkeypatch.setattr(TaskBoard, "__iter__", counting)
    await hall.passes(1)
    for _ in range(20):
        await matcher.run_once()
    await hall.passes(30)
    assert not looked


async def test_claim_with_a_lost_answer_is_not_repeated(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    await hall.job()
    matcher = await hall.matcher()
    agent = await hall.agent()
    write = hall.world.log.write

    async def answer_lost(writes: Any) -> Any:  # noqa: ANN401 - as `EventLog.write`
        await write(writes)
        raise LogUnavailable("the answer was lost")

    monkeypatch.setattr(matcher._log, "write", answer_lost)
    await hall.world.trigger("nightly", message_id="x")
    await hall.world.run(hall.world.planner)
    await settle()
    with pytest.raises(LogUnavailable):
        await matcher.run_once()
    monkeypatch.undo()
    await hall.work()
    hall.world.clock.advance(REPEAT_AFTER_S)
    await agent.holds()
    await hall.work()
    assert len(await hall.started()) == 1
    assert len(agent.got) == 1


async def test_bucket_shows_what_waits_and_runs(hall: Hall) -> None:
    async def shown() -> dict[str, QueueBacklog]:
        return await backlogs(hall.world.projections)

    await hall.job()
    await hall.job("absent", function="mail")
    matcher = await hall.matcher()
    await hall.passes(INTERVAL_S)
    assert await shown() == {name: QueueBacklog(queue=name) for name in ("default", "mail")}
    await hall.agent()
    for _ in range(3):
        await hall.trigger()
    await hall.trigger("absent")
    await hall.passes(INTERVAL_S)
    first = (await hall.world.recorded(Dispatched))[1]
    assert (await shown())["default"] == QueueBacklog(
        queue="default", waiting=3, running=1, oldest=first.time, functions={"load": 2, "mail": 1}
    )
    await hall.stop(matcher)
    await hall.world.projections.put(Bucket.QUEUES, "default", b"{}")
    await hall.matcher()
    await hall.work()
    assert (await shown())["default"].waiting == 3


@pytest.mark.parametrize(
    ("name", "agent_id", "body"),
    [
        ("mail-1", ONE, b"no json"),
        ("mail-1", ONE, b"[" * 10_000),
        ("mail-1", ONE, b'{"number": -1, "mode": "enabled"}'),
        ("mail-1", ONE, b'{"number": 1, "mode": "enabled", "max_concurrent_jobs": 1e99}'),
        ("mail-1", ONE, b" " * (MAX_HOLD_LIST_BYTES + 1)),
        ("mail.1", ONE, b'{"number": 1, "mode": "enabled"}'),
        ("mail-1", "none", b'{"number": 1, "mode": "enabled"}'),
    ],
)
async def test_wrong_hold_list_is_ignored(hall: Hall, name: str, agent_id: str, body: bytes) -> None:
    await hall.job()
    matcher = await hall.matcher()
    await hall.channel.announce(name, agent_id, body)
    await hall.trigger()
    assert [*matcher.agents] == []


async def test_late_hold_list_changes_nothing(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent = await hall.agent()
    await agent.announce(mode="disabled")
    late = {"number": 1, "mode": "enabled", "queues": ["default"], "functions": ["load"], "max_concurrent_jobs": 9}
    await hall.channel.announce("mail-1", ONE, json.dumps(late).encode())
    await hall.trigger()
    assert await hall.started() == []


async def test_hold_list_of_another_name_releases_nothing(hall: Hall) -> None:
    """Another worker uses the id, before and after the new leader hears the agent itself."""
    await hall.job(timeout=600)
    first = await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    [(assignment, task)] = agent.got
    await hall.stop(first)
    await hall.matcher()
    forgeries: tuple[dict[str, Any], ...] = ({"handed_back": [assignment.claim]}, {"ended": True})
    for number, fields in enumerate(forgeries, start=98):
        forged = {"number": number, "mode": "enabled", **fields}
        await hall.channel.announce("thief", ONE, json.dumps(forged).encode())
        await hall.work()
    await agent.holds(task)
    await hall.work()
    assert await hall.releases() == []
    await agent.reports()
    await hall.trigger()
    assert len(agent.got) == 2


async def test_invented_agents_leave_room_for_other_names(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tocsin.engine.hold_list_inbox", "tocsin.stages.matcher.agents"):
        monkeypatch.setattr(f"{module}.MAX_PER_NAME", 3)
        monkeypatch.setattr(f"{module}.MAX_AGENTS", 4)
    matcher = await hall.matcher()
    for number in range(9):
        agent_id = f"01890f3e-0000-7000-8000-{number:012x}"
        await hall.channel.announce("thief", agent_id, b'{"number": 1, "mode": "enabled"}')
    agent = await hall.agent()
    assert {heard.name for heard in matcher.agents} == {"thief", agent.name}


def invented(number: int) -> str:
    return f"01890f3e-0000-7000-8000-{number:012x}"


async def test_invented_agents_silence_no_other(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.engine.hold_list_inbox.MAX_AGENTS", 4)
    matcher = await hall.matcher()
    agent = await hall.agent()
    for number in range(1, 9):
        await hall.channel.announce(f"thief-{number}", invented(number), b'{"number": 1, "mode": "enabled"}')
    await agent.announce(functions=["heard", "again"])
    await hall.work()
    [heard] = [heard for heard in matcher.agents if heard.name == agent.name]
    assert heard.functions == {"heard", "again"}


async def test_account_of_an_agent_has_own_room(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tocsin.engine.hold_list_inbox", "tocsin.stages.matcher.agents"):
        monkeypatch.setattr(f"{module}.MAX_AGENTS", 4)
        monkeypatch.setattr(f"{module}.MAX_PER_NAME", 2)
    matcher = await hall.matcher(reserved=["mail"])
    for number in range(1, 9):
        await hall.channel.announce(f"thief-{number}", invented(number), b'{"number": 1, "mode": "enabled"}')
    for number in range(9, 13):
        await hall.channel.announce("mail", invented(number), b'{"number": 1, "mode": "enabled"}')
    await hall.work()
    names = Counter(heard.name for heard in matcher.agents)
    assert (names.total(), names["mail"]) == (4 + 2, 2)


def greedy(number: int) -> dict[str, Any]:
    """Return the fields of a hold list that uses much memory."""
    return {
        "number": 1,
        "mode": "enabled",
        "max_concurrent_jobs": 1,
        "queues": [f"q{number}-{n}" for n in range(100)],
        "functions": [f"f{number}-{n}" for n in range(500)],
        "held": [f"j.{number}.{n}.1" for n in range(1_000)],
        "handed_back": [*range(10_000, 11_000)],
        "labels": {f"k{n}": "v" * 255 for n in range(50)},
    }


async def test_hostile_hold_lists_use_limited_memory(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_memory, "MAX_BYTES_PER_NAME", limit := 2_000_000)
    await hall.job()
    matcher = await hall.matcher()
    agent = await hall.agent()
    bodies = [json.dumps(greedy(number)).encode() for number in range(100)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number, body in enumerate(bodies):
            await hall.channel.announce("thief", invented(number), body)
            await hall.work()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < 2 * limit
    assert 0 < sum(heard.name == "thief" for heard in matcher.agents) < 100
    await hall.trigger()
    assert len(agent.got) == 1


async def test_tasks_of_compared_hold_lists_are_not_kept(hall: Hall) -> None:
    matcher = await hall.matcher()
    await hall.channel.announce("thief", ONE, json.dumps(greedy(1)).encode())
    await hall.work()
    [heard] = matcher.agents
    assert heard.tasks is None
    assert len(heard.functions) == 500


async def test_agent_without_room_for_more_lives_on(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_memory, "MAX_BYTES_PER_NAME", 5_000)
    await hall.job(timeout=600)
    matcher = await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=2)
    await hall.trigger()
    hall.world.clock.advance(SILENCE_S / 2)
    await agent.announce(held=[f"invented.{n}.main.1" for n in range(1_000)], functions=["load", *map(str, range(99))])
    await hall.work()
    await hall.passes(SILENCE_S / 2)
    [heard] = matcher.agents
    assert heard.functions == {"load"}
    assert await hall.world.stored(Released) == []
    await agent.announce(held=[], functions=["load"], mode="disabled")
    await hall.work()
    await hall.trigger()
    assert len(agent.got) == 2  # the lost task again, and no other task
    assert len(await hall.started()) == 1


async def test_process_that_ended_makes_room(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.stages.matcher.agents.MAX_PER_NAME", 1)
    matcher = await hall.matcher()
    first = await hall.agent()
    await hall.agent(TWO)
    assert [heard.agent_id for heard in matcher.agents] == [ONE]
    await first.announce(ended=True)
    await hall.work()
    await hall.agent(TWO)
    assert [heard.agent_id for heard in matcher.agents] == [TWO]


FORGED: Final = (
    "report.x",
    "report.nightly.{id}.completed.main.1.1",
    "report.nightly.{id}.completed.main.1.{seal}.1",
    "report.nightly.{id}.completed.main.²." + "0" * 16 + ".1",
    "report.nightly.{id}.completed.main." + "9" * 3_000 + ".{seal}.1",
)
"""Subjects of reports under which a worker publishes that received another task, whose seal is `seal`."""


async def test_forged_report_frees_no_slot(hall: Hall) -> None:
    await hall.job(concurrency={"limit": 1})
    await hall.job("own", function="own")
    await hall.matcher()
    agent, thief = await hall.agent(max_concurrent_jobs=9), await hall.agent(TWO, "thief", functions=["own"])
    await hall.trigger("own")
    await hall.trigger()
    await hall.trigger()
    [(_, task)], [(assignment, own)] = agent.got, thief.got
    fields = own.document(include={"job", "execution_id", "step", "attempt", "token"})
    report = Report(outcome="completed", **fields)
    for subject in FORGED:
        of_thief = subject.format(id=task.execution_id, seal=ids.seal(assignment.proof))
        hall.world.log.receive(of_thief, report.encode())
    await hall.work()
    assert len(agent.got) == 1
    await agent.reports()
    assert len(agent.got) == 2


async def test_number_of_agents_is_bounded(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.stages.matcher.agents.MAX_AGENTS", 3)
    matcher = await hall.matcher()
    for number in range(10):
        agent_id = f"01890f3e-0000-7000-8000-{number:012x}"
        await hall.channel.announce("mail-1", agent_id, b'{"number": 1, "mode": "enabled"}')
        await hall.work()
    assert len([*matcher.agents]) == 3


async def test_number_of_remembered_releases_is_bounded(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "MAX_RELEASED", 2)
    await hall.job()
    matcher = await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=5)
    for _ in range(5):
        await hall.trigger()
    await agent.announce(ended=True)
    await hall.work()
    assert len(matcher._releases.requested) == 2
    assert len(await hall.world.stored(Released)) == 5


def limit_trials(monkeypatch: pytest.MonkeyPatch, burst: int) -> None:
    monkeypatch.setattr(trials, "OF_NAME", TokenBucket(limit=2, per=1.0, burst=burst))


async def test_invented_agents_bounce_few_tasks(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that do not listen send hold lists, and the agent that works is busy."""
    limit_trials(monkeypatch, 5)
    await hall.job(timeout=600)
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    await agent.holds(agent.got[0][1])
    thieves = [Agent(hall, invented(number), "thief", max_concurrent_jobs=99) for number in range(10)]
    for _ in range(4):
        await hall.trigger()
    for _ in range(20):
        for thief in thieves:
            await thief.announce()
        hall.world.clock.advance(0.1)
        await hall.work()
    assert 5 <= len(await hall.world.stored(Released)) <= 5 + 2 * 2
    for _ in range(5):
        await agent.reports()
        await agent.holds()
        await hall.work()
    assert len(agent.got) == 5


async def test_agent_that_gives_tasks_back_gets_few(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_trials(monkeypatch, 3)
    await hall.job(timeout=600)
    await hall.matcher()
    for _ in range(20):
        await hall.trigger()
    for number in range(10):
        thief = await hall.agent(invented(number), "thief", max_concurrent_jobs=99)
        await thief.holds(*(task for _, task in thief.got))
        await hall.work()
        await thief.announce(ended=True)
        await hall.work()
    started = Counter(claim.agent for claim in await hall.started())
    assert started == {invented(0): 6}  # three at first, and three when its hold list shows those


async def test_task_that_no_list_shows_is_released(hall: Hall) -> None:
    await hall.job(timeout=600)
    await hall.matcher()
    thief = await hall.agent(TWO, "thief")
    await hall.trigger()
    for _ in range(10):
        hall.world.clock.advance(REPEAT_AFTER_S)
        await thief.holds()
        await hall.work()
    assert len(thief.got) == MAX_HAND_OVERS
    [released] = await hall.world.stored(Released)
    assert released.reason == "handed_back"
    agent = await hall.agent()
    assert len(agent.got) == 1


async def test_task_beyond_a_full_hold_list_is_kept(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_checks, "MAX_HELD", 1)
    await hall.job(timeout=600)
    await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=2)
    await hall.trigger()
    await hall.trigger()
    for _ in range(10):
        hall.world.clock.advance(REPEAT_AFTER_S)
        await agent.holds(agent.got[0][1])
        await hall.work()
    assert await hall.world.stored(Released) == []


async def test_agents_that_work_need_no_tokens(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_trials(monkeypatch, 1)
    await hall.job(timeout=600)
    await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=9)
    for _ in range(9):
        await hall.trigger()
        await agent.holds(*(task for _, task in agent.got))
        await hall.work()
    assert len(agent.got) == 9


async def test_lost_fleet_is_replaced_at_once(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "OF_NAME", TokenBucket(limit=1, per=1e9, burst=2))
    await hall.job(timeout=600)
    await hall.matcher()
    lost = await hall.agent(max_concurrent_jobs=4)
    for _ in range(4):
        await hall.trigger()
    for _ in range(3):
        await lost.holds(*(task for _, task in lost.got))
        await hall.work()
    assert len(lost.got) == 4
    hall.world.clock.advance(SILENCE_S)
    await hall.work()
    assert len(await hall.world.stored(Released)) == 4
    for _ in range(3):  # of the tasks that were lost, an agent gets one at a time
        await hall.trigger()
    agent = await hall.agent(TWO, max_concurrent_jobs=4)
    for _ in range(3):
        await agent.holds(*(task for _, task in agent.got))
        await hall.work()
    assert len(agent.got) == 4


async def test_answered_task_gives_its_token_back(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_trials(monkeypatch, 1)
    await hall.job(timeout=600)
    await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=9)
    await hall.trigger()
    await hall.trigger()
    assert len(agent.got) == 1
    await agent.reports()
    assert len(agent.got) == 2


async def test_name_that_lost_tokens_comes_last(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_trials(monkeypatch, 4)
    await hall.job(timeout=600)
    await hall.matcher()
    thief = Agent(hall, TWO, "thief", max_concurrent_jobs=9)
    await thief.announce()
    for _ in range(3):
        await hall.trigger()
        await thief.announce()
    agent = await hall.agent(max_concurrent_jobs=5)
    assert len(agent.got) == 3
    await agent.holds(*(task for _, task in agent.got))
    await hall.agent(invented(3), "thief", max_concurrent_jobs=9)
    await hall.trigger()
    assert len(agent.got) == 4


async def test_standby_forgets_processes_that_are_gone(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MAX_KNOWN", 2)
    await hall.job(timeout=600)
    await hall.matcher()
    standby = await hall.matcher(leads=False)
    assert not standby._leadership.is_leading
    for number in range(6):
        agent = await hall.agent(invented(number))
        await hall.trigger()
        await agent.reports()
        await agent.announce(ended=True)
        await hall.work()
        standby.agents._forget(standby.agents.with_id(invented(number))[0])
    assert len(standby._trials._proved) <= 3


async def test_standby_forgets_silent_agents(hall: Hall) -> None:
    leader, standby = await hall.matcher(), await hall.matcher(leads=False)
    for number in range(6):
        await hall.agent(invented(number))
        await hall.passes(KEPT_S / 2)
    for matcher in (leader, standby):
        assert len([*matcher.agents]) <= 3


async def test_new_process_gets_a_task_beside_thieves(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older processes, each with a name of its own, lose the tokens of all names as they come."""
    monkeypatch.setattr(trials, "SHARED", TokenBucket(limit=1, per=1.0, burst=1))
    await hall.job(timeout=600)
    await hall.matcher()
    thieves = [Agent(hall, invented(number), f"thief-{number}") for number in range(10)]
    for thief in thieves:
        await thief.announce()
    agent = await hall.agent(invented(99))
    for _ in range(3):
        await hall.trigger()
    for _ in range(12):
        for thief in thieves:
            await thief.announce()
        await hall.passes(1.0)
    assert len(agent.got) == 1
