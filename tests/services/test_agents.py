"""Decisions about agents right after their registration, before the bucket shows them."""

import pytest

from tocsin import subjects
from tocsin.domain import agent
from tocsin.domain.agent import AgentRecord, AgentState, WorkerKind
from tocsin.domain.events import OF_THE_NAME, AgentDrainStarted, AgentEnded, AgentFact, AgentFellSilent, AgentRegistered
from tocsin.engine.outside_workers import OutsideName
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

    async def heard(self, name: OutsideName, kind: WorkerKind = "http", state: AgentState = AgentState.ENABLED) -> str:
        """Show a worker that does not register, and return its id."""
        record = AgentRecord(name=name.worker, agent_id=name.token, kind=kind, state=state)
        await self.projections.put(Bucket.AGENTS, f"{kind}.{name.token}", record.model_dump_json().encode())
        return name.token

    async def mode(self, name: OutsideName) -> str:
        return await self.registry.mode_over_http(name.identity, name.worker)

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


FETCHER = OutsideName("token:ann", "w.1 (eu)")


@pytest.mark.parametrize("name", [FETCHER.worker, FETCHER.token])
async def test_worker_over_http_is_switched(office: Office, name: str) -> None:
    await office.heard(FETCHER)
    await office.heard(OutsideName("token:bob", "w2"))
    assert await office.mode(FETCHER) == "enabled"
    for enabled, changed in ((False, True), (False, False), (True, True), (True, False)):
        assert await office.registry.switch(name, enabled=enabled) is changed
        assert await office.mode(FETCHER) == ("enabled" if enabled else "disabled")
    assert await office.mode(OutsideName("token:bob", "w2")) == "enabled"


@pytest.mark.parametrize("state", [AgentState.ENABLED, AgentState.LOST])
async def test_worker_over_http_drains_until_enabled(office: Office, state: AgentState) -> None:
    """A worker that is quiet neither fetches nor holds jobs, so it may look lost."""
    await office.heard(FETCHER, state=state)
    await office.registry.switch(FETCHER.token, enabled=False)
    assert [record.agent_id for record in await office.registry.drain(FETCHER.worker)] == [FETCHER.token]
    assert await office.registry.drain(FETCHER.worker) == ()
    assert await office.registry.switch(FETCHER.token, enabled=False) is False
    assert await office.mode(FETCHER) == "draining"
    assert await office.registry.switch(FETCHER.token, enabled=True) is True
    assert await office.mode(FETCHER) == "enabled"


async def test_id_of_a_forgotten_worker_is_enabled(office: Office) -> None:
    await office.heard(FETCHER)
    await office.registry.drain(FETCHER.token)
    await office.projections.remove(Bucket.AGENTS, f"http.{FETCHER.token}")
    assert await office.registry.switch(FETCHER.token, enabled=True) is True
    assert await office.mode(FETCHER) == "enabled"


async def test_name_of_both_kinds_is_switched(office: Office) -> None:
    namesake = OutsideName("token:ann", NAME)
    await office.heard(namesake)
    assert await office.registry.switch(NAME, enabled=False) is True
    assert await office.mode(namesake) == "disabled"
    assert await office.log.tail(subjects.agent(NAME, OF_THE_NAME))
    assert {record.agent_id for record in await office.registry.drain(NAME)} == {IDS[0], namesake.token}


@pytest.mark.parametrize("is_bound", [True, False])
async def test_only_unbound_callers_enable_absent_agents(office: Office, *, is_bound: bool) -> None:
    """A worker over HTTP chooses its name, which may be that of an agent whose processes are stopped."""
    await office.registry.switch("other", enabled=False)
    await office.store(AgentEnded(name="other", agent_id=IDS[3]))
    await office.heard(OutsideName("token:ann", "other"))
    tail = await office.log.tail(subjects.agent("other", OF_THE_NAME))
    assert await office.registry.switch("other", enabled=True, is_bound=is_bound) is not is_bound
    assert (await office.log.tail(subjects.agent("other", OF_THE_NAME)) == tail) is is_bound
    assert await office.registry.switch("other", enabled=True, is_bound=is_bound) is False


async def test_executor_of_the_queue_cannot_be_switched(office: Office) -> None:
    executor = await office.heard(OutsideName("mq", "e1"), "mq")
    for name in ("e1", executor):
        with pytest.raises(NotFound, match="tocsin queues pause"):
            await office.registry.drain(name)
        with pytest.raises(NotFound, match="tocsin queues pause"):
            await office.registry.switch(name, enabled=False)
