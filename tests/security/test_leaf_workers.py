"""A worker behind a leaf node of its account works, and reaches nothing that it does not reach elsewhere."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from nats.errors import Error

from tests.security.installations import NOT_RESERVED, connected, reached_names
from tests.security.leaf_nodes import Servers, hub_and_leaf
from tests.security.server import DEADLINE
from tests.security.test_outside_accounts import ASKED, HEADERS, REPLIES, everything
from tests.security.test_worker_claims import ID, stages
from tests.stored_events import StoredEvents
from tests.system.running import Running
from tocsin import Context, Worker, bootstrap
from tocsin.adapters.nats.agents import NatsAgentChannel
from tocsin.domain.events import Completed, Report, Started

USER: Final = "worker-mail"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with hub_and_leaf(tmp_path, user=USER, account="WORKERS_MAIL") as running:
        yield running


async def test_worker_behind_a_leaf_node_works(servers: Servers, tmp_path: Path) -> None:
    worker = Worker(name="mail")

    @worker.task("send")
    async def send(context: Context) -> str:
        await context.heartbeat({"row": context.attempt})
        if context.attempt == 1:
            raise ConnectionError("away")
        return f"after {context.last_heartbeat}"

    async with (
        stages(servers.hub, tmp_path) as tocsin,
        connected(servers.leaf, tmp_path, USER) as outside,
        bootstrap.worker_connection(outside, worker.options) as connection,
    ):
        serving = asyncio.create_task(worker.serve(connection))
        retry = {"max_attempts": 2, "initial_delay": 0.1}
        await tocsin.apply({"name": "mailing", "function": "send", "retry": retry})
        await tocsin.trigger("mailing")
        [completed] = await tocsin.ended("mailing", Completed)
        assert completed.result == "after {'row': 1}"
        assert {claim.worker for claim in await tocsin.of_executions("mailing", Started)} == {"mail"}
        assert len((await StoredEvents.of(tocsin.log)).facts(Report)) == 2
        worker.stop()
        await serving


async def test_leaf_node_opens_nothing_else(servers: Servers, tmp_path: Path) -> None:
    held: list[tuple[str, str]] = []
    async with (
        connected(servers.hub, tmp_path, "operator") as operator,
        connected(servers.hub, tmp_path, "matcher") as stage,
        connected(servers.leaf, tmp_path, USER) as outside,
    ):
        await Running(operator).apply({"name": "victim", "function": "f"})
        client, report = outside.connection.client, ASKED[USER][0]
        end = time.monotonic() + DEADLINE
        stored: dict[str, object] = {}
        while not stored:  # until the servers know each other
            try:
                stored = json.loads((await client.request(report, b"{}", timeout=1)).data)
            except Error:
                assert time.monotonic() < end, "the leaf node is not connected"
        assert stored["stream"] == "TOCSIN_REPORTS"
        before = await everything(operator, USER)
        channel = NatsAgentChannel(stage.connection, stage.names)
        async with channel.hold_lists(lambda name, agent_id, _: held.append((name, agent_id))):
            await stage.connection.client.flush()
            for subject in (
                *REPLIES,
                *ASKED[USER],
                "$JS.API.STREAM.PURGE.TOCSIN_LOG",
                "$JS.API.STREAM.INFO.TOCSIN_LOG",
            ):
                for headers in HEADERS:
                    await client.publish(subject, b"{}", headers=headers)
                for reply in REPLIES:
                    await client.publish(subject, b"{}", reply=reply)
            forger = NatsAgentChannel(outside.connection, outside.names)
            for name in ("billing", "other", "mail"):
                await forger.announce(name, ID, b"{}")
            await client.flush()
            await client.request(report, b"{}", timeout=DEADLINE)  # all earlier messages were handled
            async with asyncio.timeout(DEADLINE):
                while ("mail", ID) not in held:  # noqa: ASYNC110 - messages arrive by callbacks
                    await asyncio.sleep(0.01)
        assert await everything(operator, USER) == before
        assert {name for name, _ in held} == {"mail"}


@pytest.fixture(params=[False, True], ids=["direct", "screened"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    """Run a leaf node of the shared account, whose users have no rules."""
    with hub_and_leaf(tmp_path, user="worker", account="WORKERS", screened=request.param) as running:
        yield running


async def test_shared_leaf_reaches_no_reserved_name(shared: Servers, tmp_path: Path) -> None:
    async with (
        connected(shared.hub, tmp_path, "scheduler") as stage,
        connected(shared.leaf, tmp_path, "worker") as outside,
    ):
        assert await reached_names(stage, outside) == (NOT_RESERVED, NOT_RESERVED)
