"""The behaviour of the channel between the API and the matcher."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.conformance.worlds import PATIENCE, fresh_names
from tocsin.adapters.memory.agents import InMemoryFetchChannel
from tocsin.adapters.nats.agents import NatsFetchChannel
from tocsin.adapters.nats.client.connection import connect
from tocsin.ports import FetchChannel, LogUnavailable, MessageTooLarge

ONE = "01890f3e-0000-7000-8000-000000000001"
OTHER = "01890f3e-0000-7000-8000-000000000002"


@pytest.fixture(params=["memory", "nats"])
async def channel(request: pytest.FixtureRequest) -> AsyncIterator[FetchChannel]:
    if request.param == "memory":
        yield InMemoryFetchChannel()
        return
    async with connect(request.getfixturevalue("nats_url")) as connection:
        yield NatsFetchChannel(connection, fresh_names())


async def until(happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not happened():  # noqa: ASYNC110 - a message is received by a callback
            await asyncio.sleep(0.01)


async def test_request_reaches_every_matcher_in_order(channel: FetchChannel) -> None:
    one: list[bytes] = []
    other: list[bytes] = []
    async with channel.requests(one.append), channel.requests(other.append):
        await channel.request(b"first")
        await channel.request(b"second")
        await until(lambda: len(one) == len(other) == 2)
    assert one == other == [b"first", b"second"]


async def test_answer_reaches_its_gateway_only(channel: FetchChannel) -> None:
    own: list[bytes] = []
    others: list[bytes] = []
    async with channel.answers(ONE, own.append), channel.answers(OTHER, others.append), channel.requests(others.append):
        await channel.answer(ONE, b"served")
        await until(lambda: own)
    assert (own, others) == ([b"served"], [])


async def test_call_reaches_every_gateway(channel: FetchChannel) -> None:
    called: list[str] = []
    async with channel.calls(lambda: called.append("one")), channel.calls(lambda: called.append("other")):
        await channel.call_fetches()
        await until(lambda: len(called) == 2)
    assert sorted(called) == ["one", "other"]


async def test_nothing_is_received_after_the_block(channel: FetchChannel) -> None:
    early: list[bytes] = []
    late: list[bytes] = []
    async with channel.requests(early.append):
        pass
    async with channel.requests(late.append):
        await channel.request(b"fetch")
        await until(lambda: late)
    assert early == []


async def test_oversize_message_is_refused(channel: FetchChannel) -> None:
    body = b"x" * (64 * 1_048_576)
    with pytest.raises(MessageTooLarge):
        await channel.request(body)
    with pytest.raises(MessageTooLarge):
        await channel.answer(ONE, body)


async def test_message_without_a_connection_is_refused(request: pytest.FixtureRequest) -> None:
    memory = InMemoryFetchChannel()
    memory.is_connected = False
    async with connect(request.getfixturevalue("nats_url")) as connection:
        closed = NatsFetchChannel(connection, fresh_names())
    for channel in (memory, closed):
        for send in (channel.request(b"fetch"), channel.answer(ONE, b"served"), channel.call_fetches()):
            with pytest.raises(LogUnavailable):
                await send
