"""Runs a private cluster of nats-servers on this machine, each node a process with a store directory and a log of its own.

    with EmbeddedCluster(folder).start() as cluster: ...           # from plain code
    async with EmbeddedCluster(folder).running() as cluster: ...   # from async code, without blocking the loop

Every node is an `EmbeddedServer`, so none outlives the process that started it, and a folder belongs to one cluster at a
time. The cluster goes on while more than half of its nodes do; electing what a dead node led takes 4 to 9 seconds.
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
from types import TracebackType
from typing import Final, Self

from . import monitor
from .embedded import (
    ANY_PORT,
    EmbeddedServer,
    PortTakenError,
    RunningServer,
    ServerStartError,
    running,
)
from .process import HOST, Membership

SIZES: Final = (3, 5)
"""How many nodes make sense: an even number survives no more deaths than one less, and no stream has more replicas."""

_NAME: Final = "tocsin"
_TRIES: Final = 5
"""A port that was free a moment ago may be somebody else's by now."""
_POLL_SECONDS: Final = 0.05
_WATCH_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class EmbeddedCluster:
    """What to start; nothing runs yet.

    Attributes:
        folder: where each node has its own; made when missing.
        size: how many nodes, one of `SIZES`.
        port: of the first node, as `EmbeddedServer` has it; the others listen on free ones.
        sync_always: flush every write to the disk before acknowledging it.
        binary: the nats-server to run; None for the one installed with Tocsin.
        ready_within: seconds until a cluster that finds no leader is given up.

    """

    folder: Path
    size: int = SIZES[0]
    port: int | None = None
    sync_always: bool = False
    binary: Path | None = None
    ready_within: float = 60.0

    def start(self) -> "RunningCluster":
        """Start the nodes and return once they have a leader and know each other: about 0.3 s on empty stores.

        Raises:
            StoreInUseError: another cluster runs in the folder.
            PortTakenError: the port that was asked for is in use.
            ServerStartError: a node did not start, or they did not find each other in time.
            ValueError: it is not one of `SIZES`.

        """
        if self.size not in SIZES:
            msg = f"size: {' or '.join(map(str, SIZES))} nodes, not {self.size}"
            raise ValueError(msg)
        for _ in range(_TRIES - 1):
            with contextlib.suppress(PortTakenError):
                return self._started()
        return self._started()

    def running(self) -> AbstractAsyncContextManager["RunningCluster"]:
        """Start the cluster in a thread, stop it in one at the end. Raises what `start` raises."""
        return running(self.start)

    def _started(self) -> "RunningCluster":
        cluster = RunningCluster(self.ready_within)
        try:
            for server in self._members():
                cluster.add(server)
            cluster.await_health()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def _members(self) -> list[EmbeddedServer]:
        ports = _free_ports(self.size)
        alone = EmbeddedServer(sync_always=self.sync_always, binary=self.binary, ready_within=self.ready_within)
        return [
            replace(
                alone,
                store_dir=self.folder / f"node-{i + 1}",
                port=ANY_PORT if i else self.port,
                membership=Membership(f"node-{i + 1}", _NAME, port, (*ports[:i], *ports[i + 1 :])),
            )
            for i, port in enumerate(ports)
        ]


@dataclass(slots=True)
class Node:
    """One server of a running cluster, which may be many processes in a row, always on the same store and port."""

    embedded: EmbeddedServer
    server: RunningServer

    @property
    def name(self) -> str:
        """As the cluster knows it."""
        membership = self.embedded.membership
        return membership.name if membership else ""

    @property
    def is_healthy(self) -> bool:
        """It runs, knows the cluster's leader, and has caught up with the others in all that it keeps."""
        return self.server.monitoring is not None and monitor.is_healthy(self.server.monitoring)

    def restart(self) -> None:
        """Start it anew where it was, whether it still runs or not.

        Raises:
            ServerStartError: it did not start.

        """
        self.server.stop()
        self.server = self.embedded.start()


class RunningCluster:
    """A cluster of ours; a context manager that stops it at the end."""

    def __init__(self, ready_within: float) -> None:
        self._ready_within = ready_within
        self.nodes: Final[list[Node]] = []

    @property
    def url(self) -> str:
        """What a client connects to: the URLs of all nodes, joined by commas."""
        return ",".join(node.server.url for node in self.nodes)

    def node(self, name: str) -> Node:
        """One node, by the name that the cluster has for it."""
        return next(node for node in self.nodes if node.name == name)

    def add(self, embedded: EmbeddedServer) -> None:
        """Start one node more. Raises what `EmbeddedServer.start` raises."""
        server = embedded.start()
        self.nodes.append(Node(replace(embedded, port=server.port), server))

    def await_health(self) -> None:
        """Wait until all nodes know each other, and each has caught up.

        Raises:
            ServerStartError: they do not in time.

        """
        deadline = time.monotonic() + self._ready_within
        while not self.is_whole:
            if time.monotonic() > deadline:
                logs = ", ".join(str(node.server.log_file) for node in self.nodes)
                msg = f"the nodes did not become a cluster within {self._ready_within:g} s: see {logs}"
                raise ServerStartError(msg)
            time.sleep(_POLL_SECONDS)

    @property
    def is_whole(self) -> bool:
        """All nodes are healthy, and the one that leads sees all the others."""
        if not all(node.is_healthy for node in self.nodes):
            return False
        seen = (monitor.peers_in_sight(node.server.monitoring or "") for node in self.nodes)
        return len(self.nodes) - 1 in seen

    async def keep(self, tell: Callable[[Node, str], None]) -> None:
        """Start again whatever node ends, until cancelled; `tell` what happened to which."""
        while True:
            for node in self.nodes:
                code = node.server.exit_code
                if code is not None:
                    tell(node, f"ended by signal {-code}" if code < 0 else f"ended, exit code {code}")
                    await self._bring_back(node, tell)
            await asyncio.sleep(_WATCH_SECONDS)

    async def _bring_back(self, node: Node, tell: Callable[[Node, str], None]) -> None:
        begun = time.monotonic()
        try:
            await asyncio.to_thread(node.restart)
        except ServerStartError as error:
            tell(node, f"does not start: {error}")
            await asyncio.sleep(1)
            return
        tell(node, f"started again, pid {node.server.pid}")
        while not await asyncio.to_thread(lambda: node.is_healthy):
            if node.server.exit_code is not None:
                return
            await asyncio.sleep(_POLL_SECONDS)
        tell(node, f"has caught up after {time.monotonic() - begun:.1f} s")

    def stop(self) -> None:
        """End all nodes at once. Stopping twice is no error."""
        if self.nodes:
            with ThreadPoolExecutor(len(self.nodes)) as pool:
                list(pool.map(lambda node: node.server.stop(), self.nodes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def _free_ports(number: int) -> list[int]:
    """Ports that nobody listens on at this moment, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
