"""A cluster of three with a node whose replicas can be made to lag.

The third node reaches the others only through proxies of their routes. A proxy forwards everything except the Raft messages of
held streams. The node's replica of such a stream keeps its state and answers as before, while the others go on.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Final

from tests.ports import free_port
from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.server.cluster import Node, RunningCluster
from tocsin.adapters.nats.server.embedded import ANY_PORT, HOST, EmbeddedServer

READY_WITHIN_S: Final = 60.0
UNUSED_PORT: Final = 1
_MESSAGES: Final = (b"RMSG", b"HMSG")


class LaggingCluster:
    """The running cluster, and the control of its third node's replicas."""

    def __init__(self) -> None:
        self.cluster = RunningCluster(READY_WITHIN_S)
        self._held: set[bytes] = set()

    @property
    def leading(self) -> Node:
        """The node that leads every held stream."""
        return self.cluster.nodes[0]

    async def hold(self, connection: Connection, stream: str) -> None:
        """Keep the third node's replica of a stream in its present state, which equals that of the others."""
        while True:
            placed = (await connection.manage(f"STREAM.INFO.{stream}"))["cluster"]
            if placed["leader"] == self.leading.name and all(replica["current"] for replica in placed["replicas"]):
                break
            if placed["leader"] != self.leading.name:
                preferred = b'{"placement": {"preferred": "%s"}}' % self.leading.name.encode()
                await connection.manage(f"STREAM.LEADER.STEPDOWN.{stream}", preferred)
            await asyncio.sleep(0.1)
        group = placed["raft_group"].encode()
        self._held |= {b"$NRG.AE." + group, b"$NRG.V." + group}  # what its leader appends, and votes on a new leader

    def is_held(self, line: bytes) -> bool:
        """Return whether a message of a route is of a held stream's Raft group."""
        return any(subject in self._held for subject in line.split()[1:3])


@asynccontextmanager
async def lagging_cluster(folder: Path) -> AsyncIterator[LaggingCluster]:
    """Start a cluster; no stream is held yet."""
    lagging = LaggingCluster()
    ports = [free_port() for _ in range(3)]
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(_proxied(lagging, port)) for port in ports[:2]]
        stack.push_async_callback(asyncio.to_thread, lagging.cluster.stop)
        routes = [ports[1:2], ports[:1], proxies]
        for number, (port, others) in enumerate(zip(ports, routes, strict=True), start=1):
            name = f"node-{number}"
            server = EmbeddedServer(folder / name, ANY_PORT, extra_config=_config(name, port, others))
            lagging.cluster.nodes.append(Node(name, server, await asyncio.to_thread(server.start)))
        await asyncio.to_thread(lagging.cluster.await_complete)
        yield lagging


def _config(name: str, port: int, routes: list[int]) -> dict[str, object]:
    cluster = {
        "name": "lagging",
        "listen": f"{HOST}:{port}",
        "advertise": f"{HOST}:{UNUSED_PORT}",  # otherwise the nodes would find each other past the proxies
        "routes": [f"nats://{HOST}:{other}" for other in routes],
        "compression": "off",
    }
    return {"server_name": name, "http": f"{HOST}:-1", "cluster": cluster}


@asynccontextmanager
async def _proxied(lagging: LaggingCluster, port: int) -> AsyncIterator[int]:
    """Run a proxy of one node's routes; yield the proxy's port."""
    served = set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        with closing(writer), suppress(OSError):
            to_reader, to_writer = await asyncio.open_connection(HOST, port)
            with closing(to_writer):
                await asyncio.gather(_forward(lagging, reader, to_writer), _forward(lagging, to_reader, writer))

    server = await asyncio.start_server(serve, HOST)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*served)  # the cluster has stopped, and its connections are closed


async def _forward(lagging: LaggingCluster, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.IncompleteReadError):
        while line := await reader.readline():
            payload = b""
            if line.startswith(_MESSAGES):
                payload = await reader.readexactly(int(line.split()[-1]) + len(b"\r\n"))
                if lagging.is_held(line):
                    continue
            writer.write(line + payload)
            await writer.drain()
    writer.close()
