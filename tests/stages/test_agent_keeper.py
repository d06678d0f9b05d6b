"""The agent keeper: registration, silence, commands, and hostile hold lists."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from tests.domain.given import NOON
from tocsin import subjects
from tocsin.adapters.memory.agents import InMemoryAgentChannel
from tocsin.domain import agent
from tocsin.domain.agent import AgentRecord
from tocsin.domain.events import (
    AgentDrainStarted,
    AgentEnded,
    AgentFact,
    AgentFellSilent,
    AgentForgotten,
    AgentGranted,
    AgentRegistered,
    AgentSwitched,
    QueueGrant,
    validated,
)
from tocsin.engine import agent_memory
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.fold import Fold
from tocsin.engine.leader_election import LeaderElection
from tocsin.services.audit import audit
from tocsin.stages.agent_keeper import stage as keeper_stage
from tocsin.stages.agent_keeper.stage import CHANGE_INTERVAL_S, FORGET_ENDED, FORGET_LOST, SILENCE_S, AgentKeeper
from tocsin.subjects import LAYOUT, Bucket
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock, settle

NAME = "mail-1"
ID = "01890f3e-0000-7000-8000-000000000001"


class Office:
    """A log, a channel, and agent keepers."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.clock = ManualClock(NOON)
        self.log = InMemoryEventLog(self.clock)
        self.projections = InMemoryProjections(self.clock)
        self.channel = InMemoryAgentChannel()
        self.numbers = 0
        self._stack = stack
        self._keepers: list[AgentKeeper] = []

    async def keeper(self, *, leads: bool = True, reserved: Collection[str] = ()) -> AgentKeeper:
        """Start another keeper; two may believe that they lead."""
        election = LeaderElection(
            InMemoryProjections(self.clock),
            ClockGuard(self.log, self.clock),
            key="agent-keeper",
            holder="test",
            ttl=1e9,
        )
        if leads:
            await election.run_once()
        keeper = AgentKeeper(
            *(self.log, self.projections, self.channel, election, self.clock), fold=Fold, reserved=reserved
        )
        following = asyncio.create_task(keeper.roster.follow())
        self._stack.callback(following.cancel)
        await self._stack.enter_async_context(self.channel.hold_lists(keeper.receive))
        keeper._listens_since = self.clock.monotonic()
        self._keepers.append(keeper)
        while not keeper.roster.is_complete:
            await settle()
        return keeper

    async def announce(self, name: str = NAME, agent_id: str = ID, **fields: Any) -> None:  # noqa: ANN401 - of a hold list
        self.numbers += 1
        body = {"number": self.numbers, "mode": "enabled", "functions": ["mail/send"], "queues": ["mail"], **fields}
        await self.channel.announce(name, agent_id, json.dumps(body).encode())

    async def round(self) -> None:
        for keeper in self._keepers:
            await settle()
            await keeper.run_once(self.clock.now())

    async def passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.round()

    async def store(self, *facts: AgentFact) -> None:
        for fact in facts:
            stored = await self.log.load(subjects.scope_of(fact))
            await self.log.append(fact, expect=stored[-1].sequence if stored else 0)
        await settle()

    async def facts(self) -> list[AgentFact]:
        recorded = await self.log.read(subjects.agent_events())
        assert audit(recorded).is_clean
        return [r.message for r in recorded if isinstance(r.message, AgentFact)]

    async def kinds(self) -> list[type[AgentFact]]:
        return [type(fact) for fact in await self.facts()]

    async def shown(self) -> list[AgentRecord]:
        entries = await self.projections.entries(Bucket.AGENTS)
        return [AgentRecord.model_validate_json(body) for _, body in sorted(entries.items())]


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    async with AsyncExitStack() as stack:
        yield Office(stack)


async def test_agent_is_registered_and_shown(office: Office) -> None:
    await office.keeper()
    await office.announce(host="h", labels={"zone": "a"}, max_concurrent_jobs=4, held=["j.e.main.1"])
    await office.round()
    [fact] = await office.facts()
    assert isinstance(fact, AgentRegistered)
    assert (fact.name, fact.agent_id, fact.host, fact.labels) == (NAME, ID, "h", {"zone": "a"})
    [record] = await office.shown()
    assert (record.state, record.functions, record.held) == ("ENABLED", ["mail/send"], ["e.main.1"])


async def test_granted_shards_are_shown(office: Office) -> None:
    await office.keeper()
    everything = (QueueGrant(queue="*"),)
    for grants in (
        {"grants": everything},
        {"grants": everything, "shards": ("s1",)},
        {"grants": everything, "shards": ()},
    ):
        await office.store(validated(AgentGranted, {"name": NAME, **grants}))
        await office.announce(shards=["*"])
        await office.passes(CHANGE_INTERVAL_S)
        [record] = await office.shown()
        assert record.granted_shards == (list(grants["shards"]) if "shards" in grants else None)


async def test_unchanged_hold_lists_store_nothing(office: Office) -> None:
    await office.keeper()
    for _ in range(20):
        await office.announce()
        await office.passes(10)
    assert await office.kinds() == [AgentRegistered]


async def test_changes_are_registered_at_bounded_rate(office: Office) -> None:
    await office.keeper()
    for number in range(20):
        await office.announce(functions=[f"f{number}"])
        await office.passes(CHANGE_INTERVAL_S / 10)
    assert len(await office.facts()) == 2
    await office.passes(CHANGE_INTERVAL_S)
    newest = (await office.facts())[-1]
    assert isinstance(newest, AgentRegistered)
    assert newest.functions == ("f19",)


async def test_silent_agent_is_lost_and_returns(office: Office) -> None:
    await office.keeper()
    await office.announce()
    await office.round()
    await office.passes(SILENCE_S - 1)
    assert await office.kinds() == [AgentRegistered]
    await office.passes(1)
    assert await office.kinds() == [AgentRegistered, AgentFellSilent]
    assert [record.state for record in await office.shown()] == ["LOST"]
    await office.announce()
    await office.round()
    assert await office.kinds() == [AgentRegistered, AgentFellSilent, AgentRegistered]
    assert [record.state for record in await office.shown()] == ["ENABLED"]


async def test_new_leader_waits_before_agents_are_lost(office: Office) -> None:
    await office.store(AgentRegistered(name=NAME, agent_id=ID))
    office.clock.advance(1_000)
    await office.keeper()
    await office.passes(SILENCE_S - 1)
    assert await office.kinds() == [AgentRegistered]
    await office.passes(1)
    assert await office.kinds() == [AgentRegistered, AgentFellSilent]


async def test_keeper_without_connection_loses_no_agent(office: Office) -> None:
    await office.keeper()
    await office.announce()
    await office.round()
    office.channel.connections = 0
    await office.passes(10 * SILENCE_S)
    assert await office.kinds() == [AgentRegistered]


async def test_ended_agent_is_gone_and_stays_so(office: Office) -> None:
    await office.keeper()
    await office.announce()
    await office.round()
    await office.announce(ended=True)
    await office.round()
    await office.announce()
    await office.round()
    assert await office.kinds() == [AgentRegistered, AgentEnded]
    assert await office.shown() == []


@pytest.mark.parametrize(("is_ended", "after"), [(True, FORGET_ENDED), (False, FORGET_LOST)])
async def test_agent_that_is_over_is_forgotten(office: Office, is_ended: object, after: timedelta) -> None:
    keeper = await office.keeper()
    await office.announce()
    await office.round()
    if is_ended:
        await office.announce(ended=True)
    await office.passes(SILENCE_S)
    await office.passes(after.total_seconds())
    await office.round()
    assert (await office.kinds())[-1] is AgentForgotten
    assert len(keeper.roster) == 0
    assert await office.shown() == []


async def test_late_and_repeated_hold_lists_change_nothing(office: Office) -> None:
    await office.keeper()
    await office.announce(number=9, functions=["new"])
    await office.round()
    await office.passes(CHANGE_INTERVAL_S)
    for number in (9, 8):
        await office.announce(number=number, functions=["old"])
        await office.round()
    assert await office.kinds() == [AgentRegistered]


@pytest.mark.parametrize("leads", [True, False])
async def test_hold_list_of_a_disabled_name_is_answered(office: Office, leads: object) -> None:
    await office.store(AgentSwitched(name=NAME, enabled=False))
    await office.keeper(leads=bool(leads))
    commands: list[bytes] = []
    async with office.channel.commands(NAME, ID, commands.append):
        await office.announce(mode="starting")
        await office.round()
    assert [json.loads(body) for body in commands] == [{"mode": "disabled", "layout": LAYOUT}]


async def test_drained_agent_is_commanded_until_it_drains(office: Office) -> None:
    await office.keeper()
    await office.announce()
    await office.round()
    await office.store(AgentDrainStarted(name=NAME, agent_id=ID))
    commands: list[bytes] = []
    async with office.channel.commands(NAME, ID, commands.append):
        for mode in ("enabled", "enabled", "draining"):
            await office.announce(mode=mode)
            await office.round()
    assert [json.loads(body) for body in commands] == [{"mode": "draining", "layout": LAYOUT}] * 2
    assert [record.state for record in await office.shown()] == ["DRAINING"]


async def test_two_leaders_store_each_event_once(office: Office) -> None:
    await office.keeper()
    await office.keeper()
    await office.announce()
    await office.round()
    await office.passes(SILENCE_S)
    await office.announce()
    await office.round()
    await office.announce(ended=True)
    await office.round()
    assert await office.kinds() == [AgentRegistered, AgentFellSilent, AgentRegistered, AgentEnded]


HOSTILE: list[tuple[str, str, bytes]] = [
    (NAME, ID, b"no json"),
    (NAME, ID, b"[]"),
    (NAME, ID, b'{"number": 1}'),
    (NAME, ID, b'{"number": 0, "mode": "enabled"}'),
    (NAME, ID, b'{"number": 1, "mode": "lost"}'),
    (NAME, ID, json.dumps({"number": 1, "mode": "enabled", "host": "x" * 256}).encode()),
    (NAME, ID, json.dumps({"number": 1, "mode": "enabled", "host": "\x1b[2J"}).encode()),
    (NAME, ID, json.dumps({"number": 1, "mode": "enabled", "functions": ["f"] * 501}).encode()),
    (NAME, ID, json.dumps({"number": 1, "mode": "enabled", "held": ["e"] * 1_001}).encode()),
    (NAME, ID, b" " * agent.MAX_HOLD_LIST_BYTES + b'{"number": 1, "mode": "enabled"}'),
    ("all.>", ID, b'{"number": 1, "mode": "enabled"}'),
    ("*", ID, b'{"number": 1, "mode": "enabled"}'),
    ("x" * 129, ID, b'{"number": 1, "mode": "enabled"}'),
    (NAME, "all", b'{"number": 1, "mode": "enabled"}'),
    (NAME, "*", b'{"number": 1, "mode": "enabled"}'),
    (NAME, ID.upper() + "A", b'{"number": 1, "mode": "enabled"}'),
]


@pytest.mark.parametrize(("name", "agent_id", "body"), HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_hold_list_is_ignored(office: Office, name: str, agent_id: str, body: bytes) -> None:
    keeper = await office.keeper()
    keeper.receive(name, agent_id, body)
    await office.round()
    assert await office.facts() == []
    assert len(keeper.roster) == 0


def some_id(number: int) -> str:
    return f"{ID[:-12]}{number:012x}"


async def test_processes_of_a_name_are_bounded(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.stages.agent_keeper.roster.MAX_PER_NAME", 3)
    keeper = await office.keeper()
    for number in range(10):
        await office.announce(agent_id=some_id(number))
        await office.round()
    assert len(await office.facts()) == 3
    assert keeper.roster.number(NAME) == 3


async def test_processes_that_are_over_make_room(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_stage, "KEPT_PER_NAME", 3)
    keeper = await office.keeper()
    for number in range(10):
        await office.announce(agent_id=some_id(number))
        await office.round()
        await office.announce(agent_id=some_id(number), ended=True)
        await office.round()
        await office.round()
    kinds = await office.kinds()
    assert kinds.count(AgentRegistered) == kinds.count(AgentEnded) == 10
    assert kinds.count(AgentForgotten) == 7
    assert keeper.roster.number(NAME) == 3


async def test_unknown_id_costs_one_look(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone who may send hold lists may invent ids."""
    monkeypatch.setattr(keeper_stage, "KEPT_PER_NAME", 5)
    keeper = await office.keeper()
    for number in range(5):
        await office.announce(agent_id=some_id(number))
        await office.round()
    for number in (3, 1):
        await office.announce(agent_id=some_id(number), ended=True)
        await office.round()
    looked_at: list[str] = []
    is_live = vars(agent.Agent)["is_live"].fget

    def noted(state: agent.Agent) -> bool:
        looked_at.append(state.registered.agent_id if state.registered is not None else "")
        return bool(is_live(state))

    monkeypatch.setattr(agent.Agent, "is_live", property(noted))
    await office.announce(agent_id=some_id(9))
    for arrived in keeper._inbox.take():
        await keeper._hear(arrived)
    assert set(looked_at) <= {some_id(3)}
    forgotten = [fact.agent_id for fact in await office.facts() if isinstance(fact, AgentForgotten)]
    assert forgotten == [some_id(3)]


async def test_returned_process_is_not_forgotten_for_room(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_stage, "KEPT_PER_NAME", 2)
    keeper = await office.keeper()
    await office.announce(agent_id=some_id(1))
    await office.round()
    await office.passes(SILENCE_S)
    await office.announce(agent_id=some_id(1))
    await office.announce(agent_id=some_id(2))
    await office.round()
    await office.announce(agent_id=some_id(3))
    await office.round()
    assert AgentForgotten not in await office.kinds()
    assert keeper.roster.number(NAME) == 3


async def test_newest_state_counts_after_another_leader_decided(office: Office) -> None:
    """A keeper whose append is refused reads the agent again."""
    keeper = await office.keeper()
    await office.announce()
    await office.round()
    entry = keeper.roster.find(NAME, ID)
    assert entry is not None
    known = entry.state, entry.sequence
    await office.store(AgentDrainStarted(name=NAME, agent_id=ID))
    entry.state, entry.sequence = known  # as if the drain were not followed yet
    await office.passes(SILENCE_S)
    assert await office.kinds() == [AgentRegistered, AgentDrainStarted, AgentFellSilent]
    assert (entry.state.is_draining, entry.state.end) == (True, "lost")
    assert entry.sequence == await office.log.tail(subjects.agent(NAME, ID))


async def test_agent_that_another_leader_registered_is_taken_over(office: Office) -> None:
    keeper = await office.keeper()
    await office.announce()
    keeper.roster.enter(NAME, ID).unjudged = None
    other = AgentRegistered(name=NAME, agent_id=ID, functions=("mail/send",), queues=("mail",))
    await office.log.append(other, expect=0)  # not followed yet
    await keeper.run_once(office.clock.now())
    assert await office.kinds() == [AgentRegistered]
    entry = keeper.roster.find(NAME, ID)
    assert entry is not None
    assert (entry.state.registered, entry.sequence) == (other, await office.log.tail(subjects.agent(NAME, ID)))


async def test_agents_are_bounded(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.stages.agent_keeper.roster.MAX_AGENTS", 5)
    keeper = await office.keeper()
    for number in range(20):
        await office.announce(name=f"n{number}", agent_id=some_id(number))
    await office.round()
    assert len(await office.facts()) == 5
    assert len(keeper.roster) == 5


async def test_invented_agents_silence_no_other(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.engine.hold_list_inbox.MAX_AGENTS", 4)
    keeper = await office.keeper()
    await office.announce()
    await office.round()
    for number in range(1, 9):
        await office.announce(name=f"n{number}", agent_id=some_id(number))
    await office.announce(held=["heard.again.main.1"])
    await office.round()
    entry = keeper.roster.find(NAME, ID)
    assert entry is not None
    assert entry.held == ("heard.again.main.1",)


async def test_memory_of_a_name_is_limited(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_memory, "MAX_BYTES_PER_NAME", 100_000)
    keeper = await office.keeper()
    await office.announce(held=["j.e.main.1"])
    await office.round()
    large: dict[str, Any] = {"functions": [f"{n}" + "x" * 200 for n in range(100)], "labels": {"a": "b" * 200}}
    for number in range(2, 20):
        await office.announce("thief", some_id(number), **large)
        await office.round()
    assert 0 < keeper.roster.number("thief") < 5
    for number in range(2, 5):
        await office.announce("thief", some_id(number), ended=True, **large)
    await office.announce(held=["j.e.other.1"])
    await office.passes(SILENCE_S)
    kinds = Counter((fact.name, type(fact)) for fact in await office.facts())
    assert kinds["thief", AgentEnded] == kinds["thief", AgentRegistered] == keeper.roster.number("thief")
    assert [record.held for record in await office.shown()] == [["e.other.1"]]


async def test_agent_without_room_for_more_lives_on(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_memory, "MAX_BYTES_PER_NAME", 20_000)
    await office.keeper()
    await office.announce(held=["j.e.main.1"])
    await office.round()
    for _ in range(3):
        await office.announce(held=[f"j.{n}.main.1" for n in range(1_000)])
        await office.passes(SILENCE_S / 2)
    assert await office.kinds() == [AgentRegistered]
    [record] = await office.shown()
    assert (record.state, record.held) == ("ENABLED", ["e.main.1"])


@pytest.mark.parametrize("repeats", ["processes", "changes"])
async def test_registrations_of_others_are_limited_in_bytes(
    office: Office, monkeypatch: pytest.MonkeyPatch, repeats: str
) -> None:
    monkeypatch.setattr(keeper_stage, "BYTES_AT_ONCE", 50_000)
    monkeypatch.setattr(keeper_stage, "BYTES_PER_S", 100)
    await office.keeper(reserved=["mail"])
    for number in range(40):
        agent_id = some_id(number if repeats == "processes" else 1)
        await office.announce(
            f"thief-{number % 3}", agent_id, functions=[f"{number}-{n}" + "x" * 200 for n in range(25)]
        )
        await office.passes(CHANGE_INTERVAL_S)
        if repeats == "processes":
            await office.announce(f"thief-{number % 3}", agent_id, ended=True)
    stored = sum(len(fact.encode()) for fact in await office.facts() if isinstance(fact, AgentRegistered))
    assert 50_000 < stored < 50_000 + 100 * 40 * CHANGE_INTERVAL_S + 6_000
    await office.announce("mail", some_id(100))
    await office.round()
    assert "mail" in {fact.name for fact in await office.facts()}


async def test_agent_over_the_limit_registers_later(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_stage, "BYTES_AT_ONCE", 1_000)
    monkeypatch.setattr(keeper_stage, "BYTES_PER_S", 100)
    await office.keeper()
    await office.announce(functions=["x" * 200, "y" * 200, "z" * 200])
    await office.announce("late", some_id(2), functions=["x" * 200, "y" * 200, "z" * 200])
    for _ in range(2):
        await office.announce("late", some_id(2), functions=["x" * 200, "y" * 200, "z" * 200])
        await office.round()
        assert [fact.name for fact in await office.facts()] == [NAME]
    await office.passes(SILENCE_S / 3)
    await office.announce("late", some_id(2), functions=["x" * 200, "y" * 200, "z" * 200])
    await office.round()
    assert [fact.name for fact in await office.facts()] == [NAME, "late"]


async def test_standby_keeps_no_list_that_is_registered(office: Office) -> None:
    await office.keeper()
    standby = await office.keeper(leads=False)
    for _ in range(2):
        await office.announce()
        await office.round()
    await office.round()
    entry = standby.roster.find(NAME, ID)
    assert entry is not None
    assert entry.unjudged is None


async def test_account_of_an_agent_has_own_room(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tocsin.engine.hold_list_inbox", "tocsin.stages.agent_keeper.roster"):
        monkeypatch.setattr(f"{module}.MAX_AGENTS", 4)
        monkeypatch.setattr(f"{module}.MAX_PER_NAME", 2)
    keeper = await office.keeper(reserved=["mail"])
    for number in range(1, 9):
        await office.announce(name=f"n{number}", agent_id=some_id(number))
    for number in range(9, 13):
        await office.announce(name="mail", agent_id=some_id(number))
    await office.round()
    assert (len(keeper.roster), keeper.roster.number("mail")) == (4 + 2, 2)


async def test_standby_drops_agents_that_never_registered(office: Office) -> None:
    keeper = await office.keeper(leads=False)
    await office.announce()
    await office.round()
    assert len(keeper.roster) == 1
    await office.passes(SILENCE_S)
    assert len(keeper.roster) == 0
    assert await office.facts() == []


async def test_left_over_entries_are_removed(office: Office) -> None:
    await office.projections.put(Bucket.AGENTS, f"gone.{ID}", b"{}")
    await office.keeper()
    await office.round()
    assert await office.projections.entries(Bucket.AGENTS) == {}
