"""The NATS of `tocsin dev`: a named server, or a private server or cluster."""

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
    """A running NATS and the settings that lead to it."""

    settings: Settings
    cluster: "RunningCluster | None" = None
    is_own: bool = True
    """Whether it ends with this process."""

    def nodes(self) -> list[dict[str, object]]:
        """Return the nodes of a private cluster."""
        nodes = self.cluster.nodes if self.cluster else ()
        return [{"name": node.name, "url": node.server.url, "pid": node.server.pid} for node in nodes]

    def keeping(self, report: "Callable[[Node, str], None]") -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines that restart dead nodes."""
        return [self.cluster.restart_dead_nodes(report)] if self.cluster else []


@dataclass(frozen=True)
class Wanted:
    """The options of the command line about NATS."""

    port: int | None
    nodes: int | None
    """Nodes of a cluster; None: a single server."""
    data_dir: Path | None = None
    """The data folder; None: the folder of the settings."""

    @asynccontextmanager
    async def running(self, session: Session) -> AsyncIterator[DevNats]:
        """Start NATS, or use the server that the call names.

        A server in a configuration file does not count, because it may be in production.

        Raises:
            UsageError: the call names both a private server and an existing one.
            ServerStartError: the server does not start.
        """
        settings = session.settings(data_dir=self.data_dir)
        origin = origins(settings)["nats.url"]
        if origin == "command line" or origin.startswith("TOCSIN_"):
            named = "--nats" if origin == "command line" else origin
            if self.nodes is not None:
                raise UsageError(
                    f"--cluster starts private servers, but {named} names existing servers: omit --cluster or {named}",
                    code="conflicting-options",
                )
            if self.port is not None:
                raise UsageError(
                    f"--port is for a private server, but {named} names an existing server: omit --port or {named}",
                    code="conflicting-options",
                )
            yield DevNats(settings, is_own=False)
        elif self.nodes is None:
            async with session.backend.nats_server(settings.data_dir / "nats", self.port) as server:
                yield DevNats(session.settings(data_dir=self.data_dir, nats__url=server.url))
        else:
            # A single server cannot become a node of a cluster, and a history belongs to one installation: use another folder.
            folder = settings.data_dir / f"cluster-{self.nodes}"
            async with session.backend.nats_cluster(folder / "nats", self.nodes, self.port) as cluster:
                ours = session.settings(data_dir=folder, nats__url=cluster.url, replicas=self.nodes)
                yield DevNats(ours, cluster)
