"""The behaviour of the channel between agents and the agent keeper."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.conformance.worlds import PATIENCE, fresh_names
from tocsin.adapters.memory.agents import InMemoryAgentChannel
from tocsin.adapters.nats.agents import NatsAgentChannel
from tocsin.adapters.nats.client.connection import connect
from tocsin.ports import AgentChannel, HandOver, MessageTooLarge

ID = "01890f3e-0000-7000-8000-000000000001"
OTHER = "01890f3e-0000-7000-8000-000000000002"


@pytest.fixture(params=["memory", "nats"])
async def channel(request: pytest.FixtureRequest) -> AsyncIterator[AgentChannel]:
    if request.param == "memory":
        yield InMemoryAgentChannel()
        return
    async with connect(request.getfixturevalue("nats_url")) as connection:
        yield NatsAgentChannel(connection, fresh_names())


async def until(happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not happened():  # noqa: ASYNC110 - a message is received by a callback
            await asyncio.sleep(0.01)


async def test_hold_list_reaches_every_keeper(channel: AgentChannel) -> None:
    one: list[tuple[str, str, bytes]] = []
    other: list[tuple[str, str, bytes]] = []
    async with (
        channel.hold_lists(lambda *given: one.append(given)),
        channel.hold_lists(lambda *given: other.append(given)),
    ):
        await channel.announce("mail-1", ID, b"held")
        await until(lambda: one and other)
    assert one == other == [("mail-1", ID, b"held")]


async def test_sent_hold_lists_arrive_before_catching_up(channel: AgentChannel) -> None:
    heard: list[bytes] = []
    async with channel.hold_lists(lambda _, __, body: heard.append(body)):
        for number in range(100):
            await channel.announce("mail-1", ID, b"%d" % number)
        await channel.catch_up()
        assert heard == [b"%d" % number for number in range(100)]


async def test_hold_list_without_a_keeper_is_not_heard(channel: AgentChannel) -> None:
    assert not await channel.is_heard("mail-1", ID, b"held", wait=PATIENCE)


async def test_hold_list_with_a_keeper_is_heard(channel: AgentChannel) -> None:
    heard: list[bytes] = []
    async with channel.hold_lists(lambda _, __, body: heard.append(body)):
        assert await channel.is_heard("mail-1", ID, b"held", wait=0.1)
        await until(lambda: heard)
    assert heard == [b"held"]


async def test_command_reaches_its_agent_only(channel: AgentChannel) -> None:
    own: list[bytes] = []
    others: list[bytes] = []
    async with (
        channel.commands("mail-1", ID, own.append),
        channel.commands("mail-1", OTHER, others.append),
        channel.commands("mail-2", ID, others.append),
    ):
        await channel.command("mail-1", ID, b"stop")
        await until(lambda: own)
    assert own == [b"stop"]
    assert others == []


async def test_notice_reaches_its_agent_only(channel: AgentChannel) -> None:
    own: list[bytes] = []
    others: list[bytes] = []
    async with (
        channel.ends("mail-1", ID, own.append),
        channel.ends("mail-1", OTHER, others.append),
        channel.commands("mail-1", ID, others.append),
        channel.tasks("mail-1", ID, others.append),
    ):
        await channel.send_ends("mail-1", ID, b"over")
        await until(lambda: own)
    assert own == [b"over"]
    assert others == []


async def test_oversize_message_is_refused(channel: AgentChannel) -> None:
    body = b"x" * (64 * 1_048_576)
    with pytest.raises(MessageTooLarge):
        await channel.announce("mail-1", ID, body)
    with pytest.raises(MessageTooLarge):
        await channel.is_heard("mail-1", ID, body, wait=0.1)
    with pytest.raises(MessageTooLarge):
        await channel.send_ends("mail-1", ID, body)
    assert channel.connections == 1


async def test_task_reaches_its_agent_only(channel: AgentChannel) -> None:
    own: list[bytes] = []
    others: list[bytes] = []
    absences: list[tuple[str, int]] = []
    async with (
        channel.tasks("mail-1", ID, own.append),
        channel.tasks("mail-1", OTHER, others.append),
        channel.commands("mail-1", ID, others.append),
        channel.absences(lambda *given: absences.append(given)),
    ):
        assert await channel.hand_over([HandOver("mail-1", ID, 7, b"one"), HandOver("mail-1", ID, 8, b"two")]) == []
        await until(lambda: len(own) == 2)
    assert own == [b"one", b"two"]
    assert (others, absences) == ([], [])


async def test_task_without_a_listener_is_reported(channel: AgentChannel) -> None:
    absences: list[tuple[str, int]] = []
    own: list[bytes] = []
    async with (
        channel.tasks("mail-1", OTHER, own.append),
        channel.absences(lambda *given: absences.append(given)),
    ):
        await channel.hand_over([HandOver("mail-1", ID, 7, b"one"), HandOver("mail-1", OTHER, 8, b"two")])
        await until(lambda: absences and own)
    assert absences == [(ID, 7)]
    assert own == [b"two"]


async def test_oversize_task_is_returned_and_others_sent(channel: AgentChannel) -> None:
    own: list[bytes] = []
    oversize = HandOver("mail-1", ID, 7, b"x" * (64 * 1_048_576))
    async with channel.tasks("mail-1", ID, own.append):
        assert await channel.hand_over([oversize, HandOver("mail-1", ID, 8, b"two")]) == [oversize]
        await until(lambda: own)
    assert own == [b"two"]


async def test_roll_call_reaches_every_agent(channel: AgentChannel) -> None:
    called: list[str] = []
    async with (
        channel.roll_calls(lambda: called.append("one")),
        channel.roll_calls(lambda: called.append("other")),
    ):
        await channel.call_roll()
        await until(lambda: len(called) == 2)
    assert sorted(called) == ["one", "other"]
