"""The servers under measurement: throw-away NATS, one or a cluster of three, and an installation on it."""

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
"""Seconds: a store of millions of messages has to be read."""


@dataclass(frozen=True, slots=True)
class Servers:
    """NATS that runs.

    Attributes:
        settings: they lead there, and to a folder for the history.
        pids: of its processes, by name.
        stores: the folders in which it keeps its streams.

    """

    settings: Settings
    pids: Mapping[str, int]
    stores: tuple[Path, ...]


@asynccontextmanager
async def servers(*, sync_always: bool = False, nodes: int = 1, folder: Path | None = None) -> AsyncIterator[Servers]:
    """Start NATS, and end it behind the block.

    Args:
        sync_always: flush every write to the disk before acknowledging it.
        nodes: 1, or 3 for a cluster of which every node keeps every stream.
        folder: where all is kept, and stays; None: one of their own, which is gone afterwards.

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
    """An installation whose streams are there.

    Raises:
        TimeoutError: the server does not answer for them, as it may not for a while when it has to read millions of messages.
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
    return Settings.model_validate({"nats": {"url": url}, "data_dir": home, "replicas": replicas})
