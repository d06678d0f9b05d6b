"""A program behind a leaf node of its account, with and without the screener: it triggers jobs, and stops nothing."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error

from tests.security.installations import PASSWORD, connected
from tests.security.leaf_nodes import Servers, hub_and_leaf
from tests.security.server import DEADLINE, Server
from tests.security.test_outside_accounts import ASKED, HEADERS, REPLIES, everything
from tests.security.test_outside_requests import deciding
from tests.security.test_screening import screening
from tests.system.running import Running
from tocsin.domain.events import Admitted

USER: Final = "public-shop"
OWN: Final = 5
REQUESTS: Final = ("STREAM.PURGE.TOCSIN_LOG", "STREAM.INFO.TOCSIN_LOG", "DIRECT.GET.TOCSIN_LEDGER")


@pytest.fixture(params=[False, True], ids=["direct", "screened"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    with hub_and_leaf(tmp_path, user=USER, account="PUBLIC_SHOP", screened=request.param) as running:
        yield running


@asynccontextmanager
async def program(at: Server) -> AsyncIterator[Client]:
    """Connect to the leaf node, whose users have no rules."""
    client = await nats.connect(at.url, user=USER, password=PASSWORD)
    try:
        yield client
    finally:
        await client.close()


async def accepted(client: Client, subject: str) -> dict[str, Any]:
    """Publish until the message is stored: the servers and the screener have to know each other."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            return dict(json.loads((await client.request(subject, b"{}", timeout=1)).data))
        except Error:
            assert time.monotonic() < end, "no message is stored"
            await asyncio.sleep(0.1)


async def test_program_behind_a_leaf_node_triggers(servers: Servers, tmp_path: Path) -> None:
    async with (
        connected(servers.hub, tmp_path, "operator") as operator,
        deciding(servers.hub, tmp_path),
        program(servers.leaf) as shop,
    ):
        tocsin = Running(operator)
        await tocsin.apply({"name": "victim", "function": "f"})
        assert (await accepted(shop, "cron.trigger.victim"))["stream"] == "TOCSIN_INPUTS"
        [begun] = await tocsin.ended("victim", Admitted)
        assert begun.by is not None
        assert (begun.by.identity, begun.by.kind) == ("shop", "program")


async def test_leaf_node_opens_nothing_to_programs(servers: Servers, tmp_path: Path) -> None:
    """Every hostile header, reply subject and request, from a user without rules."""
    subjects = (*REPLIES, *ASKED[USER], *(f"$JS.API.{request}" for request in REQUESTS))
    async with AsyncExitStack() as stack:
        operator = await stack.enter_async_context(connected(servers.hub, tmp_path, "operator"))
        await Running(operator).apply({"name": "victim", "function": "f"})
        if servers.hub.is_screened:
            await stack.enter_async_context(screening(servers.hub, tmp_path))
        shop = await stack.enter_async_context(program(servers.leaf))
        await accepted(shop, "cron.trigger.victim")
        before = await everything(operator, USER)
        for subject in subjects:
            for headers in HEADERS:
                await shop.publish(subject, b"{}", headers=headers)
            for reply in REPLIES:
                await shop.publish(subject, b"{}", reply=reply)
        await shop.flush()
        await accepted(shop, "cron.trigger.victim")  # all earlier messages were handled
        assert await everything(operator, USER) == before


async def test_flood_from_a_leaf_stops_no_job(servers: Servers, tmp_path: Path) -> None:
    async with (
        connected(servers.hub, tmp_path, "operator") as operator,
        deciding(servers.hub, tmp_path),
        program(servers.leaf) as shop,
    ):
        tocsin = Running(operator)
        tocsin.patience = 60.0
        await tocsin.apply({"name": "own", "function": "f", "overlap_policy": "allow"})
        await accepted(shop, "cron.trigger.unknown")

        async def flood() -> None:
            for number in count():
                await shop.publish(f"cron.trigger.unknown-{number % 50}", b"x" * 1_000)
                if not number % 500:
                    await shop.flush()

        flooding = asyncio.create_task(flood())
        for number in range(OWN):
            await tocsin.trigger("own")
            await tocsin.ended("own", Admitted, number + 1)
        assert not flooding.done()
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
