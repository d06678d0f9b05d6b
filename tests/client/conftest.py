"""One installation on a real server with its real API, and a client of each kind."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.system.running import Running, running
from tocsin import Client, Context, NonRetryableError, SyncClient, Worker
from tocsin.bootstrap.api_server import serving

TRANSPORTS = ("nats", "http")
JOBS: tuple[dict[str, Any], ...] = (
    {"name": "echo", "function": "echo"},
    {"name": "fail", "function": "fail", "dead_letter": True},
    {"name": "hold", "function": "hold", "overlap_policy": "skip"},
    {"name": "huge", "function": "huge"},
    {"name": "strict", "function": "echo", "input_schema": {"required": ["day"]}},
    {
        "name": "graph",
        "dag": [
            {"name": "a", "function": "name"},
            {"name": "b", "function": "name", "depends_on": ["a"]},
            {"name": "c", "function": "name", "depends_on": ["a"]},
        ],
    },
    {
        "name": "broken",
        "dag": [{"name": "a", "function": "name"}, {"name": "b", "function": "fail", "depends_on": ["a"]}],
    },
)


@dataclass
class Functions:
    """The handlers of the worker, and what holds them."""

    released: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    is_broken: bool = True

    def worker(self) -> Worker:
        """A worker with every handler."""
        worker = Worker(concurrency=100)
        for function in (self.echo, self.fail, self.hold, self.huge, self.name, self.report):
            worker.task(function.__name__)(function)
        return worker

    async def echo(self, context: Context) -> Any:  # noqa: ANN401 - any input
        return {"shard": context.shard, **context.input} if context.shard else context.input

    async def fail(self, _: Context) -> str:
        if self.is_broken:
            raise NonRetryableError("no disk")
        return "repaired"

    async def hold(self, _: Context) -> str:
        self.started.set()
        await self.released.wait()
        return "released"

    async def huge(self, _: Context) -> str:
        return "x" * 2_000_000

    async def report(self, _: Context) -> dict[str, int]:
        return {"rows": 3}

    async def name(self, context: Context) -> str:
        return context.step


@dataclass
class Site:
    """An installation, its API, and makers of clients."""

    running: Running
    url: str
    functions: Functions

    def client(self, transport: str) -> Client:
        """A client that is not open."""
        return Client(url=self.url) if transport == "http" else Client(settings=self.running.settings)

    def blocking(self, transport: str) -> SyncClient:
        """A blocking client that is not open."""
        return SyncClient(url=self.url) if transport == "http" else SyncClient(settings=self.running.settings)


@pytest.fixture
async def site(nats_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    functions = Functions()
    server = {"port": 0}
    async with (
        running(nats_url, tmp_path, worker=functions.worker(), server=server, metrics={"enabled": False}) as tocsin,
        serving(tocsin.installation) as url,
    ):
        await tocsin.apply(*JOBS)
        yield Site(tocsin, url, functions)
        functions.released.set()


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(site: Site, transport: str) -> AsyncIterator[Client]:
    async with site.client(transport) as client:
        yield client


async def in_thread(do: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the function returns
    """Call a blocking function, as a program without an event loop does."""
    return await asyncio.to_thread(do)
