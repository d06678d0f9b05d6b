"""The NATS that `tocsin dev` works on: one that was named for this very call, else a server or a cluster of its own."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...settings import Settings, origins
from ..runtime.errors import UsageError
from ..runtime.session import Session

if TYPE_CHECKING:
    from ...adapters.nats.server.cluster import Node, RunningCluster


@dataclass(frozen=True)
class DevNats:
    """Where it is, and what has to run for it."""

    settings: Settings
    cluster: "RunningCluster | None" = None
    is_own: bool = True
    """It ends with us."""

    def nodes(self) -> list[dict[str, object]]:
        """The nodes of a cluster of our own."""
        nodes = self.cluster.nodes if self.cluster else ()
        return [{"name": node.name, "url": node.server.url, "pid": node.server.pid} for node in nodes]

    def keeping(self, tell: "Callable[[Node, str], None]") -> list[Coroutine[Any, Any, None]]:
        """What starts again the nodes that end."""
        return [self.cluster.restart_dead_nodes(tell)] if self.cluster else []


@dataclass(frozen=True)
class Wanted:
    """What the command line says about it."""

    port: int | None
    nodes: int | None
    """How many make up a cluster; None: one server alone."""
    data_dir: Path | None = None
    """Where to keep it; None: where the settings say."""

    @asynccontextmanager
    async def running(self, session: Session) -> AsyncIterator[DevNats]:
        """Have it run.

        A configuration file does not count: what it names may be in production.

        Raises:
            UsageError: servers of its own and one that is there already are asked for.
            ServerStartError: it does not start.
        """
        settings = session.settings(data_dir=self.data_dir)
        origin = origins(settings)["nats.url"]
        if origin == "command line" or origin.startswith("TOCSIN_"):
            named = "--nats" if origin == "command line" else origin
            if self.nodes is not None:
                raise UsageError(f"--cluster starts servers of its own, and {named} names others: give one of the two")
            if self.port is not None:
                raise UsageError(f"--port is for a server of its own, and {named} names another: give one of the two")
            yield DevNats(settings, is_own=False)
        elif self.nodes is None:
            async with session.backend.nats_server(settings.data_dir / "nats", self.port) as server:
                yield DevNats(session.settings(data_dir=self.data_dir, nats__url=server.url))
        else:
            # Servers that were alone cannot become a cluster, and the history knows one installation: all is kept apart.
            folder = settings.data_dir / f"cluster-{self.nodes}"
            async with session.backend.nats_cluster(folder / "nats", self.nodes, self.port) as cluster:
                ours = session.settings(data_dir=folder, nats__url=cluster.url, replicas=self.nodes)
                yield DevNats(ours, cluster)
