"""Decisions about agents right after their registration, before the bucket shows them."""

import pytest

from tocsin import subjects
from tocsin.domain import agent
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import OF_THE_NAME, AgentDrainStarted, AgentEnded, AgentFact, AgentFellSilent, AgentRegistered
from tocsin.services.agents import AgentRegistry
from tocsin.services.operations.errors import NotFound
from tocsin.subjects import Bucket
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock

NAME = "mail-1"
IDS = [f"01890f3e-0000-7000-8000-00000000000{number}" for number in range(4)]


class Office:
    """A log with agents, and an empty bucket."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.log = InMemoryEventLog(clock)
        self.projections = InMemoryProjections(clock)
        self.registry = AgentRegistry(self.log, self.projections)

    async def store(self, *facts: AgentFact) -> None:
        for fact in facts:
            await self.log.append(fact, expect=await self.log.tail(subjects.scope_of(fact)))

    async def state(self, agent_id: str) -> agent.Agent:
        return agent.fold(await self.log.load(subjects.agent(NAME, agent_id)))


@pytest.fixture
async def office() -> Office:
    office = Office()
    await office.store(*(AgentRegistered(name=NAME, agent_id=agent_id) for agent_id in IDS[:3]))
    await office.store(
        AgentEnded(name=NAME, agent_id=IDS[1]), AgentFellSilent(name=NAME, agent_id=IDS[2], silent_for=30.0)
    )
    await office.store(AgentRegistered(name="other", agent_id=IDS[3]))
    return office


async def test_registered_name_is_disabled_at_once(office: Office) -> None:
    assert await office.registry.switch(NAME, enabled=False) is True
    assert await office.registry.switch(NAME, enabled=False) is False
    assert await office.log.tail(subjects.agent(NAME, OF_THE_NAME))


@pytest.mark.parametrize("name", [NAME, IDS[0]])
async def test_registered_process_drains_at_once(office: Office, name: str) -> None:
    assert [record.agent_id for record in await office.registry.drain(name)] == [IDS[0]]
    assert await office.registry.drain(name) == ()
    assert [(await office.state(agent_id)).is_draining for agent_id in IDS[:3]] == [True, False, False]
    assert not [r for r in await office.log.read("agent.other.>") if isinstance(r.message, AgentDrainStarted)]


async def test_process_beside_a_shown_process_drains(office: Office) -> None:
    shown = AgentRecord(name=NAME, agent_id=IDS[2], state=AgentState.LOST)
    await office.projections.put(Bucket.AGENTS, f"{NAME}.{IDS[2]}", shown.model_dump_json().encode())
    assert [record.agent_id for record in await office.registry.drain(NAME)] == [IDS[0]]


@pytest.mark.parametrize("name", ["mail-2", IDS[1], "*", ">", "mail-1.>", "a b", ""])
async def test_unknown_or_ended_agent_is_not_found(office: Office, name: str) -> None:
    with pytest.raises(NotFound):
        await office.registry.drain(name)
    with pytest.raises(NotFound):
        await office.registry.switch(name, enabled=False)


async def test_name_whose_agents_all_ended_is_not_found(office: Office) -> None:
    await office.store(AgentEnded(name="other", agent_id=IDS[3]))
    with pytest.raises(NotFound):
        await office.registry.switch("other", enabled=False)
