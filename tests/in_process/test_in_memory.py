"""An installation in memory: the real stages, a real worker and the history, without a server."""

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import pytest

from tocsin import Context, NonRetryableError, Worker, telemetry
from tocsin.bootstrap.in_memory import InMemoryInstallation, open_in_memory, run_stages_in_memory
from tocsin.bootstrap.workers import connection_of
from tocsin.domain.commit import FIRST_PARTITION
from tocsin.domain.definition import JobDefinition
from tocsin.ports import DeadLetterRow, ExecutionRow
from tocsin.services.jobs import Registry
from tocsin.settings import Queue, Settings, SettingsError
from tocsin.settings.channels import NatsChannel, Notifications
from tocsin.subjects import Bucket
from tocsin.worker import Connection, Options

POLL_S = 0.01


T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T | None]]) -> T:
    """Return what `look` finds; the recorder is a moment late."""
    async with asyncio.timeout(30):
        while not (found := await look()):  # noqa: ASYNC110 - nothing signals what the history has
            await asyncio.sleep(POLL_S)
    return found


@asynccontextmanager
async def connect_in_memory(installation: InMemoryInstallation, options: Options) -> AsyncIterator[Connection]:
    yield connection_of(installation, installation.agents, options)


class Running:
    """An installation whose stages run by the clock of the machine."""

    def __init__(self, installation: InMemoryInstallation) -> None:
        self.installation = installation
        self.registry = Registry(installation.log, installation.projections, installation.clock)

    def worker(self, **options: Any) -> Worker:  # noqa: ANN401 - those of a worker
        return Worker(connect=partial(connect_in_memory, self.installation), **options)

    async def define(self, **fields: Any) -> None:  # noqa: ANN401 - those of a definition
        await self.registry.apply([JobDefinition.model_validate(fields)])

    async def run(self, job: str, input_: Mapping[str, Any] | None = None) -> ExecutionRow:
        """Trigger a job, and return its execution once the history has its end."""
        id_ = await self.registry.trigger(job, dict(input_ or {}))
        return await until(partial(self.completed, id_))

    async def completed(self, id_: str) -> ExecutionRow | None:
        """Return an execution that the history shows as over."""
        row = await self.installation.recorded.execution(id_)
        return None if row is None or row.completed_at is None else row

    async def dead_letters(self) -> Sequence[DeadLetterRow]:
        return (await self.installation.recorded.dead_letters()).rows


@asynccontextmanager
async def running(settings: Settings | None = None) -> AsyncIterator[Running]:
    async with open_in_memory(settings or Settings()) as installation:
        ready = asyncio.Event()
        stages = asyncio.create_task(run_stages_in_memory(installation, ready=ready))
        await ready.wait()
        try:
            yield Running(installation)
        finally:
            stages.cancel()
            await asyncio.wait([stages])
            assert stages.cancelled()


@pytest.fixture
async def memory() -> AsyncIterator[Running]:
    async with running() as memory:
        yield memory


async def test_triggered_job_runs_and_is_recorded(memory: Running) -> None:
    await memory.define(name="greet", function="greet")
    worker = memory.worker()

    @worker.task("greet")
    async def greet(context: Context, name: str) -> str:
        return f"{context.job} {name}"

    async with worker.running():
        row = await memory.run("greet", {"name": "Ada"})

    assert (row.status, row.trigger, row.result) == ("completed", "manual", "greet Ada")


async def test_free_slot_is_claimed_at_once(memory: Running) -> None:
    await memory.define(name="greet", function="greet", overlap_policy="allow")
    worker = memory.worker(concurrency=1)

    @worker.task("greet")
    async def greet(_: Context) -> None: ...

    ids = [await memory.registry.trigger("greet", {}) for _ in range(3)]
    async with worker.running():
        [await until(partial(memory.completed, id_)) for id_ in ids]
    commits = [stored.body for stored in memory.installation.commit_log.after(FIRST_PARTITION, 0)]
    assert [b".started" in commit for commit in commits if b".completed" in commit] == [True, True, False]


async def test_handlers_run_in_the_loop_or_in_threads(memory: Running) -> None:
    ran: dict[str, tuple[asyncio.AbstractEventLoop | None, threading.Thread]] = {}
    worker = memory.worker()

    @worker.task("tick")
    async def tick(_: Context) -> None:
        ran["tick"] = asyncio.get_running_loop(), threading.current_thread()

    @worker.task("block")
    def block(_: Context) -> None:
        ran["block"] = None, threading.current_thread()

    for name in ("tick", "block"):
        await memory.define(name=name, function=name)
    async with worker.running():
        assert [(await memory.run(name)).status for name in ("tick", "block")] == ["completed", "completed"]
    here = threading.current_thread()
    assert ran["tick"] == (asyncio.get_running_loop(), here)
    assert ran["block"][1] is not here


async def test_failed_job_becomes_a_dead_letter(memory: Running) -> None:
    await memory.define(
        name="sync", function="sync", dead_letter=True, retry={"max_attempts": 2, "initial_delay": "1ms"}
    )
    worker = memory.worker()
    attempts: list[int] = []

    @worker.task("sync")
    def sync(context: Context) -> None:  # in a thread
        attempts.append(context.attempt)
        raise ValueError("boom") if context.attempt == 1 else NonRetryableError("closed")

    async with worker.running():
        row = await memory.run("sync")

    letters = await until(memory.dead_letters)
    assert attempts == [1, 2]
    assert (row.status, row.attempt) == ("failed", 2)
    assert row.error is not None
    assert row.error.endswith("NonRetryableError: closed")
    assert [(letter.execution_id, letter.attempts) for letter in letters] == [(row.execution_id, 2)]


async def test_schedule_fires_by_the_clock_of_the_machine(memory: Running) -> None:
    fired: asyncio.Future[datetime] = asyncio.get_running_loop().create_future()
    worker = memory.worker()

    @worker.task("tick")
    async def tick(context: Context) -> None:
        if not fired.done():
            fired.set_result(context.scheduled_time)

    await memory.define(name="tick", function="tick", schedule="* * * * * *")
    async with worker.running():
        instant = await fired

    assert instant.microsecond == 0
    assert timedelta() <= datetime.now(UTC) - instant < timedelta(seconds=30)


async def test_steps_of_a_graph_run_on_two_workers(memory: Running) -> None:
    await memory.define(
        name="etl",
        dag=[
            {"name": "extract", "function": "extract", "queue": "left"},
            {"name": "load", "function": "load", "queue": "right", "depends_on": ["extract"]},
        ],
    )
    left, right = memory.worker(queues=["left"]), memory.worker(queues=["right"])

    @left.task("extract")
    async def extract(context: Context) -> int:
        assert context.step == "extract"
        return 20

    @right.task("load")
    async def load(context: Context) -> int:
        rows = context.upstream["extract"]
        assert isinstance(rows, int)
        return rows + 1

    async with left.running(), right.running():
        row = await memory.run("etl")

    assert (row.status, row.result) == ("completed", 21)


async def test_stages_release_their_leases_when_they_stop() -> None:
    async with running() as memory:
        projections = memory.installation.projections
        assert await until(partial(projections.entries, Bucket.LEADER))

    assert await projections.entries(Bucket.LEADER) == {}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (Settings(queues={"outside": Queue(transport="mq")}), "queues.outside.transport"),
        (Settings(notifications=Notifications(channels={"bus": NatsChannel()})), "notifications.channels.bus.type"),
    ],
)
async def test_setting_that_needs_nats_is_refused(settings: Settings, field: str) -> None:
    with pytest.raises(SettingsError) as refused:
        async with open_in_memory(settings):
            pass
    [problem] = refused.value.problems
    assert problem.field == field


@pytest.mark.usefixtures("restored_logging")
async def test_log_has_the_lines_of_each_job(memory: Running) -> None:
    stream, runs = io.StringIO(), asyncio.Queue[str]()
    telemetry.configure("debug", "json", stream=stream)
    worker = memory.worker()

    @worker.task("tick")
    async def tick(context: Context) -> None:
        await runs.put(context.job)
        if context.job == "failing":
            raise NonRetryableError("no disk")

    every = {"function": "tick", "schedule": "@every 1s", "timezone": "Europe/Berlin"}
    async with worker.running(), asyncio.timeout(30):
        await memory.define(name="ticking", **every, overlap_policy="allow", jitter="200ms")
        assert await runs.get() == "ticking"
        await memory.run("ticking")
        await memory.define(name="failing", function="tick")
        await memory.run("failing")
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for line in map(json.loads, stream.getvalue().splitlines()):
        lines.setdefault((line.get("job"), line["action"]), line)
    registered, admitted = lines["ticking", "job-registered"], lines["ticking", "admitted"]
    fields = ("level", "schedule", "timezone", "overlap_policy", "jitter")
    assert [registered[field] for field in fields] == ["info", "@every 1s", "Europe/Berlin", "allow", 0.2]
    assert (admitted["level"], 0 <= admitted["start_delay_ms"] <= 200) == ("debug", True)
    assert lines["ticking", "started"]["level"] == "debug"
    completed, failed = lines["ticking", "execution-completed"], lines["failing", "execution-failed"]
    assert (completed["level"], completed["duration_ms"] >= 0) == ("info", True)
    assert (failed["level"], failed["error"][-7:]) == ("info", "no disk")
    warning = lines["failing", "attempt-failed"]
    assert (warning["level"], warning["message"], warning.get("stage")) == ("warning", "no disk", None)


@pytest.mark.parametrize(
    ("policy", "second"), [(None, "skipped"), ("skip", "skipped"), ("allow", "running"), ("enqueue", "pending")]
)
async def test_overlap_policy_decides_on_a_second_run(memory: Running, policy: str | None, second: str) -> None:
    started, released = asyncio.Queue[str](), asyncio.Event()
    worker = memory.worker()

    @worker.task("hold")
    async def hold(context: Context) -> None:
        await started.put(context.execution_id)
        await released.wait()

    async def ended(id_: str, *statuses: str) -> ExecutionRow:
        async def look() -> ExecutionRow | None:
            row = await memory.installation.recorded.execution(id_)
            return row if row is not None and row.status in statuses else None

        return await until(look)

    # The default of a job with a schedule, whose instant never comes here.
    fields = {"schedule": "0 0 29 2 *"} if policy is None else {"overlap_policy": policy}
    await memory.define(name="hold", function="hold", **fields)
    async with worker.running():
        first_id = await memory.registry.trigger("hold")
        assert await started.get() == first_id
        second_id = await memory.registry.trigger("hold")
        assert (await ended(second_id, second)).status == second
        assert (await ended(first_id, "running")).status == "running"
        released.set()
        assert (await ended(first_id, "completed")).completed_at is not None
        await ended(second_id, "completed", "skipped")


class Panic(BaseException):
    """A panic of a library in Rust, as `pyo3_runtime.PanicException` is."""


@pytest.mark.parametrize("error", [NonRetryableError("closed"), Panic("index out of range")])
async def test_failed_run_releases_the_lock_of_its_job(memory: Running, error: BaseException) -> None:
    await memory.define(name="sync", function="sync", overlap_policy="skip", retry={"max_attempts": 1})
    worker = memory.worker()

    @worker.task("sync")
    async def sync(_: Context) -> None:
        raise error

    async with worker.running():
        assert [(await memory.run("sync")).status for _ in range(2)] == ["failed", "failed"]


async def test_paused_job_runs_on_request(memory: Running) -> None:
    await memory.define(name="greet", function="greet", schedule="@every 1s")
    worker = memory.worker()

    @worker.task("greet")
    async def greet(context: Context) -> str:
        return context.trigger

    await memory.registry.pause("greet")
    async with worker.running():
        assert (await memory.run("greet")).result == "manual"


async def test_parts_share_the_view_of_the_first_process() -> None:
    async with open_in_memory(Settings()) as installation:
        commits = installation.commits
        first, view = await commits.process()
        async with first.running([], view):
            await commits.process()
            assert await commits.view() is view
        second, later = await commits.process()
        async with second.running([], later):
            assert await commits.view() is later


@pytest.mark.parametrize("is_wanted_before", [True, False])
async def test_part_waits_until_the_log_is_folded(*, is_wanted_before: bool) -> None:
    """The parts of a process begin while its stages begin (`tocsin run` applies the jobs file)."""
    async with open_in_memory(Settings()) as installation:
        wanted: list[asyncio.Task[object]] = []

        async def want() -> None:
            wanted.append(asyncio.create_task(installation.commits.view()))
            await asyncio.sleep(0)  # it begins

        if is_wanted_before:
            await want()
        process, view = await installation.commits.process()
        await want()
        for _ in range(100):  # a reader without stages that began would end in the meantime
            await asyncio.sleep(0)
        assert not any(part.done() for part in wanted)
        async with process.running([], view):
            assert {await part for part in wanted} == {view}
            assert await installation.commits.view() is view
