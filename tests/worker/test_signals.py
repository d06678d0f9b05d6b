"""`Worker.run` in a separate process that receives signals."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

PROGRAM = """
import asyncio
import sys
import threading
from contextlib import asynccontextmanager, suppress

import structlog

from tests.worker.given import FUNCTION, Bench
from tocsin import Worker

DAYS = 1_000_000


@asynccontextmanager
async def connect(options):
    bench = Bench()
    await bench.given_task(timeout=DAYS)  # time hurries, and a busy machine is late with its signals
    time = asyncio.create_task(passing(bench.clock))
    async with bench.matching():
        yield bench.connection()
        releases = [release.error.type for release in await bench.releases()]
    time.cancel()
    print([report.result or report.error.type for report in await bench.reports()], releases, flush=True)


async def passing(clock):
    while True:
        await asyncio.sleep(0.001)
        clock.advance(0.1)


# The log's lines apart from the handler's: two threads that print into one stream mix their lines.
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
worker = Worker(shutdown_timeout=DAYS, connect=connect)


@worker.task(FUNCTION)
{handler}

worker.run()
"""

WILLING = """
async def handler(context):
    print("working", flush=True)
    await context.shutting_down.wait()
    return "finished"
"""
OBSTINATE = """
async def handler(context):
    print("working", flush=True)
    await context.shutting_down.wait()
    print("asked", flush=True)
    await asyncio.Event().wait()
"""
OBSTINATE_THREAD = """
def handler(context):
    print("working", flush=True)
    context.shutting_down.wait_in_thread()
    print("asked", flush=True)
    threading.Event().wait()
"""
INTERRUPTING = """
async def handler(context):
    print("working", flush=True)
    raise KeyboardInterrupt
"""
INTERRUPTING_THREAD = """
def handler(context):
    print("working", flush=True)
    raise KeyboardInterrupt
"""
BUSY = """
async def handler(context):
    print("working", flush=True)
    await context.shutting_down.wait()
    with suppress(asyncio.CancelledError):
        print("asked", flush=True)
        await asyncio.Event().wait()
    print("busy", flush=True)
    while True:
        pass
"""


@contextmanager
def running(handler: str) -> Iterator["subprocess.Popen[str]"]:
    program = PROGRAM.replace("{handler}", handler.strip())
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: "subprocess.Popen[str]", wanted: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == wanted:
            return
    pytest.fail(f"it never said {wanted!r}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_lets_handlers_finish(number: signal.Signals) -> None:
    with running(WILLING) as process:
        lines_until(process, "working")
        process.send_signal(number)
        lines_until(process, "['finished'] []")
        assert process.wait() == 0


@pytest.mark.parametrize("handler", [OBSTINATE, OBSTINATE_THREAD])
def test_second_signal_interrupts_handlers(handler: str) -> None:
    with running(handler) as process:
        lines_until(process, "working")
        process.send_signal(signal.SIGTERM)
        lines_until(process, "asked")
        process.send_signal(signal.SIGTERM)
        lines_until(process, "[] ['handed_back']")
        assert process.wait() == 0


@pytest.mark.parametrize("handler", [INTERRUPTING, INTERRUPTING_THREAD])
def test_handler_cannot_interrupt_its_worker(handler: str) -> None:
    with running(handler) as process:
        lines_until(process, "working")
        process.send_signal(signal.SIGTERM)
        lines_until(process, "['KeyboardInterrupt'] []")
        assert process.wait() == 0


def test_third_signal_interrupts_a_blocked_loop() -> None:
    with running(BUSY) as process:
        for wanted in ("working", "asked", "busy"):
            lines_until(process, wanted)
            process.send_signal(signal.SIGINT)
        assert process.wait() != 0
