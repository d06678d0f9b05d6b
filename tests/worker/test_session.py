"""A running worker: concurrency, outages, cancellation, shutdown."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import structlog

from tests.domain.given import ID, JOB, NOON
from tests.worker.given import FUNCTION, Bench
from tocsin import Context, Worker, subjects
from tocsin.domain.events import Cancelled, Failed
from tocsin.ports import Delivery, LogUnavailable
from tocsin.testing import InMemoryTaskQueue
from tocsin.worker import Connection
from tocsin.worker.connection import Options


class Serving:
    """A running worker.

    Time passes only while a test waits for an event or for its end.
    """

    def __init__(self, bench: Bench, worker: Worker, **queues: InMemoryTaskQueue) -> None:
        self._bench = bench
        self._worker = worker
        self._task = asyncio.create_task(worker.serve(bench.connection(**queues)))

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


async def test_concurrency_is_limited_and_all_tasks_run(bench: Bench) -> None:
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
        await bench.given_tasks({"main": ()}, execution_id=id_, queue="mail" if n % 2 else "default")
    serving = Serving(bench, worker, default=bench.queue, mail=InMemoryTaskQueue(bench.log, "mail"))
    await serving.until(full)
    go_on.set()
    await serving.until(all_done)
    await serving.stopped()
    assert most == 3
    assert len(await bench.reports()) == 20


class BreaksOnce(InMemoryTaskQueue):
    """A queue whose connection is lost at the first use."""

    broken = False

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        if not self.broken:
            self.broken = True
            raise LogUnavailable("no connection")
        return await super().take(limit, wait=wait)


async def test_worker_survives_an_outage(bench: Bench) -> None:
    worker, ran = Worker(), asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(_: Context) -> None:
        ran.set()

    await bench.given_task()
    serving = Serving(bench, worker, default=BreaksOnce(bench.log))
    await serving.until(ran)
    await serving.stopped()


async def test_missing_queue_is_named(bench: Bench) -> None:
    with pytest.raises(ValueError, match="no queue 'mail'"):
        await Worker(("mail",)).serve(bench.connection())


async def test_abandoned_thread_keeps_its_slot_until_it_ends(bench: Bench) -> None:
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
        await bench.given_tasks({"main": ()}, execution_id=id_, timeout=0.01)
    serving = Serving(bench, worker)
    await serving.until(asyncio.create_task(first_report(bench)))
    assert runs == ids(1)
    release.set()
    await serving.until(second)
    await serving.stopped()
    assert runs == ids(2)


async def first_report(bench: Bench) -> None:
    async for batch in bench.log.follow(subjects.Stream.REPORTS, "report.>", after=0):
        if batch.messages:
            return


# --- cancellation ----------------------------------------------------------------------------------------------------


ENDS = [
    Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron"),
    Failed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", reason="timed_out"),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.type)
async def test_cancellation_stops_the_handler_without_a_report(bench: Bench, end: Cancelled | Failed) -> None:
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

    await bench.given_task()
    serving = Serving(bench, worker)
    await serving.until(began)
    await bench.given(end)
    await serving.until(interrupted)
    await serving.stopped()
    assert await bench.reports() == []
    assert await bench.queue.take(1, wait=0) == []


CALLED_OFF = Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron")


async def test_handler_that_watches_cancelled_may_end_itself(bench: Bench) -> None:
    worker = Worker()
    began, ended = asyncio.Event(), asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(context: Context) -> str:
        waiting = asyncio.create_task(context.cancelled.wait())
        await asyncio.sleep(0)
        began.set()
        await waiting
        await bench.clock.sleep(5)  # it puts things in order; an interruption would end it here
        ended.set()
        return "in order"

    await bench.given_task()
    serving = Serving(bench, worker)
    await serving.until(began)
    await bench.given(CALLED_OFF)
    await serving.until(ended)
    await serving.stopped()
    assert await bench.reports() == []
    assert await bench.queue.take(1, wait=0) == []


async def test_handler_is_interrupted_after_the_grace(bench: Bench) -> None:
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
            called_off = bench.clock.monotonic()
            await asyncio.Event().wait()
        finally:
            interrupted.set()

    await bench.given_task()
    serving = Serving(bench, worker)
    await serving.until(began)
    await bench.given(CALLED_OFF)
    await serving.until(interrupted)
    assert bench.clock.monotonic() - called_off >= 9.5  # by the clock of the test, which moves in halves of a second
    await serving.stopped()
    assert await bench.reports() == []


async def test_stopping_worker_does_not_wait_for_grace(bench: Bench) -> None:
    worker = Worker(shutdown_timeout=0)
    began, told = asyncio.Event(), asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(context: Context) -> None:
        began.set()
        await context.cancelled.wait()
        told.set()
        await asyncio.Event().wait()

    await bench.given_task()
    serving = Serving(bench, worker)
    await serving.until(began)
    await bench.given(CALLED_OFF)
    await serving.until(told)
    await serving.stopped()
    assert await bench.reports() == []
    assert await bench.queue.take(1, wait=0) == []


async def test_sync_handler_sees_the_cancellation(bench: Bench) -> None:
    worker = Worker()
    began, told = threading.Event(), threading.Event()

    @worker.task(FUNCTION)
    def handler(context: Context) -> None:
        began.set()
        context.cancelled.wait_in_thread()
        told.set()

    await bench.given_task()
    serving = Serving(bench, worker)
    await serving.until(asyncio.create_task(asyncio.to_thread(began.wait)))
    await bench.given(Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron"))
    await serving.until(asyncio.create_task(asyncio.to_thread(told.wait)))
    await serving.stopped()
    assert await bench.reports() == []


# --- shutdown --------------------------------------------------------------------------------------------------------


async def test_stopping_worker_lets_handlers_finish(bench: Bench) -> None:
    worker = Worker(concurrency=1)
    began = asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(context: Context) -> str:
        began.set()
        await context.shutting_down.wait()
        return "finished"

    for id_ in ids(2):
        await bench.given_tasks({"main": ()}, execution_id=id_)
    serving = Serving(bench, worker)
    await serving.until(began)
    await serving.stopped()
    assert [report.result for report in await bench.reports()] == ["finished"]
    [left] = await bench.queue.take(2, wait=0)
    assert left.delivered == 1


async def test_unfinished_task_is_handed_back_without_a_report(bench: Bench) -> None:
    worker = Worker(shutdown_timeout=0)
    began = asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(_: Context) -> None:
        began.set()
        await asyncio.Event().wait()

    await bench.given_task()
    serving = Serving(bench, worker)
    await serving.until(began)
    await serving.stopped()
    assert await bench.reports() == []
    [again] = await bench.queue.take(1, wait=0)
    assert again.delivered == 2


async def test_second_stop_interrupts_all_handlers(bench: Bench) -> None:
    worker = Worker(shutdown_timeout=3_600)
    began = asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(_: Context) -> None:
        began.set()
        await asyncio.Event().wait()

    await bench.given_task()
    serving = Serving(bench, worker)
    await serving.until(began)
    worker.stop()
    await serving.stopped()
    [again] = await bench.queue.take(1, wait=0)
    assert again.delivered == 2


async def test_task_of_endless_thread_is_handed_back(bench: Bench) -> None:
    worker = Worker(shutdown_timeout=0)
    began, release = threading.Event(), threading.Event()

    @worker.task(FUNCTION)
    def handler(_: Context) -> None:
        began.set()
        release.wait()

    await bench.given_task()
    serving = Serving(bench, worker)
    await serving.until(asyncio.create_task(asyncio.to_thread(began.wait)))
    await serving.stopped()
    [again] = await bench.queue.take(1, wait=0)
    assert again.delivered == 2
    release.set()


async def test_cancelled_worker_leaves_no_asyncio_task(bench: Bench) -> None:
    worker, began = Worker(), asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(_: Context) -> None:
        began.set()
        await asyncio.Event().wait()

    await bench.given_task()
    serving = asyncio.create_task(worker.serve(bench.connection()))
    await began.wait()
    serving.cancel()
    while not serving.done():
        bench.clock.advance(0.5)
        await asyncio.wait({serving}, timeout=0.001)
    assert serving.cancelled()
    [again] = await bench.queue.take(1, wait=0)
    assert again.delivered == 2


async def test_connection_is_opened_and_closed(bench: Bench) -> None:
    told: list[object] = []
    connected = asyncio.Event()

    @asynccontextmanager
    async def connect(options: Options) -> AsyncIterator[Connection]:
        told.append(options.nats_url)
        connected.set()
        yield bench.connection()
        told.append("closed")

    worker = Worker(nats_url="nats://somewhere", connect=connect)
    serving = asyncio.create_task(worker.serve())
    await connected.wait()
    worker.stop()
    while not serving.done():
        bench.clock.advance(0.5)
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


async def test_worker_can_be_stopped_while_connecting(bench: Bench) -> None:
    connecting = asyncio.Event()

    @asynccontextmanager
    async def connect(_: Options) -> AsyncIterator[Connection]:
        connecting.set()
        await asyncio.Event().wait()
        yield bench.connection()

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
