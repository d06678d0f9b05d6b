"""Waiting for a run survives a lost connection, and ends when the token does."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from tests.client.conftest import Functions, Site
from tests.ports import free_port
from tests.system.running import DEADLINE, running
from tocsin import Client
from tocsin.adapters.http.api import events
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.adapters.nats.server.embedded import EmbeddedServer
from tocsin.bootstrap.api_server import serving
from tocsin.domain.access import Role
from tocsin.domain.events import Completed
from tocsin.ports import NotPermitted

JOB = {"name": "hold", "function": "hold"}


async def test_restart_of_the_api_is_survived(nats_url: str, tmp_path: Path) -> None:
    functions = Functions()
    server = {"port": free_port()}
    async with running(
        nats_url, tmp_path, worker=functions.worker(), server=server, metrics={"enabled": False}
    ) as tocsin:
        await tocsin.apply(JOB)
        async with Client(url=f"http://127.0.0.1:{server['port']}") as client:
            async with serving(tocsin.installation):
                run = await client.trigger("hold")
                waiting = asyncio.create_task(run.result(DEADLINE))
                await functions.started.wait()
                assert await run.status() == "running"
            functions.released.set()
            await tocsin.ended("hold", Completed)
            assert not waiting.done()
            async with serving(tocsin.installation):
                assert await waiting == "released"


async def test_restart_of_nats_is_survived(tmp_path: Path) -> None:
    functions = Functions()
    nats = EmbeddedServer(tmp_path / "nats", port=free_port())
    server = nats.start()
    try:
        async with running(server.url, tmp_path, worker=functions.worker(), metrics={"enabled": False}) as tocsin:
            await tocsin.apply(JOB)
            async with Client(settings=tocsin.settings) as client:
                waiting = asyncio.create_task((await client.trigger("hold")).result(4 * DEADLINE))
                await functions.started.wait()
                await asyncio.to_thread(server.stop)
                server = await asyncio.to_thread(nats.start)
                functions.released.set()
                assert await waiting == "released"
    finally:
        server.stop()


async def test_expired_token_ends_the_wait(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.05)
    installation = site.running.installation
    tokens = Tokens(installation.projections, installation.clock)
    token, _ = await tokens.create("ada", [Role.OPERATOR, Role.VIEWER], lifetime=timedelta(seconds=3))
    async with Client(url=site.url, token=token) as client:
        with pytest.raises(NotPermitted, match="expired") as caught:
            await (await client.trigger("hold")).result(DEADLINE)
    assert caught.value.code == "not-permitted"


async def test_missing_right_is_named(site: Site) -> None:
    installation = site.running.installation
    token, _ = await Tokens(installation.projections, installation.clock).create("eve", [Role.VIEWER])
    async with Client(url=site.url, token=token) as client:
        assert (await client.job("hold")).name == "hold"
        with pytest.raises(NotPermitted, match="trigger"):
            await client.trigger("hold")
    async with Client(url=site.url, token="tocsin_wrong") as client:
        with pytest.raises(NotPermitted, match="token"):
            await client.jobs()
