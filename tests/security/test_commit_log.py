"""The log of commits against users who may not append to it, and against messages that they have the server store there."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.security.installations import connected, installed, user
from tests.security.server import Server
from tests.system.running import Running
from tocsin import Context, Worker, bootstrap
from tocsin.adapters.nats.log.commit_log import NatsCommitLog
from tocsin.bootstrap import STAGE_NAMES, Installation
from tocsin.bootstrap.nats_roles import SCHEDULER
from tocsin.domain.events import Completed
from tocsin.engine.foreign_reports import not_voided
from tocsin.services import health, repair
from tocsin.services.health import Level
from tocsin.subjects import COMMITS, Bucket

LOG, TURN, STREAM = "tocsin.commits.0", "tocsin.turn", "tocsin_COMMITS"
OUTSIDE = ("worker", "worker-mail", "public", "public-shop", "mq-executor", "api-client")
READERS = ("viewer", "recorder", "notary", "backup", "api", "operator")
WRITERS = ("planner", "ticker", "matcher", "dag-advancer")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with installed(tmp_path_factory.mktemp("secured")) as running:
        yield running


@asynccontextmanager
async def at_work(at: Server, folder: Path, *roles: str) -> AsyncIterator[Running]:
    """Stages and a worker, each as the user of its role; the test is an operator."""
    worker = Worker()

    @worker.task("works")
    async def works(_: Context) -> None: ...

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_work(at, folder, worker))]
        for role in roles:
            ready = asyncio.Event()
            tasks.append(group.create_task(_run(at, folder, role, ready)))
            await ready.wait()
        async with user(at, folder, "operator") as operator:
            yield Running(operator)
        worker.stop()
        for task in tasks:
            task.cancel()


async def _run(at: Server, folder: Path, role: str, ready: asyncio.Event) -> None:
    stages = [name for name in STAGE_NAMES if name != "screener"] if role == SCHEDULER else [role.replace("-", "_")]
    async with connected(at, folder, role) as installation:
        await bootstrap.run_stages(installation, stages, ready=ready)


async def _work(at: Server, folder: Path, worker: Worker) -> None:
    async with (
        connected(at, folder, "worker") as installation,
        bootstrap.worker_connection(installation, worker.options) as connection,
    ):
        await worker.serve(connection)


async def runs(tocsin: Running, job: str, number: int) -> None:
    """Run a job so often, and wait until all executions are completed."""
    before = len(await tocsin.of_executions(job, Completed))
    for _ in range(number):
        await tocsin.trigger(job)
    await tocsin.ended(job, Completed, before + number)


async def size(installation: Installation) -> int:
    info = await installation.connection.manage(f"STREAM.INFO.{STREAM}")
    return int(info["state"]["messages"])


@pytest.mark.full
async def test_stages_work_as_users_of_their_own(secured: Server, tmp_path: Path) -> None:
    before = len(secured.log)
    roles = [name.replace("_", "-") for name in STAGE_NAMES if name != "screener"]
    async with at_work(secured, tmp_path, *roles) as tocsin:
        await tocsin.apply({"name": "alone", "function": "works", "overlap_policy": "allow"})

        async def is_completed() -> int:
            await tocsin.trigger("alone")
            return len(await tocsin.of_executions("alone", Completed))

        await tocsin.until(is_completed)
        present = await tocsin.installation.projections.entries(Bucket.LEADER, "process.*")
        assert len(present) == len(roles)
        async with connected(secured, tmp_path, "viewer") as viewer:
            assert await Running(viewer).of_executions("alone", Completed)
    assert "Violation" not in secured.log[before:]


async def try_to_publish(client: Client, subject: str) -> None:
    await client.publish(subject, b"junk")
    await client.flush()


@pytest.mark.parametrize("role", [*OUTSIDE, *READERS])
async def test_only_stages_append(secured: Server, tmp_path: Path, role: str) -> None:
    async with user(secured, tmp_path, "viewer") as operator, user(secured, tmp_path, role) as hostile:
        heard = asyncio.Queue[Msg]()
        before = await size(operator)
        client = operator.connection.client
        await client.subscribe(TURN, cb=heard.put)
        await client.flush()
        for subject in (LOG, TURN):
            await try_to_publish(hostile.connection.client, subject)
        assert await size(operator) == before
        await asyncio.sleep(0.1)
        assert heard.empty()


@pytest.mark.parametrize("role", WRITERS)
async def test_commit_larger_than_allowed_is_refused(secured: Server, tmp_path: Path, role: str) -> None:
    async with user(secured, tmp_path, role) as writer, user(secured, tmp_path, "viewer") as operator:
        before = await size(operator)
        answer = await writer.connection.client.request(LOG, b"x" * 900_000, timeout=20)
        assert "error" in json.loads(answer.data)
        assert await size(operator) == before


async def have_stored(hostile: Installation) -> None:
    """Have the server store its answers, by a reply subject that no rule checks.

    A copy of a commit has the guard of the commit.
    """
    client, name = hostile.connection.client, "copier"
    config = {"name": name, "ack_policy": "none", "deliver_policy": "all", "inactive_threshold": 60_000_000_000}
    request = {"stream_name": STREAM, "config": config, "action": "create"}
    await hostile.connection.manage(f"CONSUMER.CREATE.{STREAM}.{name}", json.dumps(request).encode())
    await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name}", b"5", reply=LOG)
    await client.publish(f"$JS.API.STREAM.MSG.GET.{STREAM}", b'{"seq":1}', reply=LOG)
    await client.flush()
    await hostile.connection.manage(f"CONSUMER.DELETE.{STREAM}.{name}")


async def test_copied_forged_flooding_messages_are_skipped_and_reported(secured: Server, tmp_path: Path) -> None:
    async with (
        at_work(secured, tmp_path, SCHEDULER) as tocsin,
        connected(secured, tmp_path, "viewer") as viewer,
        connected(secured, tmp_path, "retrier") as stage,
    ):
        await tocsin.apply({"name": "attacked", "function": "works", "overlap_policy": "allow"})
        await runs(tocsin, "attacked", 3)
        await have_stored(viewer)
        commit = await NatsCommitLog(viewer.connection, STREAM, "tocsin.commits").next(0, after=3)
        assert commit is not None
        await stage.connection.client.publish(LOG, commit.body)
        await runs(tocsin, "attacked", 3)
        log, projections = tocsin.log, tocsin.installation.projections

        async def reasons() -> str:
            return " ".join(report.reason for report in await not_voided(log, projections))

        async def are_found() -> bool:
            known = await reasons()
            return "it is a copy" in known and "it is no commit" in known

        await tocsin.until(are_found)

        async def flood() -> None:
            while True:
                await stage.connection.client.publish(LOG, b"0" * 64 + b'\n{"first":1}')
                await asyncio.sleep(0.002)

        flooding = asyncio.create_task(flood())
        await runs(tocsin, "attacked", 10)
        flooding.cancel()
        target = bootstrap.health_target(tocsin.installation)

        async def is_found() -> bool:
            findings = await health.examine(target)
            return any(one.code == "foreign-messages" and one.level is not Level.OK for one in findings)

        await tocsin.until(is_found)
        reported = await not_voided(log, projections)
        assert {report.stream for report in reported} == {COMMITS}
        found = await repair.find(tocsin.installation.stored, reported=reported)
        assert {one.stream for one in found} == {COMMITS}
        assert await repair.void(log, projections, found[:1]) == 1
        again = partial(not_voided, log, projections)
        assert (COMMITS, found[0].sequence) not in {(one.stream, one.sequence) for one in await again()}
