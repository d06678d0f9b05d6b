"""The accounts of programs outside, on each node of a cluster and behind a leaf node."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from tests.ports import free_port
from tests.security.installations import PASSWORD, accounts, connected, initialize
from tests.security.server import DEADLINE, Server, server
from tests.security.test_outside_accounts import everything
from tests.system.running import Running
from tocsin.adapters.nats.admin.provision_errors import JetStreamUnavailable
from tocsin.adapters.nats.agents import NatsAgentChannel
from tocsin.ports import HandOver
from tocsin.services.jobs import Registry

NODES = 3
LEAF = """
leafnodes {{ remotes: [ {{ url: "nats://leaf:{password}@127.0.0.1:{port}", account: OUTSIDE }} ] }}
accounts {{ OUTSIDE {{ users: [ {{ user: public, password: {password} }} ] }} }}
"""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, ...]]:
    """Run the nodes of a cluster, and last a leaf node of the account of public programs."""
    config, environment = accounts(tmp_path)
    ports, leaf_port = [free_port() for _ in range(NODES)], free_port()
    leaf_user = f'{{ user: leaf, password: "{PASSWORD}", account: TOCSIN_PUBLIC }}'
    with ExitStack() as stack:
        nodes = []
        for number, port in enumerate(ports):
            routes = ", ".join(f"nats://127.0.0.1:{other}" for other in ports if other != port)
            cluster = f"cluster {{ name: c, listen: 127.0.0.1:{port}, routes: [ {routes} ] }}\n"
            leaves = f"leafnodes {{ listen: 127.0.0.1:{leaf_port}, authorization {{ users: [ {leaf_user} ] }} }}\n"
            text = f"server_name: n{number}\n{cluster}{leaves if number == 0 else ''}{config}"
            nodes.append(stack.enter_context(server(tmp_path / f"n{number}", text, environment=environment)))
        leaf = LEAF.format(password=PASSWORD, port=leaf_port)
        nodes.append(stack.enter_context(server(tmp_path / "leaf", leaf)))
        yield tuple(nodes)


async def outside(at: Server, user: str) -> Client:
    return await nats.connect(at.url, user=user, password=PASSWORD, inbox_prefix=f"_INBOX_{user}")


async def elected(node: Server, folder: Path) -> None:
    """Make the streams, once the cluster has a leader."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            await initialize(node.url, folder)
        except JetStreamUnavailable:
            assert time.monotonic() < end, "the cluster elects no leader"
        else:
            return


async def eventually(client: Client, subject: str) -> bytes:
    """Return the answer to a request, once the servers know each other."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            return (await client.request(subject, b"{}", timeout=1)).data
        except nats.errors.Error:
            assert time.monotonic() < end, f"no answer to {subject}"
            await asyncio.sleep(0.1)


async def test_workers_work_on_each_node(servers: tuple[Server, ...], tmp_path: Path) -> None:
    """The stages are on another node than the worker; an absent process is known there too."""
    *nodes, _ = servers
    absent, agent_id = "01890f3e-0000-7000-8000-000000000002", "01890f3e-0000-7000-8000-000000000001"
    async with connected(nodes[0], tmp_path, "matcher") as stage:
        channel = NatsAgentChannel(stage.connection, stage.names)
        for node in nodes:
            held: list[str] = []
            tasks: list[bytes] = []
            absences: list[str] = []
            async with connected(node, tmp_path, "worker-mail") as outside:
                agent = NatsAgentChannel(outside.connection, outside.names)
                async with (
                    channel.hold_lists(lambda name, *_: held.append(name)),  # noqa: B023 - it is called in this round
                    channel.absences(lambda id_, _: absences.append(id_)),  # noqa: B023
                    agent.tasks("mail", agent_id, tasks.append),
                ):
                    end = time.monotonic() + DEADLINE
                    while not (held and tasks and absences):
                        assert time.monotonic() < end, (held, tasks, absences)
                        await agent.announce("mail", agent_id, b"{}")
                        hand_overs = [HandOver("mail", agent_id, 1, b"1"), HandOver("mail", absent, 2, b"2")]
                        await channel.hand_over(hand_overs)
                        await asyncio.sleep(0.1)
            assert set(held) == {"mail"}
            assert set(tasks) == {b"1"}
            assert absent in absences


async def test_programs_outside_work_on_each_node(servers: tuple[Server, ...], tmp_path: Path) -> None:
    *nodes, _ = servers
    await elected(nodes[0], tmp_path)
    async with connected(nodes[0], tmp_path, "operator") as it, connected(nodes[0], tmp_path, "scheduler") as stage:
        tocsin = Running(it)
        await tocsin.apply({"name": "victim", "function": "f"})
        before = await everything(it)
        sequence = 0
        for node in servers:
            public = await outside(node, "public")
            heard = await public.subscribe("cron.triggered.told")
            assert json.loads(await eventually(public, "cron.trigger.victim"))["stream"] == "TOCSIN_INPUTS"
            await public.publish("cron.trigger.victim", b"{}", reply="tocsin.0.ledger.victim.due")
            assert json.loads(await eventually(public, "cron.trigger.victim"))["stream"] == "TOCSIN_INPUTS"
            told = stage.names.to_wire("cron.triggered.told")
            headers = {
                "Nats-Expected-Last-Subject-Sequence": str(sequence),
                "Nats-Expected-Last-Subject-Sequence-Subject": told,
            }
            sequence = await stage.connection.store(told, b"{}", headers)
            assert (await heard.next_msg(timeout=DEADLINE)).subject == "cron.triggered.told"
            await public.close()
        after = await everything(it)
        assert after["TOCSIN_LOG"].pop("tocsin.0.cron.triggered.told") == len(servers)
        assert after == before
        assert (await Registry(it.log, it.projections, it.clock).job("victim")).name == "victim"


async def test_executor_outside_pulls_on_each_node(servers: tuple[Server, ...], tmp_path: Path) -> None:
    *nodes, _ = servers
    await elected(nodes[0], tmp_path)
    async with connected(nodes[0], tmp_path, "scheduler") as stage:
        for node in nodes:
            await stage.connection.store("mq.scheduled.job", b"{}", {})
            executor = await outside(node, "mq-executor")
            await eventually(executor, "$JS.API.CONSUMER.INFO.TOCSIN_MQ.job-executors")
            pulling = await executor.jetstream().pull_subscribe_bind("job-executors", "TOCSIN_MQ")
            [task] = await pulling.fetch(1, timeout=DEADLINE)
            assert task.subject == "mq.scheduled.job"
            await task.ack_sync(timeout=DEADLINE)
            await executor.close()
