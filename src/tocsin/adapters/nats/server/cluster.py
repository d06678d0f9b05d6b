"""A private cluster of nats-servers on this machine, for development and tests.

    with EmbeddedCluster(folder).start() as cluster: ...           # plain code
    async with EmbeddedCluster(folder).running() as cluster: ...   # async code; does not block the loop

Every node is an `EmbeddedServer` with a store directory of its own, so no node outlives the process that started it and a
folder belongs to one cluster at a time. The cluster works while more than half of its nodes run. Electing new leaders for
the streams of a dead node takes 4 to 9 seconds.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from typing_extensions import override

from ....domain.errors import TocsinError
from . import process
from .embedded import ANY_PORT, HOST, EmbeddedServer, RunningServer, Stoppable, running
from .process import PortTakenError, ServerStartError

SIZES: Final = (3, 5)
"""Useful numbers of nodes. An even number survives no more deaths than one node fewer; a stream has 5 replicas at most."""

_START_TRIES: Final = 5
"""The nodes must know each other's route ports before they start, so another program can take such a port meanwhile."""
_POLL_INTERVAL_S: Final = 0.05
_WATCH_INTERVAL_S: Final = 0.25
_RESTART_INTERVAL_S: Final = 1.0


class ClusterSizeError(TocsinError, ValueError):
    """A cluster cannot have this number of nodes; `size` is the number."""

    code = "invalid-cluster-size"

    def __init__(self, size: int) -> None:
        super().__init__(f"size: {' or '.join(map(str, SIZES))} nodes, not {size}")
        self.size = size


@dataclass(frozen=True, slots=True)
class EmbeddedCluster:
    """Options of a cluster; the others are as in `EmbeddedServer`.

    Attributes:
        folder: the parent of the nodes' store directories; created if missing.
        size: the number of nodes, one of `SIZES`.
        port: the client port of the first node; the other nodes use any free port.
        ready_within: seconds until a cluster that finds no leader is ended.
    """

    folder: Path
    size: int = SIZES[0]
    port: int | None = None
    sync_always: bool = False
    binary: Path | None = None
    ready_within: float = 60.0

    def start(self) -> "RunningCluster":
        """Start the nodes and return once they form a cluster (0.3 s without data).

        Raises:
            ServerStartError: a node did not start, or the nodes did not form a cluster in time.
            ClusterSizeError: the size is not one of `SIZES`.
        """
        if self.size not in SIZES:
            raise ClusterSizeError(self.size)
        for _ in range(_START_TRIES - 1):
            with contextlib.suppress(PortTakenError):
                return self._start_once()
        return self._start_once()

    def running(self) -> AbstractAsyncContextManager["RunningCluster"]:
        """Start the cluster in a thread and stop it at the end."""
        return running(self.start)

    def _start_once(self) -> "RunningCluster":
        cluster = RunningCluster(self.ready_within)
        try:
            for name, server in self._servers().items():
                cluster.nodes.append(Node(name, server, server.start()))
            cluster.await_complete()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def _servers(self) -> dict[str, EmbeddedServer]:
        route_ports = _free_ports(self.size)
        return {
            f"node-{i + 1}": EmbeddedServer(
                store_dir=self.folder / f"node-{i + 1}",
                port=ANY_PORT if i else self.port,
                sync_always=self.sync_always,
                binary=self.binary,
                ready_within=self.ready_within,
                extra_config={
                    "server_name": f"node-{i + 1}",  # must stay the same: the other nodes know its replicas by this name
                    "http": f"{HOST}:-1",
                    "cluster": {
                        "name": "tocsin",
                        "listen": f"{HOST}:{port}",
                        "routes": [f"nats://{HOST}:{other}" for other in route_ports if other != port],
                    },
                },
            )
            for i, port in enumerate(route_ports)
        }


class Node:
    """One node of a running cluster.

    Each restart makes a new process on the same store and client port.
    """

    def __init__(self, name: str, options: EmbeddedServer, server: RunningServer) -> None:
        self.name: Final = name
        self.server = server
        self._options = replace(options, port=server.port)

    @property
    def is_healthy(self) -> bool:
        """The node runs, knows the cluster's leader, and is up to date."""
        return self.server.monitoring_url is not None and process.is_healthy(self.server.monitoring_url)

    def restart(self) -> None:
        """Stop the node if it runs, and start it again."""
        self.server.stop()
        self.server = self._options.start()


class RunningCluster(Stoppable):
    """A started cluster; a context manager that stops it at the end."""

    def __init__(self, ready_within: float) -> None:
        self._ready_within = ready_within
        self.nodes: Final[list[Node]] = []

    @property
    def url(self) -> str:
        """The URLs of all nodes, joined by commas, for a client to connect to."""
        return ",".join(node.server.url for node in self.nodes)

    def node(self, name: str) -> Node:
        """Return the node of a name."""
        return next(node for node in self.nodes if node.name == name)

    @property
    def is_complete(self) -> bool:
        """All nodes are healthy, and the leader is connected to all others."""
        if not all(node.is_healthy for node in self.nodes):
            return False
        peers = (process.connected_peers(node.server.monitoring_url or "") for node in self.nodes)
        return len(self.nodes) - 1 in peers

    def await_complete(self) -> None:
        """Block until the cluster is complete."""
        deadline = time.monotonic() + self._ready_within
        while not self.is_complete:
            if time.monotonic() > deadline:
                stores = ", ".join(str(node.server.store_dir) for node in self.nodes)
                raise ServerStartError(
                    f"The nodes did not form a cluster within {self._ready_within:g} s. "
                    f"See nats-server.log in each of: {stores}"
                )
            time.sleep(_POLL_INTERVAL_S)

    async def restart_dead_nodes(self, report: Callable[[Node, str], None]) -> None:
        """Restart every node that ends, until cancelled; `report` receives each change of a node."""
        while True:
            for node in self.nodes:
                code = node.server.exit_code
                if code is not None:
                    report(node, f"ended by signal {-code}" if code < 0 else f"ended, exit code {code}")
                    await self._restart(node, report)
            await asyncio.sleep(_WATCH_INTERVAL_S)

    async def _restart(self, node: Node, report: Callable[[Node, str], None]) -> None:
        start = time.monotonic()
        try:
            await asyncio.to_thread(node.restart)
        except ServerStartError as error:
            report(node, f"does not start: {error}")
            await asyncio.sleep(_RESTART_INTERVAL_S)
            return
        report(node, f"started again, pid {node.server.pid}")
        while node.server.exit_code is None:
            if await asyncio.to_thread(lambda: node.is_healthy):
                report(node, f"has caught up after {time.monotonic() - start:.1f} s")
                return
            await asyncio.sleep(_POLL_INTERVAL_S)

    @override
    def stop(self) -> None:
        """Stop all nodes at the same time. A second call does nothing."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.server.stop(), self.nodes))


def _free_ports(number: int) -> list[int]:
    """Return different ports on which no program listens at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for listener in sockets:
            listener.bind((HOST, 0))
        return [listener.getsockname()[1] for listener in sockets]
