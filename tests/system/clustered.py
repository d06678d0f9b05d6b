"""An installation on a NATS cluster of three whose nodes can be killed."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.system.processes import Site, site
from tests.system.test_embedded_server import wait_until
from tocsin.adapters.nats.server.cluster import EmbeddedCluster, Node, RunningCluster
from tocsin.adapters.nats.server.embedded import ANY_PORT
from tocsin.ports import LogUnavailable
from tocsin.subjects import Bucket, Stream

PATIENCE: Final = 120.0
"""Seconds after which an election, or a take-over, is given up."""


@asynccontextmanager
async def clustered(folder: Path, **settings: object) -> AsyncIterator[tuple[Site, RunningCluster]]:
    """Each of its streams has three replicas; no process of it runs yet."""
    async with (
        EmbeddedCluster(folder / "nats", port=ANY_PORT).running() as cluster,
        site(cluster.url, folder, replicas=len(cluster.nodes), **settings) as tocsin,
    ):
        tocsin.patience = PATIENCE
        yield tocsin, cluster


async def kill(*nodes: Node) -> None:
    """Send SIGKILL to all nodes together, so that no election happens between two deaths."""
    for node in nodes:
        os.kill(node.server.pid, signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: all(node.server.exit_code is not None for node in nodes))


async def lose_majority(tocsin: Site, cluster: RunningCluster) -> None:
    """Isolate one node: it answers for a while for the streams that it led."""
    await kill(*cluster.nodes[1:])
    connection, names = tocsin.installation.connection, tocsin.installation.names
    leaderless = {names.commits_stream, names.stream(Stream.LOG), names.bucket_stream(Bucket.INSTALLATION)}

    async def is_silent() -> bool:
        for stream in leaderless:
            try:
                await connection.manage(f"STREAM.INFO.{stream}")
            except LogUnavailable as error:
                if str(error).endswith(("temporarily unavailable", "it has no leader")):
                    continue
            return False
        return True

    await tocsin.until(is_silent)
