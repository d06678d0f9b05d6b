"""An installation on a NATS cluster of three whose nodes can be killed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.system.processes import Site, site
from tocsin.adapters.nats.cluster import EmbeddedCluster, RunningCluster
from tocsin.adapters.nats.server import ANY_PORT

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
