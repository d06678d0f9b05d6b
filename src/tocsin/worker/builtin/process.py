"""A command's process, as the worker sees it."""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

import msgspec

from ... import telemetry
from ..builtin_call import BuiltinFailure
from .lines import Lines

_log: Final = telemetry.get_logger("tocsin.worker")
_SUPERVISOR: Final = str(Path(__file__).with_name("supervisor.py"))
_CHUNK: Final = 65_536
_FLUSH_INTERVAL_S: Final = 0.2
_END_OF_OUTPUT_S: Final = 1.0
"""How long output may follow after the end of the supervisor, where a process can escape it."""
_KILL_S: Final = 0.5
"""How long a worker that must not wait waits for the end of a killed command."""
_RESUME_S: Final = 1.0
"""How long a supervisor that its command stopped stays stopped."""
ANSWER_S: Final = 25.0
"""How long a supervisor may take to answer after the grace: it repeats SIGKILL for ten seconds, twice."""
MAX_ANSWER: Final = 65_536
"""Bytes of a supervisor's answer, which names at most 1,000 processes."""

_LARGEST_CODE: Final = 255
_SET_DUMPABLE: Final = 4
_LIMITED = 3
_FORK: Final = f"""
import os, resource
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    child = os.fork()
except OSError:
    os._exit({_LIMITED})
os._exit(0)
"""
"""Exits with 3 if a limit on processes holds."""


def can_limit_processes() -> bool:
    """Return whether this user's processes can be limited in number.

    Processes of root cannot, nor processes with some capabilities. Only a try says so, because the root of a container may be another user.
    """
    probe = subprocess.run([sys.executable, "-I", "-S", "-c", _FORK], check=False)  # noqa: S603 - no input of others
    return probe.returncode == _LIMITED


def hide_memory() -> None:
    """Forbid other processes of this user to read the memory of this process.

    Commands could read its environment in /proc. Only Linux can forbid it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Order:
    """The command that the supervisor runs, with every value decided."""

    executable: str
    argv: tuple[str, ...]
    script: str | None
    cwd: str
    env: Mapping[str, str]
    grace: float
    max_cpu: int | None
    max_memory: int | None
    max_file_size: int | None
    max_processes: int | None


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a command: exit code, signal or failed start; none: it runs on."""

    exit: int | None = None
    signal: int | None = None
    problem: str | None = None
    remaining: Sequence[int] = ()
    """Processes that SIGKILL did not end."""


async def run(order: Order, input_: bytes, out: Lines, err: Lines) -> Exit:
    """Run a command, and pass on its output.

    If this is cancelled, the command is ended first: by SIGTERM, and by SIGKILL after its grace. A second cancellation kills
    it at once. If the worker dies, the supervisor ends it. A process that SIGKILL does not end within ten seconds is left, with a warning.
    A supervisor that does not answer, because its command stopped it, is killed.
    """
    with ExitStack() as stack:
        opened = _Pipes(stack)
        config = opened.file(json.dumps(asdict(order)).encode())
        control_read, control_write = opened.pipe()
        readers = [opened.pipe() for _ in range(3)]
        passed = (config.fileno(), control_read, readers[0][1])
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-X", "utf8", _SUPERVISOR, *map(str, passed)),
            stdin=opened.file(input_),
            stdout=readers[1][1],
            stderr=readers[2][1],
            pass_fds=passed,
            env={},
            cwd="/",
            start_new_session=True,
        )
        for fd in (control_read, *(write for _, write in readers)):
            opened.close(fd)
        status = asyncio.create_task(_read_all(opened.take(readers[0][0])))
        pumps = [
            asyncio.create_task(_follow(opened.take(read), lines.feed))
            for (read, _), lines in zip(readers[1:], (out, err), strict=True)
        ]
        flushing = asyncio.create_task(_flush(out, err))
        try:
            answer = await _answer(status, control_write, process, order)
            await asyncio.wait(pumps, timeout=_END_OF_OUTPUT_S)
        finally:
            opened.close(control_write)
            _warn(status, order)
            for task in (*pumps, flushing, status):
                task.cancel()
            await asyncio.gather(*pumps, flushing, status, return_exceptions=True)
            out.close()
            err.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(_KILL_S):  # the supervisor ends after its answer
                    await process.wait()
    if (end := _exit_of(answer)) is None:
        raise BuiltinFailure(
            "supervisor_killed", "the process that runs the command was killed, or overwritten, from outside"
        )
    return end


async def _answer(
    status: "asyncio.Task[bytes]", control_fd: int, supervisor: asyncio.subprocess.Process, order: Order
) -> bytes:
    """Wait for the end of the command; if cancelled, end it, and raise."""
    try:
        return await asyncio.shield(status)
    except asyncio.CancelledError:
        _tell(control_fd, b"t")
        try:
            if not await _has_answered(status, supervisor, order.grace + ANSWER_S):
                await _kill(status, supervisor, order)
        except asyncio.CancelledError:
            _tell(control_fd, b"k")
            # A supervisor that runs ends the command after the worker too, so it is not killed.
            if not await _has_answered(status, supervisor, _KILL_S) and _is_stopped(supervisor):
                await _kill(status, supervisor, order)
        raise


async def _has_answered(status: "asyncio.Task[bytes]", supervisor: asyncio.subprocess.Process, within_s: float) -> bool:
    """Wait for a supervisor's answer, and resume it each second: its command may stop it."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    while not status.done() and (left := until - loop.time()) > 0:
        _signal(supervisor, signal.SIGCONT)
        await asyncio.wait([status], timeout=min(left, _RESUME_S))
    return status.done()


async def _kill(status: "asyncio.Task[bytes]", supervisor: asyncio.subprocess.Process, order: Order) -> None:
    """Kill a supervisor that does not answer. Its command dies too, but no other process."""
    _signal(supervisor, signal.SIGKILL)
    _log.warning(
        "supervisor killed; processes of its command may remain", action="command-remains", command=order.argv[0]
    )
    await asyncio.wait([status], timeout=_KILL_S)


def _is_stopped(supervisor: asyncio.subprocess.Process) -> bool:
    """Return whether a signal stopped a supervisor; False where the system does not say so."""
    if sys.platform == "linux":
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, supervisor.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def _signal(supervisor: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        supervisor.send_signal(number)


def _warn(status: "asyncio.Task[bytes]", order: Order) -> None:
    is_answered = status.done() and not status.cancelled() and status.exception() is None
    end = _exit_of(status.result()) if is_answered else None
    if end is not None and end.remaining:
        _log.warning(
            "command cannot be ended", action="command-remains", command=order.argv[0], processes=end.remaining
        )


def _exit_of(answer: bytes) -> Exit | None:
    """Return the end of a command; None: its supervisor says nothing of it.

    A command may write into the pipe of a supervisor: of its own if the worker is root, of another that has just begun.
    """
    try:
        end = msgspec.json.decode(answer, type=Exit)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    is_said = (end.exit, end.signal, end.problem) != (None, None, None) or bool(end.remaining)
    are_codes = all(code is None or 0 <= code <= _LARGEST_CODE for code in (end.exit, end.signal))
    return end if is_said and are_codes else None


def _tell(control_fd: int, word: bytes) -> None:
    with suppress(OSError):  # it has ended
        os.write(control_fd, word)


async def _read_all(stream: IO[bytes]) -> bytes:
    """Return the answer of a supervisor, or nothing if it is too long."""
    answer = bytearray()
    await _follow(stream, lambda part: answer.extend(part[: MAX_ANSWER + 1 - len(answer)]))
    return bytes(answer) if len(answer) <= MAX_ANSWER else b""


async def _follow(stream: IO[bytes], take: Callable[[bytes], None]) -> None:
    """Pass each part of a pipe to `take`, until its end."""
    reader = asyncio.StreamReader(limit=_CHUNK)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), stream
    )
    try:
        while chunk := await reader.read(_CHUNK):
            take(chunk)
    finally:
        transport.close()


async def _flush(*streams: Lines) -> None:
    while True:
        await asyncio.sleep(_FLUSH_INTERVAL_S)
        for lines in streams:
            lines.flush()


class _Pipes:
    """File descriptors that are closed with the stack, unless they are closed or taken before."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._open: set[int] = set()
        stack.callback(self._close_all)

    def pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._open.update(ends)
        return ends

    def file(self, content: bytes) -> IO[bytes]:
        """Return a file without a name, open at its beginning."""
        file = self._stack.enter_context(_nameless_file())
        file.write(content)
        file.seek(0)
        return file

    def close(self, fd: int) -> None:
        if fd in self._open:
            self._open.remove(fd)
            os.close(fd)

    def take(self, fd: int) -> IO[bytes]:
        """Return a descriptor as a file, which its user closes."""
        self._open.remove(fd)
        return os.fdopen(fd, "rb", buffering=0)

    def _close_all(self) -> None:
        for fd in tuple(self._open):
            self.close(fd)


def _nameless_file() -> IO[bytes]:
    if sys.platform != "linux":  # on Linux it is in memory, so that an input with secrets reaches no disk
        return tempfile.TemporaryFile(buffering=0)
    return os.fdopen(os.memfd_create("tocsin"), "w+b", buffering=0)
