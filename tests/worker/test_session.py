"""A running worker: concurrency, outages, cancellation, shutdown."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import structlog

from tests.domain.given import ID, JOB, NOON
from tests.worker.given import FUNCTION, Bench
from tocsin import Context, Worker, subjects
from tocsin.domain.events import Cancelled, Failed
from tocsin.worker import Connection
from tocsin.worker.connection import Options


class Serving:
    """A running worker.

    Time passes only while a test waits for an event or for its end.
    """

    def __init__(self, bench: Bench, worker: Worker) -> None:
        self._bench = bench
        self._worker = worker
        self._task = asyncio.create_task(worker.serve(bench.connection()))

    async def until(self, event: "asyncio.Event | asyncio.Task[object]") -> None:
        """Let time pass until an event happens."""
        happened = asyncio.ensure_future(event.wait()) if isinstance(event, asyncio.Event) else event
        while not happened.done():
            self._bench.clock.advance(0.5)
            await asyncio.wait({happened, self._task}, timeout=0.001, return_when=asyncio.FIRST_COMPLETED)
            if self._task.done() and not happened.done():
                self._task.result()
                pytest.fail("the worker ended")

    async def stopped(self) -> None:
        """Stop the worker and wait for its end."""
        self._worker.stop()
        await self.ended()

    async def ended(self) -> None:
        while not self._task.done():
            self._bench.clock.advance(0.5)
            await asyncio.wait({self._task}, timeout=0.001)
        self._task.result()


def ids(count: int) -> list[str]:
    return [f"{ID[:-2]}{n:02x}" for n in range(count)]


async def test_concurrency_is_limited_and_all_tasks_run(matched: Bench) -> None:
    worker = Worker(("default", "mail"), concurrency=3)
    running = most = done = 0
    full, all_done, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(_: Context) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await go_on.wait()
        running -= 1
        done += 1
        if done == 20:
            all_done.set()

    for n, id_ in enumerate(ids(20)):
        await matched.given_tasks({"main": ()}, execution_id=id_, queue="mail" if n % 2 else "default")
    serving = Serving(matched, worker)
    await serving.until(full)
    go_on.set()
    await serving.until(all_done)
    await serving.stopped()
    assert most == 3
    assert len(await matched.reports()) == 20


async def test_abandoned_thread_keeps_its_slot_until_it_ends(matched: Bench) -> None:
    worker = Worker(concurrency=1)
    release, second = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    runs: list[str] = []

    @worker.task(FUNCTION)
    def handler(context: Context) -> None:
        runs.append(context.execution_id)
        if len(runs) == 2:
            loop.call_soon_threadsafe(second.set)
        release.wait()

    for id_ in ids(2):
        await matched.given_tasks({"main": ()}, execution_id=id_, timeout=0.01)
    serving = Serving(matched, worker)
    await serving.until(asyncio.create_task(first_report(matched)))
    assert runs == ids(1)
    release.set()
    await serving.until(second)
    await serving.stopped()
    assert runs == ids(2)


async def first_report(bench: Bench) -> None:
    async for batch in bench.log.follow(subjects.Stream.REPORTS, "report.>", after=0):
        if batch.messages:
            return


ENDS = [
    Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron"),
    Failed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", reason="timed_out"),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.type)
async def test_cancellation_stops_the_handler_without_a_report(matched: Bench, end: Cancelled | Failed) -> None:
    worker = Worker()
    began, interrupted = asyncio.Event(), asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(context: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            if context.cancelled.is_set():
                interrupted.set()

    await matched.given_task()
    serving = Serving(matched, worker)
    await serving.until(began)
    await matched.given(end)
    await serving.until(interrupted)
    await serving.stopped()
    assert await matched.reports() == []
    assert await matched.releases() == []


CALLED_OFF = Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron")


async def test_handler_that_watches_cancelled_may_end_itself(matched: Bench) -> None:
    worker = Worker()
    began, ended = asyncio.Event(), asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(context: Context) -> str:
        waiting = asyncio.create_task(context.cancelled.wait())
        await asyncio.sleep(0)
        began.set()
        await waiting
        await matched.clock.sleep(5)  # it puts things in order; an interruption would end it here
        ended.set()
        return "in order"

    await matched.given_task()
    serving = Serving(matched, worker)
    await serving.until(began)
    await matched.given(CALLED_OFF)
    await serving.until(ended)
    await serving.stopped()
    assert await matched.reports() == []
    assert await matched.releases() == []


async def test_handler_is_interrupted_after_the_grace(matched: Bench) -> None:
    worker = Worker()
    began, interrupted = asyncio.Event(), asyncio.Event()
    called_off = 0.0

    @worker.task(FUNCTION)
    async def handler(context: Context) -> None:
        nonlocal called_off
        assert not context.cancelled.is_set()
        began.set()
        try:
            await context.cancelled.wait()
            called_off = matched.clock.monotonic()
            await asyncio.Event().wait()
        finally:
            interrupted.set()

    await matched.given_task()
    serving = Serving(matched, worker)
    await serving.until(began)
    await matched.given(CALLED_OFF)
    await serving.until(interrupted)
    assert matched.clock.monotonic() - called_off >= 9.5  # by the clock of the test, which moves in halves of a second
    await serving.stopped()
    assert await matched.reports() == []


async def test_stopping_worker_does_not_wait_for_grace(matched: Bench) -> None:
    worker = Worker(shutdown_timeout=0)
    began, told = asyncio.Event(), asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(context: Context) -> None:
        began.set()
        await context.cancelled.wait()
        told.set()
        await asyncio.Event().wait()

    await matched.given_task()
    serving = Serving(matched, worker)
    await serving.until(began)
    await matched.given(CALLED_OFF)
    await serving.until(told)
    await serving.stopped()
    assert await matched.reports() == []
    assert await matched.releases() == []


async def test_sync_handler_sees_the_cancellation(matched: Bench) -> None:
    worker = Worker()
    began, told = threading.Event(), threading.Event()

    @worker.task(FUNCTION)
    def handler(context: Context) -> None:
        began.set()
        context.cancelled.wait_in_thread()
        told.set()

    await matched.given_task()
    serving = Serving(matched, worker)
    await serving.until(asyncio.create_task(asyncio.to_thread(began.wait)))
    await matched.given(Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron"))
    await serving.until(asyncio.create_task(asyncio.to_thread(told.wait)))
    await serving.stopped()
    assert await matched.reports() == []


async def test_stopping_worker_lets_handlers_finish(matched: Bench) -> None:
    worker = Worker(concurrency=1)
    began = asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(context: Context) -> str:
        began.set()
        await context.shutting_down.wait()
        return "finished"

    for id_ in ids(2):
        await matched.given_tasks({"main": ()}, execution_id=id_)
    serving = Serving(matched, worker)
    await serving.until(began)
    await serving.stopped()
    assert [report.result for report in await matched.reports()] == ["finished"]
    assert len(await matched.claims()) == 1 + len(
        await matched.releases()
    )  # the second may be assigned and handed back


@pytest.mark.parametrize(("timeout", "stops"), [(0, 0), (3_600, 1)], ids=["timeout", "second stop"])
async def test_unfinished_task_is_handed_back_without_a_report(matched: Bench, timeout: float, stops: int) -> None:  # noqa: ASYNC109 - the worker's
    worker = Worker(shutdown_timeout=timeout)
    began = asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(_: Context) -> None:
        began.set()
        await asyncio.Event().wait()

    await matched.given_task()
    serving = Serving(matched, worker)
    await serving.until(began)
    for _ in range(stops):
        worker.stop()
    await serving.stopped()
    assert await matched.reports() == []
    [release] = await matched.releases()
    assert (release.delivery, release.error and release.error.type) == (1, "handed_back")


async def test_task_of_endless_thread_is_handed_back(matched: Bench) -> None:
    worker = Worker(shutdown_timeout=0)
    began, release = threading.Event(), threading.Event()

    @worker.task(FUNCTION)
    def handler(_: Context) -> None:
        began.set()
        release.wait()

    await matched.given_task()
    serving = Serving(matched, worker)
    await serving.until(asyncio.create_task(asyncio.to_thread(began.wait)))
    await serving.stopped()
    [freed] = await matched.releases()
    assert (freed.delivery, freed.error and freed.error.type) == (1, "handed_back")
    release.set()


async def test_result_after_the_end_is_discarded(matched: Bench) -> None:
    worker = Worker(shutdown_timeout=0)
    began, release, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(_: Context) -> str:
        began.set()
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        ended.set()
        return "late"

    await matched.given_task()
    serving, others = Serving(matched, worker), asyncio.all_tasks()
    with structlog.testing.capture_logs() as lines:
        await serving.until(began)
        await serving.stopped()
        release.set()
        await ended.wait()
        while left := asyncio.all_tasks() - others:
            await asyncio.wait(left)
    [line] = [line for line in lines if line["action"] == "task-left"]
    assert (line["job"], line["execution_id"], line["step"], line["attempt"]) == (JOB, ID, "main", 1)
    assert [line["action"] for line in lines].count("late-end") == 1
    assert await matched.reports() == []
    [freed] = await matched.releases()
    assert freed.delivery == 1


async def test_cancelled_worker_leaves_no_asyncio_task(matched: Bench) -> None:
    worker, began = Worker(), asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(_: Context) -> None:
        began.set()
        await asyncio.Event().wait()

    await matched.given_task()
    serving = asyncio.create_task(worker.serve(matched.connection()))
    await began.wait()
    serving.cancel()
    while not serving.done():
        matched.clock.advance(0.5)
        await asyncio.wait({serving}, timeout=0.001)
    assert serving.cancelled()
    [release] = await matched.releases()
    assert (release.delivery, release.error and release.error.type) == (1, "handed_back")


async def test_connection_is_opened_and_closed(matched: Bench) -> None:
    told: list[object] = []
    connected = asyncio.Event()

    @asynccontextmanager
    async def connect(options: Options) -> AsyncIterator[Connection]:
        told.append(options.nats_url)
        connected.set()
        yield matched.connection()
        told.append("closed")

    worker = Worker(nats_url="nats://somewhere", connect=connect)
    serving = asyncio.create_task(worker.serve())
    await connected.wait()
    worker.stop()
    while not serving.done():
        matched.clock.advance(0.5)
        await asyncio.wait({serving}, timeout=0.001)
    await serving
    assert told == ["nats://somewhere", "closed"]


def test_worker_without_handlers_warns_before_it_connects() -> None:
    @asynccontextmanager
    async def connect(_: Options) -> AsyncIterator[Connection]:
        worker.stop()
        await asyncio.sleep(0)
        yield Bench().connection()

    for count in range(2):
        worker = Worker(("default", "mail"), connect=connect, name="w-1")
        if count:
            worker.task("f")(print_nothing)
        with structlog.testing.capture_logs() as lines:
            worker.run()
        warnings = [line for line in lines if line["log_level"] == "warning"]
        assert [line["action"] for line in warnings] == ["worker-without-handlers"] * (1 - count)
        assert [(line["worker"], line["queues"]) for line in warnings] == [("w-1", ("default", "mail"))] * (1 - count)
        assert all("@worker.task" in line["event"] for line in warnings)


def print_nothing(_: Context) -> None: ...


async def test_worker_can_be_stopped_while_connecting(matched: Bench) -> None:
    connecting = asyncio.Event()

    @asynccontextmanager
    async def connect(_: Options) -> AsyncIterator[Connection]:
        connecting.set()
        await asyncio.Event().wait()
        yield matched.connection()

    worker = Worker(connect=connect)
    serving = asyncio.create_task(worker.serve())
    await connecting.wait()
    worker.stop()
    await serving
    assert not serving.cancelled()


async def test_followed_subjects_match_stored_facts() -> None:
    fact = Cancelled(job="a.b", execution_id=ID, scheduled_time=NOON, trigger="cron")
    assert subjects.filter_for("execution.cancelled") == "execution.*.*.cancelled"
    assert subjects.entity_of(subjects.subject_of(fact)) == f"a_b.{ID}"
