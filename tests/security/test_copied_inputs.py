"""Replies that a reader of the streams addresses to subjects of inputs: they repeat no request.

Users within the account of the installation bound mistakes only. What such a user copies still starts nothing.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.installations import connected, installed
from tests.security.server import Server
from tests.system.running import DEADLINE, Running, running
from tocsin import bootstrap
from tocsin.bootstrap import STAGE_NAMES
from tocsin.domain.events import Admitted, PoisonMessage
from tocsin.engine.report_lists import _COPIED

HEADER = {"Nats-Stream": "SHOP_REQUESTS"}
"""What the server adds to a message that it publishes again for a program's own stream."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with installed(tmp_path_factory.mktemp("copied")) as running:
        yield running


async def test_copied_request_starts_nothing(secured: Server, tmp_path: Path) -> None:
    async with (
        connected(secured, tmp_path, "scheduler") as scheduler,
        connected(secured, tmp_path, "operator") as operator,
        connected(secured, tmp_path, "public-shop") as shop,
        connected(secured, tmp_path, "viewer") as viewer,
    ):
        tocsin = Running(operator)
        await tocsin.apply({"name": "once", "function": "f", "overlap_policy": "allow"})
        stages = asyncio.create_task(bootstrap.run_stages(scheduler, STAGE_NAMES))
        try:
            await shop.connection.client.request("cron.trigger.once", b"{}", timeout=DEADLINE, headers=HEADER)
            await tocsin.ended("once", Admitted)
            for subject in ("tocsin.0.trigger.once", "tocsin.outside.shop.trigger.once"):
                first = json.dumps({"seq": 1}).encode()
                await viewer.connection.client.publish("$JS.API.DIRECT.GET.TOCSIN_INPUTS", first, reply=subject)
            letters = await tocsin.stored("dead-letter.once.>", PoisonMessage, 2)
            assert {letter.message.code for letter in letters} == {"undecodable-message"}
            assert len(await tocsin.of_executions("once", Admitted)) == 1
        finally:
            stages.cancel()
            await asyncio.gather(stages, return_exceptions=True)


async def test_copied_commit_is_named_as_a_copy(nats_url: str, tmp_path: Path) -> None:
    async with running(nats_url, tmp_path) as tocsin:
        names, client = tocsin.installation.names, tocsin.installation.connection.client
        await tocsin.apply({"name": "once", "function": "f"})
        read = f"$JS.API.DIRECT.GET.{names.commits_stream}"
        await client.publish(read, json.dumps({"seq": 1}).encode(), reply=names.to_wire("trigger.once"))
        [letter] = await tocsin.stored("dead-letter.once.>", PoisonMessage, 1)
        assert letter.message.reason == f"unreadable: {_COPIED}"
