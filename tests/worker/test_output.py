"""Output of a handler: lines, progress, and heartbeats for the next attempt."""

import asyncio
import json
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from io import StringIO
from unittest.mock import MagicMock

import pytest
from pydantic import JsonValue
from typing_extensions import override

from tests.domain.given import ID, JOB, NOON
from tests.worker.given import FUNCTION, Bench
from tocsin import Context, subjects, telemetry
from tocsin.domain.events import HeartbeatDetails, OutputLine, StepProgress
from tocsin.ports import LogUnavailable, Write, Written
from tocsin.testing import InMemoryEventLog, ManualClock
from tocsin.worker import output
from tocsin.worker.connection import Options
from tocsin.worker.handlers import Handlers
from tocsin.worker.held_tasks import HeldTask
from tocsin.worker.output import LINES_PER_ATTEMPT
from tocsin.worker.session import Session
from tocsin.worker.shutdown import Shutdown
from tocsin.worker.task_logger import MAX_TRACEBACK_LINES, task_logger

SECRET = "s3cr3t-pässwörd"  # noqa: S105 - a test's


class Deaf(InMemoryEventLog):
    """A log that stores no output while `is_away`."""

    is_away = True

    @override
    async def write(self, writes: Sequence[Write]) -> list[Written]:
        if self.is_away:
            raise LogUnavailable("nobody answers")
        return await super().write(writes)


class Stuck(InMemoryEventLog):
    """A log that never answers a write."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.began = asyncio.Event()

    @override
    async def write(self, writes: Sequence[Write]) -> list[Written]:
        self.began.set()
        await asyncio.Event().wait()
        return []


async def lines(bench: Bench) -> list[OutputLine]:
    found = await bench.log.read(f"output.{subjects.token(JOB)}.{ID}.>")
    return [recorded.message for recorded in found if isinstance(recorded.message, OutputLine)]


async def texts(bench: Bench) -> list[str]:
    return [line.text for line in await lines(bench)]


async def test_lines_are_kept_with_the_execution(bench: Bench) -> None:
    async def handler(context: Context) -> None:
        context.logger.debug("too fine")
        context.logger.info("loading", rows=3, table="a b")
        context.logger.bind(part=1).warning("slow %s", "disk")
        try:
            int("a row")
        except ValueError:
            context.logger.exception("row left out")

    await bench.run(handler)
    await bench.output.drain()

    kept = await lines(bench)
    assert [(line.step, line.attempt, line.time) for line in kept[:1]] == [("main", 1, NOON)]
    assert [(line.level, line.text) for line in kept[:3]] == [
        ("info", "loading rows=3 table='a b'"),
        ("warning", "slow disk part=1"),
        ("error", "row left out"),
    ]
    assert kept[-1].text == "ValueError: invalid literal for int() with base 10: 'a row'"


async def test_sync_handler_speaks_from_its_thread(bench: Bench) -> None:
    def handler(context: Context) -> None:
        assert threading.current_thread() is not threading.main_thread()
        context.logger.info("here")
        context.progress_in_thread(0.25, "loading")
        context.heartbeat_in_thread({"row": 7})

    await bench.run(handler)
    await bench.output.drain()

    assert await texts(bench) == ["here"]
    [progress] = [r.message for r in await bench.log.load("progress.>")]
    assert isinstance(progress, StepProgress)
    assert (progress.fraction, progress.message) == (0.25, "loading")


async def test_sync_handler_needs_no_await(bench: Bench) -> None:
    def handler(context: Context) -> None:
        context.progress(0.25)
        context.heartbeat({"row": 7})
        raise RuntimeError("end")

    await bench.run(handler)
    await bench.output.drain()

    progress, heartbeat = await bench.log.last("progress.>"), await bench.log.last("heartbeat.>")
    assert progress is not None
    assert heartbeat is not None
    assert isinstance(progress.message, StepProgress)
    assert isinstance(heartbeat.message, HeartbeatDetails)
    assert (progress.message.fraction, heartbeat.message.details) == (0.25, {"row": 7})


async def test_progress_may_be_a_task(bench: Bench) -> None:
    async def handler(context: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(context.progress(0.25))  # type: ignore[arg-type] # declared as awaitable, so that it may be left alone
        cancelled = asyncio.ensure_future(context.heartbeat({"row": 7}))
        cancelled.cancel()
        with suppress(asyncio.CancelledError):
            await cancelled
        await asyncio.wait_for(context.progress(0.5), 60)

    await bench.run(handler)
    await bench.output.drain()

    assert (await bench.report()).outcome == "completed"
    progress, heartbeat = await bench.log.last("progress.>"), await bench.log.last("heartbeat.>")
    assert (getattr(progress and progress.message, "fraction"), heartbeat is None) == (0.5, False)  # noqa: B009 - a progress


async def test_secrets_and_control_characters_are_not_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPUT_SECRET", SECRET)

    async def handler(context: Context) -> None:
        context.logger.info("login", password=context.input["password"])
        context.logger.info("\x1b]0;owned\x07 \u202etxt\ttab\nsecond")
        await context.progress(0.5, f"with {SECRET}")
        await context.heartbeat({"at": [SECRET]})
        raise RuntimeError("end")

    await bench.run(handler, input={"password": "${env:OUTPUT_SECRET}"})
    await bench.output.drain()

    assert await texts(bench) == [
        "login password=${env:OUTPUT_SECRET}",
        "\\x1b]0;owned\\x07 \\u202etxt    tab",
        "second",
    ]
    [progress] = [r.message for r in await bench.log.load("progress.>")]
    heartbeat = await bench.log.last("heartbeat.>")
    assert isinstance(progress, StepProgress)
    assert progress.message == "with ${env:OUTPUT_SECRET}"
    assert heartbeat is not None
    assert isinstance(heartbeat.message, HeartbeatDetails)
    assert heartbeat.message.details == {"at": ["${env:OUTPUT_SECRET}"]}


async def test_flood_of_lines_is_dropped_and_counted(bench: Bench) -> None:
    async def handler(context: Context) -> None:
        for number in range(100_000):
            context._output.line("info", f"{number}")  # type: ignore[union-attr] # as the logger does

    await bench.run(handler)
    await bench.output.drain()

    kept = await texts(bench)
    assert len(kept) == LINES_PER_ATTEMPT  # the notice was the oldest of 201
    assert kept[-1] == "99999"
    assert kept[0] == "99800"


async def test_dropped_lines_have_a_line_of_their_own(bench: Bench) -> None:
    async def handler(context: Context) -> None:
        context.logger.info("\n".join(map(str, range(LINES_PER_ATTEMPT + 5))))
        await bench.output.run_once()
        context.logger.info("after")

    await bench.run(handler)
    await bench.output.drain()

    seen = [r.message.text for r in await bench.log.read("output.>") if isinstance(r.message, OutputLine)]
    assert "after" in seen
    assert bench.log.stream(subjects.Stream.OUTPUT).last_sequence == LINES_PER_ATTEMPT + 2


async def test_long_line_is_cut(bench: Bench) -> None:
    async def handler(context: Context) -> None:
        for text in ("x" * 100_000, '"' * 5_000, "漢" * 5_000, "\x00" * 5_000, "\ud800" * 5_000):
            context.logger.info(text)

    await bench.run(handler)
    await bench.output.drain()

    kept = await texts(bench)
    assert len(kept) == 5
    assert all(text.endswith("…") for text in kept)
    assert all(len(text.encode()) > 400 for text in kept)


async def test_absent_log_neither_delays_nor_fails_a_handler() -> None:
    clock = ManualClock(NOON)
    log = Deaf(clock)
    bench = Bench(log, clock)

    async def handler(context: Context) -> str:
        context.logger.info("lost")
        await bench.output.run_once()
        await bench.output.run_once()
        log.is_away = False
        context.logger.info("kept")
        return "done"

    await bench.run(handler)
    await bench.output.drain()

    assert (await bench.report()).result == "done"
    kept = await texts(bench)
    assert kept[-1] == "kept"
    assert kept[0] == "1 lines dropped"


async def test_stuck_log_does_not_delay_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(NOON)
    log = Stuck(clock)
    bench = Bench(log, clock)

    async def handler(context: Context) -> None:
        context.logger.info("never stored")
        stuck.append(asyncio.create_task(bench.output.run_once()))
        await log.began.wait()
        raise ConnectionError("away")

    stuck: list[asyncio.Task[None]] = []
    monkeypatch.setattr(output, "SETTLE_TIMEOUT_S", 3_600.0)
    await bench.run(handler)
    assert (await bench.report()).outcome == "failed"
    assert not stuck[0].done()
    stuck[0].cancel()


@pytest.mark.usefixtures("restored_logging")
def test_written_lines_have_no_secret() -> None:
    out = StringIO()
    telemetry.configure("info", "json", stream=out)
    redact = partial(re.sub, SECRET, "${env:S}")
    logger = task_logger(telemetry.get_logger("tocsin.task"), lambda _level, _text: None, redact)
    text = f"login {SECRET}"
    logger.info(text, password=SECRET, listed=[{"at": SECRET}], rows=3)
    logger.bind(bound=SECRET).warning("with %s", SECRET)
    try:
        int(SECRET)
    except ValueError:
        logger.exception("failed")
    assert SECRET not in out.getvalue()
    first, second, third = map(json.loads, out.getvalue().splitlines())
    assert (first["event"], first["password"], first["rows"]) == ("login ${env:S}", "${env:S}", 3)
    assert (second["event"], second["bound"]) == ("with ${env:S}", "${env:S}")
    assert third["exception"].endswith("with base 10: '${env:S}'")


class Hidden(Exception):
    """Shows a secret only in its text."""

    @override
    def __str__(self) -> str:
        return "parameters: h1dden"

    @override
    def __repr__(self) -> str:
        return "Hidden()"


@pytest.mark.usefixtures("restored_logging")
async def test_text_of_values_has_no_secret() -> None:
    out, kept = StringIO(), list[str]()
    telemetry.configure("info", "json", stream=out)
    redact = partial(re.sub, "h1dden", "${env:S}")
    logger = task_logger(telemetry.get_logger("tocsin.task"), lambda _level, text: kept.append(text), redact)
    logger.error("failed", error=Hidden(), listed=[Hidden()])
    logger.error("with %s", Hidden())
    await logger.alog(30, "later", password="h1dden")
    assert kept[-1].startswith("later ")
    assert "h1dden" not in out.getvalue()
    assert out.getvalue().count("${env:S}") == 4


@pytest.mark.usefixtures("restored_logging")
def test_long_traceback_has_no_secret() -> None:
    out = StringIO()
    telemetry.configure("info", "json", stream=out)
    redact = partial(re.sub, SECRET, "${env:S}")
    logger = task_logger(telemetry.get_logger("tocsin.task"), lambda _level, _text: None, redact)
    try:
        try:
            int(SECRET)
        except ValueError as error:
            raise RuntimeError("\n".join(map(str, range(MAX_TRACEBACK_LINES)))) from error
    except RuntimeError:
        logger.exception("failed")
    assert SECRET not in out.getvalue()
    assert "${env:S}" in json.loads(out.getvalue())["exception"]


@pytest.mark.usefixtures("restored_logging")
async def test_disabled_debug_line_makes_no_text() -> None:
    class Costly:
        @override
        def __repr__(self) -> str:
            made.append(1)
            return ""

    made: list[int] = []
    telemetry.configure("info", "json", stream=StringIO())
    logger = task_logger(telemetry.get_logger("tocsin.task"), lambda _level, _text: None)
    logger.debug("%r", Costly(), field=Costly())
    logger.log(10, "%r", Costly())
    await logger.adebug("%r", Costly())
    await logger.alog(10, "%r", Costly())
    assert made == []


def test_value_without_text_does_not_fail_a_handler() -> None:
    class Odd:
        @override
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    kept: list[str] = []
    logger = task_logger(MagicMock(), lambda _level, text: kept.append(text))
    logger.info("odd", odd=Odd())
    assert kept == ["<a line without readable text: RuntimeError>"]


async def test_next_attempt_reads_the_last_heartbeat(bench: Bench) -> None:
    read: list[JsonValue] = []

    async def handler(context: Context) -> None:
        read.append(context.last_heartbeat)
        await context.heartbeat({"row": 1})
        await context.heartbeat({"row": 1_200})
        raise ConnectionError("away")

    task = (await bench.given_tasks({"main": ()}),)[0][0]
    bench.handlers.add(FUNCTION, handler)
    await bench.executor.run(HeldTask(await bench.assigned()))
    await bench.given(task.changed(attempt=2, token="2"))
    await bench.executor.run(HeldTask(await bench.assigned()))

    assert read == [None, {"row": 1_200}]


async def test_second_delivery_reads_the_heartbeat_of_the_first(bench: Bench) -> None:
    read: list[JsonValue] = []
    began = asyncio.Event()

    async def handler(context: Context) -> None:
        read.append(context.last_heartbeat)
        await context.heartbeat([len(read)])
        began.set()
        if len(read) == 1:
            await asyncio.Event().wait()

    await bench.given_task()
    bench.handlers.add(FUNCTION, handler)
    first = await bench.assigned()
    _, running = bench.running(first)
    await began.wait()
    await bench.output.run_once()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await bench.executor.run(HeldTask(await bench.again(first)))

    assert read == [None, [1]]


@pytest.mark.parametrize(
    ("details", "code"),
    [
        ({"x": "y" * 16_384}, "heartbeat-too-large"),
        ({1: 2}, "heartbeat-invalid"),
        (object(), "heartbeat-invalid"),
        (float("nan"), "heartbeat-invalid"),
    ],
    ids=["large", "key", "object", "nan"],
)
async def test_unusable_heartbeat_is_refused(bench: Bench, details: JsonValue, code: str) -> None:
    codes: list[str] = []

    async def handler(context: Context) -> None:
        try:
            await context.heartbeat(details)
        except ValueError as error:
            codes.append(error.code)  # type: ignore[attr-defined] # a TocsinError

    await bench.run(handler)
    assert codes == [code]


@pytest.mark.parametrize(("given", "shown"), [(1.000_000_1, 1.0), (-1, 0.0), (1, 1.0)])
async def test_progress_stays_between_0_and_1(bench: Bench, given: float, shown: float) -> None:
    async def handler(context: Context) -> None:
        with pytest.raises(ValueError, match="number from 0 to 1"):
            await context.progress(float("nan"))
        await context.progress(given)

    await bench.run(handler)
    await bench.output.drain()
    [progress] = [r.message for r in await bench.log.load("progress.>")]
    assert isinstance(progress, StepProgress)
    assert progress.fraction == shown


async def test_ended_attempt_says_nothing_more(bench: Bench) -> None:
    contexts: list[Context] = []
    await bench.run(lambda context: contexts.append(context))  # noqa: PLW0108
    contexts[0].logger.info("late")
    await contexts[0].heartbeat({"late": True})
    await bench.output.drain()
    assert await texts(bench) == []


async def test_session_sends_the_last_lines_before_it_ends(matched: Bench) -> None:
    handlers, shutdown = Handlers(), Shutdown()

    async def handler(context: Context) -> None:
        context.logger.info("first")
        shutdown.request()
        context.logger.info("last")

    handlers.add(FUNCTION, handler)
    await matched.given_task()
    options = Options(("default",), 1, 5.0, "w", None)
    running = asyncio.create_task(Session(options, handlers, matched.connection(), shutdown).run())
    while not running.done():
        matched.clock.advance(0.5)
        await asyncio.wait({running}, timeout=0.001)
    await running
    assert await texts(matched) == ["first", "last"]
