"""Outcomes of handlers, and the reports on them."""

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable
from datetime import date
from enum import Enum, IntEnum
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest

from tests.domain.given import ID, NOON
from tests.worker.given import FUNCTION, WORKER, Bench
from tocsin import Context, NonRetryableError, subjects
from tocsin.domain.events import Failure, Message, Report
from tocsin.domain.secret_reference import SecretReferenceError
from tocsin.ports import LogUnavailable, MessageTooLarge
from tocsin.testing import InMemoryEventLog, ManualClock, settle
from tocsin.worker.handlers import WrongInputError
from tocsin.worker.held_tasks import HeldTask
from tocsin.worker.outcome import StopReason
from tocsin.worker.results import MAX_MESSAGE, MAX_RESULT_BYTES, MAX_TRACEBACK, qualified_name


class CardDeclined(NonRetryableError):
    """An error of a user's handler."""


async def failure_of(bench: Bench) -> Failure:
    error = (await bench.report()).error
    assert error is not None
    return error


class Colour(str, Enum):  # noqa: UP042 - the text of a StrEnum is its value
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Panic(BaseException):
    """A panic of a library in Rust, as `pyo3_runtime.PanicException` is."""


class Money(float):
    """A float of a library, as `numpy.float64` is."""


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


async def test_result_is_reported_with_its_claim(bench: Bench) -> None:
    async def handler(_: Context) -> dict[str, int]:
        return {"reconciled": 3}

    task = await bench.given_task()
    bench.handlers.add(task.function, handler)
    assigned = await bench.assigned()
    await bench.running(assigned)[1]
    [(claimed, started)] = await bench.claims()
    assert (started.delivery, started.worker) == (1, WORKER)
    assert await bench.report() == Report(
        job=task.job,
        execution_id=ID,
        outcome="completed",
        step="main",
        attempt=1,
        delivery=1,
        result={"reconciled": 3},
        token=task.token,
        worker=WORKER,
        claim=claimed,
        proof=assigned.assignment.proof,
    )
    assert bench.handed_back == []


async def test_sync_handler_runs_in_a_thread(bench: Bench) -> None:
    await bench.run(lambda _: threading.current_thread() is threading.main_thread())
    assert (await bench.report()).result is False


@pytest.mark.parametrize(
    ("returned", "result"),
    [(None, None), ("text", "text"), (True, True), (1.5, 1.5), ((1, [2, (3,)]), [1, [2, [3]]]), ({"a": {}}, {"a": {}})],
)
async def test_any_json_value_is_a_result(bench: Bench, returned: object, result: object) -> None:
    await bench.run(lambda _: returned)
    assert (await bench.report()).result == result


async def test_values_of_derived_types_are_plain(bench: Bench) -> None:
    await bench.run(lambda _: {Colour.RED: [Colour.RED, Level.HIGH, Money(1.5)]})
    report = await bench.report()
    assert subjects.decode(subjects.subject_of(report), report.encode()) == report
    assert isinstance(report.result, dict)
    assert [*map(type, report.result)] == [str]
    [values] = report.result.values()
    assert isinstance(values, list)
    assert [(type(value), value) for value in values] == [(str, "red"), (int, 3), (float, 1.5)]


@pytest.mark.parametrize(
    ("returned", "facts"),
    [
        ({"rows": [1, date(2026, 1, 1)]}, ("result.rows[1] ", "datetime.date")),
        (b"bytes", ("result ", " bytes")),
        ({"a": {1: "x"}}, ("key of result.a ", " int")),
        ([float("nan")], ("result[0] ", "nan")),
        (2**70, ("result ", "64 bits")),
        ("\ud800", ("result ", "U+0000", "surrogate")),
        (nested(100), ("result ", "64 levels")),
        ("x" * MAX_RESULT_BYTES, ("result ", "65,538 bytes", "65,536")),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
async def test_unstorable_result_fails_without_retry(bench: Bench, returned: object, facts: tuple[str, ...]) -> None:
    await bench.run(lambda _: returned)
    failure = await failure_of(bench)
    assert failure == Failure(type="invalid_result", message=failure.message, retryable=False)
    assert [fact for fact in facts if fact not in failure.message] == []
    assert bench.handed_back == []


class Strict(InMemoryEventLog):
    """A log that refuses reports above a size, as a server with a small `max_payload` does."""

    limit = 2_000

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        if (size := len(json.dumps(message.document()))) > self.limit:
            raise MessageTooLarge.of(subject, size, self.limit)
        return await super().publish(subject, message, message_id=message_id, ttl=ttl)


def verbose(_: Context) -> NoReturn:
    raise ValueError("x" * 3_000)


@pytest.mark.parametrize("handler", [lambda _: "x" * 3_000, verbose])
async def test_report_that_the_server_refuses_is_a_failure(handler: Callable[..., object]) -> None:
    clock = ManualClock(NOON)
    bench = Bench(Strict(clock), clock)
    await bench.run(handler)
    failure = await failure_of(bench)
    assert (failure.type, failure.retryable, failure.traceback) == ("invalid_result", False, None)
    assert [fact for fact in ("2000", "`max_payload`") if fact not in failure.message] == []
    assert bench.handed_back == []


class ComesBack(InMemoryEventLog):
    """A log that stores two reports before its replies arrive again."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.away = 2
        self.missed = asyncio.Event()

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        sequence = await super().publish(subject, message, message_id=message_id, ttl=ttl)
        if self.away:
            self.away -= 1
            self.missed.set()
            raise LogUnavailable("no connection")
        return sequence


async def test_report_is_stored_once_after_an_outage() -> None:
    clock = ManualClock(NOON)
    log = ComesBack(clock)
    bench = Bench(log, clock)
    bench.handlers.add(FUNCTION, lambda _: "done")
    await bench.given_task()
    _, running = bench.running(await bench.assigned())
    await log.missed.wait()
    assert not running.done()
    while not running.done():
        clock.advance(1)
        await asyncio.sleep(0)
    assert (await bench.report()).result == "done"
    assert bench.handed_back == []


def boom(_: Context) -> NoReturn:
    raise ValueError("boom")


async def async_boom(_: Context) -> NoReturn:
    raise ValueError("boom")


@pytest.mark.parametrize("handler", [boom, async_boom])
async def test_exception_is_reported_with_its_traceback(bench: Bench, handler: Callable[..., object]) -> None:
    await bench.run(handler)
    failure = await failure_of(bench)
    assert (failure.type, failure.message, failure.retryable) == ("ValueError", "boom", True)
    assert failure.traceback is not None
    assert 'raise ValueError("boom")' in failure.traceback
    assert "tocsin/worker" not in failure.traceback
    assert bench.handed_back == []


async def test_non_retryable_error_is_reported(bench: Bench) -> None:
    def declined(_: Context) -> NoReturn:
        raise CardDeclined("no funds")

    await bench.run(declined)
    failure = await failure_of(bench)
    assert (failure.type, failure.retryable) == (f"{__name__}.CardDeclined", False)


async def test_stored_error_is_bounded_and_storable(bench: Bench) -> None:
    def verbose(_: Context) -> NoReturn:
        raise ValueError("\x00\ud800" + "x" * 1_000_000)

    await bench.run(verbose)
    failure = await failure_of(bench)
    assert failure.traceback is not None
    assert failure.message.startswith("\ufffd\ufffdx")
    assert (len(failure.message), len(failure.traceback)) == (MAX_MESSAGE, MAX_TRACEBACK)


async def test_error_without_text_is_reported(bench: Bench) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def mute(_: Context) -> NoReturn:
        raise Mute

    await bench.run(mute)
    assert "without readable text" in (await failure_of(bench)).message


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SystemExit(3), "SystemExit"),
        (StopIteration(), "RuntimeError"),
        (GeneratorExit(), "RuntimeError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (TimeoutError(), "TimeoutError"),
        (Panic(), f"{Panic.__module__}.Panic"),
    ],
)
async def test_any_exception_of_sync_handler_is_reported(bench: Bench, error: BaseException, kind: str) -> None:
    def handler(_: Context) -> NoReturn:
        raise error

    await bench.run(handler)
    assert (await failure_of(bench)).type == kind


async def test_exit_in_async_handler_is_a_failure(bench: Bench) -> None:
    async def handler(_: Context) -> NoReturn:
        sys.exit("bye")

    await bench.run(handler)
    assert (await failure_of(bench)).type == "SystemExit"


async def test_panic_in_async_handler_is_a_failure(bench: Bench) -> None:
    async def handler(_: Context) -> NoReturn:
        raise BaseExceptionGroup("two", [Panic("index out of range"), ValueError()])

    await bench.run(handler)
    assert (await failure_of(bench)).type == "BaseExceptionGroup"
    assert bench.handed_back == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit()], ids=["interrupt", "end"])
@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_interrupt_by_a_handler_is_a_failure(bench: Bench, error: BaseException, depth: int) -> None:
    for _ in range(depth):
        error = BaseExceptionGroup("tasks", [ValueError(), error])

    async def handler(_: Context) -> NoReturn:
        raise error

    await bench.run(handler)
    assert (await failure_of(bench)).type == type(error).__name__
    assert bench.handed_back == []


async def test_interrupt_by_a_signal_is_no_outcome(bench: Bench) -> None:
    async def handler(_: Context) -> None:
        signal.raise_signal(signal.SIGINT)

    effect = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            await bench.run(handler)
    finally:
        signal.signal(signal.SIGINT, effect)
    assert await bench.reports() == []


async def test_handler_whose_loop_ended_has_no_outcome(bench: Bench) -> None:
    async def handler(_: Context) -> None:
        await asyncio.Event().wait()

    bench.handlers.add(FUNCTION, handler)
    await bench.given_task()
    _, running = bench.running(await bench.assigned())
    await settle()
    coroutine = running.get_coro()
    assert coroutine is not None
    coroutine.close()  # as Python does with the tasks of a loop that ended
    running.cancel()
    assert await bench.reports() == []


async def test_awaiting_a_cancelled_task_is_a_failure(bench: Bench) -> None:
    async def handler(_: Context) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    await bench.run(handler)
    assert (await failure_of(bench)).type == "cancelled_itself"
    assert bench.handed_back == []


async def test_async_handler_is_cancelled_at_timeout(bench: Bench) -> None:
    cancelled = asyncio.Event()

    async def handler(_: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    await bench.run(handler, timeout=0.01)
    assert cancelled.is_set()
    failure = await failure_of(bench)
    assert failure == Failure(type="timed_out", message=failure.message, retryable=True)
    assert "0.01s" in failure.message
    assert bench.handed_back == []


async def test_sync_handler_is_abandoned_at_timeout(bench: Bench) -> None:
    told = threading.Event()

    def handler(context: Context) -> None:
        context.cancelled.wait_in_thread()
        told.set()

    bench.handlers.add("slow", handler)
    await bench.given_task(function="slow", timeout=0.01)
    holding, running = bench.running(await bench.assigned())
    await running
    assert (await failure_of(bench)).type == "timed_out"
    assert holding.abandoned is not None
    await asyncio.wrap_future(holding.abandoned)
    assert told.is_set()


async def test_error_during_cleanup_is_still_a_timeout(bench: Bench) -> None:
    async def handler(_: Context) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("while cleaning up") from None

    await bench.run(handler, timeout=0.01)
    assert (await failure_of(bench)).type == "timed_out"


async def begun(bench: Bench, step: str, timeout: float) -> "tuple[HeldTask, asyncio.Task[None]]":  # noqa: ASYNC109 - the step's
    await bench.given_tasks({step: ()}, execution_id=f"{ID[:-2]}{step[1:]:0>2}", timeout=timeout)
    running = bench.running(await bench.assigned())
    await settle()
    return running


async def test_running_handlers_share_one_timer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, goes_on = asyncio.get_running_loop(), asyncio.Event()
    monkeypatch.setattr(loop, "call_at", call_at := Mock(side_effect=loop.call_at))

    async def handler(_: Context) -> None:
        await goes_on.wait()

    bench.handlers.add(FUNCTION, handler)
    running = [await begun(bench, f"s{number}", timeout=50 + number) for number in range(20)]
    assert sum(call.args[0] > loop.time() + 40 for call in call_at.mock_calls) == 1
    goes_on.set()
    await asyncio.gather(*(task for _, task in running))
    assert {report.outcome for report in await bench.reports()} == {"completed"}


async def test_each_handler_has_its_own_timeout(bench: Bench) -> None:
    async def handler(context: Context) -> None:
        await asyncio.sleep(0 if context.step == "s1" else 3_600)

    bench.handlers.add(FUNCTION, handler)
    _, ended = await begun(bench, "s1", timeout=0.01)
    long, stopped = await begun(bench, "s2", timeout=1e15)
    await asyncio.gather(ended, *[(await begun(bench, f"s{number}", timeout=0.1 / number))[1] for number in (3, 4, 5)])
    long.stop(StopReason.SHUTDOWN)
    await stopped
    outcomes = {report.step: report.error and report.error.type for report in await bench.reports()}
    assert outcomes == {"s1": None, **dict.fromkeys(("s3", "s4", "s5"), "timed_out")}


async def test_timeout_inside_handler_is_an_ordinary_failure(bench: Bench) -> None:
    async def handler(_: Context) -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    await bench.run(handler)
    assert (await failure_of(bench)).type == "TimeoutError"


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        (NonRetryableError, "tocsin.worker.errors.NonRetryableError"),
        (WrongInputError, "tocsin.worker.signatures.WrongInputError"),
        (SecretReferenceError, "tocsin.domain.secret_reference.SecretReferenceError"),
        (ValueError, "ValueError"),
    ],
)
def test_stored_names_of_errors_never_change(error: type[BaseException], stored: str) -> None:
    assert qualified_name(error) == stored
