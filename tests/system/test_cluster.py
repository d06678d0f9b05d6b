"""The embedded cluster: complete at its start, tolerant of a dead node, never left over."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.client import JetStreamContext
from nats.js.errors import Error as JetStreamError

from tests.system.clustered import clustered, kill, lose_majority
from tests.system.test_embedded_server import listens, session_is_empty, wait_until
from tocsin import bootstrap
from tocsin.adapters.nats.admin.provision_errors import JetStreamUnavailable
from tocsin.adapters.nats.server.cluster import ClusterSizeError, EmbeddedCluster, Node, RunningCluster
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.adapters.nats.server.process import PortTakenError, StoreInUseError
from tocsin.domain.events import Completed, Trigger

OWNER = """
import json, sys, time
from pathlib import Path
from tocsin import bootstrap
from tocsin.adapters.nats.server.cluster import EmbeddedCluster
cluster = EmbeddedCluster(Path(sys.argv[1]), port=0).start()
print(json.dumps([[node.server.port, node.server.pid] for node in cluster.nodes]), flush=True)
time.sleep(600)
"""


def leader_of(info: Any, cluster: RunningCluster) -> Node:  # noqa: ANN401 - the client's
    return cluster.node(info.cluster.leader)


async def published(jetstream: JetStreamContext, number: int) -> int:
    """Publish once, however long the election takes."""
    async with asyncio.timeout(60):
        while True:
            try:
                ack = await jetstream.publish("kept", b"", timeout=2, headers={"Nats-Msg-Id": str(number)})
            except (nats.errors.Error, JetStreamError):
                await asyncio.sleep(0.1)
            else:
                return ack.seq


async def test_r3_stream_survives_leader_loss_and_restarts(tmp_path: Path) -> None:
    embedded = EmbeddedCluster(tmp_path, port=ANY_PORT)
    async with embedded.running() as cluster:
        client = await nats.connect(cluster.url.split(","), max_reconnect_attempts=-1, error_cb=silent)
        try:
            jetstream = client.jetstream()
            info = await jetstream.add_stream(name="KEPT", subjects=["kept"], num_replicas=3)
            assert await published(jetstream, 1) == 1
            leader = leader_of(info, cluster)
            await kill(leader)
            assert not cluster.is_complete
            assert await published(jetstream, 2) == 2
            port = leader.server.port
            await asyncio.to_thread(leader.restart)
            await asyncio.to_thread(cluster.await_complete)
            assert leader.server.port == port
        finally:
            await client.close()
    async with embedded.running() as cluster:
        client = await nats.connect(cluster.url.split(","), error_cb=silent)
        try:
            assert await published(client.jetstream(), 3) == 3
        finally:
            await client.close()


async def silent(_: Exception) -> None:
    """Collect the errors of a client while a node is away."""


async def test_publish_repeated_during_replication_is_stored_once(tmp_path: Path) -> None:
    async with clustered(tmp_path) as (tocsin, _):
        for number in range(20):
            sent = (tocsin.log.publish("trigger.a", Trigger(), message_id=f"again-{number}") for _ in range(8))
            assert len(set(await asyncio.gather(*sent))) == 1
        assert len(await tocsin.facts("trigger.a", Trigger)) == 20


async def test_supervisor_restarts_a_dead_node_and_reports_it(tmp_path: Path) -> None:
    messages: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    async with EmbeddedCluster(tmp_path, port=ANY_PORT).running() as cluster:
        keeping = asyncio.create_task(
            cluster.restart_dead_nodes(lambda node, text: messages.put_nowait((node.name, text)))
        )
        os.kill(cluster.nodes[1].server.pid, signal.SIGKILL)
        said = [await asyncio.wait_for(messages.get(), 60) for _ in range(3)]
        assert [name for name, _ in said] == ["node-2"] * 3
        assert said[0][1] == "ended by signal 9"
        assert said[1][1] == f"started again, pid {cluster.nodes[1].server.pid}"
        assert said[2][1].startswith("has caught up after ")
        keeping.cancel()


def test_the_nodes_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        nodes: list[list[int]] = json.loads(owner.stdout.readline())
        assert all(listens(port) for port, _ in nodes)
        owner.kill()
    for port, pid in nodes:
        wait_until(lambda port=port: not listens(port))  # type: ignore[misc]
        wait_until(lambda pid=pid: session_is_empty(pid))  # type: ignore[misc]


def test_a_folder_belongs_to_one_cluster(tmp_path: Path) -> None:
    embedded = EmbeddedCluster(tmp_path, port=ANY_PORT)
    with embedded.start() as cluster:
        with pytest.raises(StoreInUseError):
            embedded.start()
        assert cluster.is_complete
    assert all(node.server.exit_code is not None for node in cluster.nodes)


def test_taken_port_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with EmbeddedServer(port=ANY_PORT).start() as squatter, pytest.raises(PortTakenError):
        EmbeddedCluster(tmp_path, port=squatter.port).start()
    with EmbeddedCluster(tmp_path, port=ANY_PORT).start() as cluster:
        assert cluster.is_complete


def test_a_size_without_a_point_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterSizeError) as caught:
        EmbeddedCluster(tmp_path, size=4).start()
    assert (caught.value.code, caught.value.size) == ("invalid-cluster-size", 4)


async def test_missing_majority_is_distinguished_from_missing_jetstream(tmp_path: Path) -> None:
    async with clustered(tmp_path) as (tocsin, cluster):
        url = tocsin.installation.connection.client.connected_url
        assert url is not None
        await kill(*(node for node in cluster.nodes if node.server.port != url.port))
        with pytest.raises(JetStreamUnavailable) as caught:
            await bootstrap.initialize(tocsin.installation)
        assert caught.value.code == "jetstream-unavailable"
        assert "its cluster elects" in str(caught.value)


@pytest.mark.slow
async def test_process_started_without_a_majority_waits(tmp_path: Path) -> None:
    async with clustered(tmp_path) as (tocsin, cluster):
        await lose_majority(tocsin, cluster)
        programs = [tocsin.start("planner", "dag-advancer", "matcher"), tocsin.start_worker()]

        async def all_wait() -> bool:
            assert all(program.ended is None for program in programs), [program.said() for program in programs]
            stages, worker = (program.said() for program in programs)
            return '"log-awaited"' in stages and '"agent-not-answered"' in worker  # a worker uses no stream

        await tocsin.until(all_wait)
        for node in cluster.nodes[1:]:
            await asyncio.to_thread(node.restart)
        await tocsin.ready()
        await tocsin.apply({"name": "free", "function": "work", "overlap_policy": "allow"})
        await tocsin.trigger("free")
        await tocsin.ended("free", Completed)
