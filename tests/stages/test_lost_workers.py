"""Tasks whose agents are lost: the limit of deaths, the company of suspects, and the proof of innocence."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from tests.stages.test_matcher import Agent, Hall
from tocsin.domain.events import Completed, DeadLettered, Dispatched, Failed, RetryScheduled
from tocsin.services.agents import backlogs
from tocsin.stages.matcher.agents import SILENCE_S
from tocsin.stages.matcher.backlog_display import INTERVAL_S

ROUND_S = SILENCE_S + 1
KILLER, INNOCENT = "killer", "innocent"


class Fleet:
    """Agents that die with each task of the job `killer`, and that a supervisor replaces."""

    def __init__(self, hall: Hall, size: int = 0, *, slots: int = 5) -> None:
        self.hall = hall
        self.size = size
        self.slots = slots
        self.agents: list[Agent] = []
        self.deaths = 0
        self.number = 0
        self.done: set[int] = set()
        """The claims that completed."""

    async def start(self) -> Agent:
        self.number += 1
        agent = await self.hall.agent(
            f"01890f3e-0000-7000-8000-{self.number:012}", "mail", max_concurrent_jobs=self.slots
        )
        self.agents.append(agent)
        return agent

    def held(self, agent: Agent) -> list[Dispatched]:
        return [task for assignment, task in agent.got if assignment.claim not in self.done]

    async def completes(self, agent: Agent, job: str) -> None:
        """Report every task of a job that an agent has."""
        for index, (assignment, task) in enumerate(tuple(agent.got)):
            if task.job == job and assignment.claim not in self.done:
                self.done.add(assignment.claim)
                await agent.reports(index)

    async def round(self, *, completes: bool = True) -> None:
        """Replace the dead, let time pass until they are lost, and complete what survived."""
        while len(self.agents) < self.size:
            await self.start()
        await self.hall.work()
        killed = [agent for agent in self.agents if any(task.job == KILLER for task in self.held(agent))]
        self.agents = [agent for agent in self.agents if agent not in killed]
        self.deaths += len(killed)
        for _ in range(2):  # two hold lists, so that the living are never silent
            self.hall.world.clock.advance(ROUND_S / 2)
            for agent in self.agents:
                await agent.holds(*self.held(agent))
        await self.hall.work()
        for agent in self.agents if completes else ():
            await self.completes(agent, INNOCENT)


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    async with AsyncExitStack() as stack:
        yield Hall(stack)


@pytest.mark.parametrize("max_deaths", [1, 2, 3, 5])
@pytest.mark.parametrize("limit", [5, 600])
async def test_task_kills_so_many_agents_and_fails(hall: Hall, max_deaths: int, limit: int) -> None:
    recovery = {} if max_deaths == 3 else {"recovery": {"max_deaths": max_deaths}}
    await hall.job(KILLER, timeout=limit, dead_letter=True, retry={"max_attempts": 100, "max_delay": 0}, **recovery)
    await hall.matcher()
    await hall.trigger(KILLER)
    fleet = Fleet(hall, 1)
    for _ in range(max_deaths + 3):
        await fleet.round()
    assert fleet.deaths == max_deaths
    [failed] = await hall.world.stored(Failed)
    await hall.world.run(hall.world.dead_letter_sink)
    [letter] = await hall.world.stored(DeadLettered)
    assert letter.last_error == failed.error
    assert failed.error is not None
    assert failed.error.type == "worker_lost"
    assert [death.agent[-2:] for death in failed.error.deaths] == [
        f"{number:02}" for number in range(1, max_deaths + 1)
    ]
    for death in failed.error.deaths:
        assert death.last_heartbeat is not None
        assert timedelta(seconds=SILENCE_S) <= death.at - death.last_heartbeat <= timedelta(seconds=ROUND_S)
        assert death.agent in failed.error.message


async def test_attempts_and_deaths_are_counted_apart(hall: Hall) -> None:
    await hall.job(KILLER, timeout=600, retry={"max_attempts": 2, "initial_delay": 0})
    await hall.matcher()
    await hall.trigger(KILLER)
    fleet = Fleet(hall, 1)
    await fleet.round()
    await fleet.round()
    agent = await fleet.start()
    fleet.done.add(agent.got[0][0].claim)
    await agent.reports(outcome="failed")
    assert len(await hall.world.stored(RetryScheduled)) == 1
    await hall.passes(1)
    await fleet.round()
    [failed] = await hall.world.stored(Failed)
    assert failed.error is not None
    assert (failed.attempt, failed.error.type, fleet.deaths) == (2, "worker_lost", 3)


@pytest.mark.parametrize("max_deaths", [3, 5])
async def test_queue_names_jobs_that_lost_two_workers(hall: Hall, max_deaths: int) -> None:
    """The job with another limit is named as early, and no longer after the end."""
    await hall.job(KILLER, timeout=600, recovery={"max_deaths": max_deaths})
    await hall.job(INNOCENT, timeout=600)
    await hall.matcher()
    await hall.trigger(KILLER)
    await hall.trigger(INNOCENT)
    fleet = Fleet(hall, 2)

    async def named() -> tuple[str, ...]:
        await hall.passes(INTERVAL_S)
        return (await backlogs(hall.world.projections))["default"].deadly_jobs

    for deaths in range(max_deaths):
        assert await named() == ((KILLER,) if deaths > 1 else ())
        await fleet.round()
    await hall.trigger(KILLER)
    assert await named() == ()


@pytest.mark.parametrize("agents", [1, 2, 3])
@pytest.mark.parametrize("slots", [1, 2, 5])
async def test_innocent_tasks_survive_their_neighbours(hall: Hall, agents: int, slots: int) -> None:
    """New killers keep coming, and each innocent task needs a whole round."""
    for job in (KILLER, INNOCENT):
        await hall.job(job, timeout=6_000)
    await hall.matcher()
    fleet, rounds = Fleet(hall, agents, slots=slots), 4
    for number in range(rounds * 10):
        if number < rounds:
            for job in (KILLER, INNOCENT, INNOCENT):
                await hall.trigger(job)
        await fleet.round()
    assert len(await hall.world.stored(Completed)) == 2 * rounds
    failures = [(fact.job, fact.error and fact.error.type) for fact in await hall.world.stored(Failed)]
    assert failures == [(KILLER, "worker_lost")] * rounds
    assert fleet.deaths <= 3 * rounds


async def test_agent_gets_one_suspect_at_a_time(hall: Hall) -> None:
    await hall.job(INNOCENT, timeout=600)
    await hall.job(KILLER, timeout=600)
    await hall.matcher()
    for job in (INNOCENT, KILLER, INNOCENT):
        await hall.trigger(job)
    fleet = Fleet(hall, 1)
    await fleet.round(completes=False)
    first, second = await fleet.start(), await fleet.start()
    assert [len(fleet.held(agent)) for agent in (first, second)] == [1, 1]
    await hall.trigger(INNOCENT)
    await hall.trigger(INNOCENT)
    assert [len(fleet.held(agent)) for agent in (first, second)] == [2, 2]
    [suspect] = [agent for agent in (first, second) if agent.got[0][1].job == INNOCENT]
    await fleet.completes(suspect, INNOCENT)
    assert len(fleet.held(suspect)) == 1


async def test_suspect_runs_alone_before_its_last_death(hall: Hall) -> None:
    await hall.job(KILLER, timeout=600, recovery={"max_deaths": 2})
    await hall.job(INNOCENT, timeout=600)
    await hall.matcher()
    fleet = Fleet(hall, slots=3)
    busy = await fleet.start()
    await hall.trigger(INNOCENT)
    await hall.trigger(INNOCENT)
    await fleet.start()
    await hall.trigger(KILLER)
    await fleet.round(completes=False)
    assert fleet.deaths == 1
    await hall.trigger(INNOCENT)
    assert [task.job for task in fleet.held(busy)] == [INNOCENT] * 2, "the agent gets nothing until it is idle"
    await fleet.completes(busy, INNOCENT)
    assert [task.job for task in fleet.held(busy)] == [KILLER]
    idle = await fleet.start()
    assert [task.job for task in fleet.held(idle)] == [INNOCENT]
    await hall.trigger(INNOCENT)
    assert [len(fleet.held(agent)) for agent in (busy, idle)] == [1, 2]
    await fleet.completes(busy, KILLER)
    for _ in range(3):
        await hall.trigger(INNOCENT)
    assert [len(fleet.held(agent)) for agent in (busy, idle)] == [2, 3]


async def test_next_leader_knows_the_suspects(hall: Hall) -> None:
    for job in (KILLER, INNOCENT):
        await hall.job(job, timeout=600)
    first = await hall.matcher()
    await hall.trigger(KILLER)
    await hall.trigger(INNOCENT)
    await Fleet(hall, 1).round(completes=False)
    await hall.stop(first)
    await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=5)
    assert len(agent.got) == 1
