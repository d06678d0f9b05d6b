"""Throw-away NATS servers, one or a cluster of three, and an installation on them."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin import bootstrap
from tocsin.adapters.nats.server.cluster import EmbeddedCluster
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.bootstrap import Installation
from tocsin.ports import LogUnavailable
from tocsin.settings import Settings

READY_WITHIN: Final = 300.0
"""Seconds; the server may have to read a store of millions of messages."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Running NATS servers.

    Attributes:
        settings: settings that use the servers, and a folder for the history.
        pids: their process ids, by name.
        stores: the folders of their streams.
    """

    settings: Settings
    pids: Mapping[str, int]
    stores: tuple[Path, ...]


@asynccontextmanager
async def servers(*, sync_always: bool = False, nodes: int = 1, folder: Path | None = None) -> AsyncIterator[Servers]:
    """Start NATS servers, and stop them after the block.

    Args:
        sync_always: flush every write to disk before acknowledging it.
        nodes: 1, or 3 for a cluster in which every node stores every stream.
        folder: a folder that keeps all data; None: a temporary folder.
    """
    with ExitStack() as stack:
        home = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tocsin-benchmark-")))
        if nodes == 1:
            one = EmbeddedServer(home / "nats", ANY_PORT, sync_always=sync_always, ready_within=READY_WITHIN)
            async with one.running() as server:
                yield Servers(_settings(server.url, home), {"nats": server.pid}, (server.store_dir,))
                await asyncio.to_thread(server.stop, READY_WITHIN)  # it may have much to write down
        else:
            many = EmbeddedCluster(home / "nats", nodes, ANY_PORT, sync_always=sync_always, ready_within=READY_WITHIN)
            async with many.running() as cluster:
                pids = {f"nats {node.name}": node.server.pid for node in cluster.nodes}
                stores = tuple(node.server.store_dir for node in cluster.nodes)
                yield Servers(_settings(cluster.url, home, replicas=nodes), pids, stores)


@asynccontextmanager
async def initialized(settings: Settings) -> AsyncIterator[Installation]:
    """Return an installation whose streams exist.

    Raises:
        TimeoutError: the server does not answer in time; reading millions of messages at its start may take long.
    """
    async with bootstrap.connect(settings) as installation:
        async with asyncio.timeout(READY_WITHIN):
            while True:
                try:
                    await bootstrap.initialize(installation)
                    break
                except LogUnavailable:
                    await asyncio.sleep(1)
        yield installation


def _settings(url: str, home: Path, replicas: int | None = None) -> Settings:
    given = {"nats": {"url": url}, "data_dir": home, "replicas": replicas}
    return Settings.model_validate(given)
