"""`tocsin top` as a program: in a pseudo-terminal, and as one snapshot in a pipe."""

import asyncio
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest

from tests.system.processes import environment_of, run_command
from tests.system.running import Running, deciding, running, settings
from tocsin import Context, Worker, bootstrap
from tocsin.domain.events import Completed
from tocsin.settings import Settings

DEADLINE_S: Final = 60.0
COMMAND: Final = (sys.executable, "-m", "tocsin", "top")


@pytest.fixture
async def installation(nats_url: str, tmp_path: Path) -> AsyncIterator[Settings]:
    of = settings(nats_url, tmp_path)
    async with bootstrap.connect(of) as installation:
        await bootstrap.initialize(installation)
        async with deciding(installation) as stage:
            await Running(stage).apply({"name": "nightly", "function": "f"})
        yield of


class Terminal:
    """A program in a pseudo-terminal of 80 columns."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._before = termios.tcgetattr(self._slave)
        self.process = subprocess.Popen(
            COMMAND,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        self.written = b""

    @property
    def is_restored(self) -> bool:
        """Whether the terminal is as it was: its modes, and its screen."""
        return termios.tcgetattr(self._slave) == self._before and b"\x1b[?1049l" in self.written

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Read what the program writes until a condition holds."""
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                await asyncio.to_thread(self._read)

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.1)[0]:
            self.written += os.read(self._master, 65_536)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.mark.parametrize("end", [b"q", b"\x03", signal.SIGTERM])
async def test_screen_ends_and_restores_the_terminal(end: bytes | signal.Signals, installation: Settings) -> None:
    terminal = Terminal(environment_of(installation))
    try:
        await terminal.until(lambda: b"on demand" in terminal.written or b"history-not-found" in terminal.written)
        if isinstance(end, bytes):
            terminal.press(end)
        else:
            terminal.process.send_signal(end)
        await terminal.until(lambda: terminal.process.poll() is not None)
        await asyncio.to_thread(terminal._read)
        assert terminal.process.returncode == 0, terminal.written
        assert terminal.is_restored
        assert b"Traceback" not in terminal.written
    finally:
        terminal.close()


async def test_pipe_gets_one_snapshot(nats_url: str, tmp_path: Path) -> None:
    worker = Worker()

    @worker.task("f")
    async def succeed(_: Context) -> None: ...

    async with running(nats_url, tmp_path, worker=worker) as tocsin:
        await tocsin.apply({"name": "nightly", "schedule": "0 4 * * *", "function": "f"})
        await tocsin.trigger("nightly")
        await tocsin.ended("nightly", Completed)

        async def is_shown() -> str:  # the history, the queues and the agents follow the log
            text = (await snapshot(tocsin.settings)).stdout
            shown = ("completed", "Running (0)", "Jobs (1)", "Queues (1)", "Agents (1)")
            return text if all(each in text for each in shown) else ""

        text = await tocsin.until(is_shown)
        assert tocsin.settings.root in text
        assert "\x1b" not in text
        document = json.loads((await snapshot(tocsin.settings, "-o", "json")).stdout)
        assert document["status"]["problems"] == []
        assert document["running"] == []
        assert [(job["name"], job["last_outcome"]) for job in document["jobs"]] == [("nightly", "completed")]
        assert [queue["name"] for queue in document["queues"]] == ["default"]
        assert len(document["agents"]) == 1


async def test_screen_without_a_terminal_is_refused(installation: Settings) -> None:
    result = await call(installation)
    assert result.returncode == 2
    assert "add --once" in result.stderr


async def snapshot(of: Settings, *args: str) -> "subprocess.CompletedProcess[str]":
    return await call(of, "--once", *args)


async def call(of: Settings, *args: str) -> "subprocess.CompletedProcess[str]":
    return await run_command(["top", *args], environment_of(of))
