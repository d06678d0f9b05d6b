"""A process with one version of an application, and its messages to `tocsin dev`."""

import asyncio
import json
import os
import socket
import sys
from asyncio import StreamReader
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

from ...domain.definition import JobDefinition
from ..runtime.errors import Exit, UsageError

Document: TypeAlias = dict[str, Any]

MAX_REPORT: Final = 1 << 30
"""Bytes of the report of a process: a line with all definitions of its application."""
KILL_AFTER_S: Final = 10.0
"""Seconds beside the shutdown timeout after which a process that does not end is killed."""
_STDERR: Final = 2


def written(document: Document) -> bytes:
    """Return a message: a line of JSON."""
    return json.dumps(document).encode() + b"\n"


class AppRefused(UsageError):
    """The application cannot be imported. `file` and `line` are the place in its code."""

    code = "app-import-failed"
    codes: ClassVar[Mapping[str, str]] = {}  # the error has the code of the reason, which has its meaning elsewhere

    def __init__(self, report: Mapping[str, Any]) -> None:
        """`report`: the error, as the process sent it."""
        file, self.line = report.get("file"), report.get("line")
        self.file = None if file is None else os.path.relpath(file)
        place = "" if file is None else f"{self.file}: " if self.line is None else f"{self.file}:{self.line}: "
        super().__init__(f"{place}{report['text']}", Exit(report["exit_code"]), code=report["code"])
        self.folders = _paths(report)
        """The folders of the modules that were imported before the error."""


@dataclass(frozen=True)
class AppVersion:
    """A process that has imported the application, and takes tasks once it is permitted."""

    process: Process
    writer: asyncio.StreamWriter
    owner: str
    definitions: tuple[JobDefinition, ...]
    folders: Sequence[Path]
    shutdown_timeout_s: float

    def permit(self, permission: Document) -> None:
        self.writer.write(written(permission))

    async def drain(self) -> None:
        """Let it finish its running tasks, and wait until it has ended."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.shutdown_timeout_s + KILL_AFTER_S):
                await self.process.wait()
        await self.kill()

    async def kill(self) -> None:
        await _kill(self.process)
        self.writer.close()


async def import_app(target: str, *, is_json: bool) -> AppVersion:
    """Import the application in a new process.

    With `is_json`, its output goes to standard error. If the call is cancelled, the process is killed.

    Raises:
        AppRefused: the application is wrong.
    """
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_REPORT)
    with theirs:
        # Without `-P`, files of the current folder would replace modules of the standard library.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "tocsin.cli.dev.app_process", str(theirs.fileno()), target),
            stdin=DEVNULL,
            stdout=_STDERR if is_json else None,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C is for the parent, which stops this process in its turn
        )
    try:
        report = await _report(process, reader, target)
        definitions = tuple(JobDefinition.model_validate(body) for body in report["definitions"])
    except BaseException:
        await _kill(process)
        writer.close()
        raise
    return AppVersion(process, writer, report["owner"], definitions, _paths(report), report["shutdown_timeout_s"])


async def _report(process: Process, reader: StreamReader, target: str) -> Document:
    """Return the report of the process about the application."""
    line = b""
    with suppress(ConnectionError):
        line = await reader.readline()
    if not line.endswith(b"\n"):
        code = await process.wait()
        text = f"the process ended with {code} while it imported {target}. Correct what ends it."
        raise AppRefused({"text": text, "exit_code": Exit.USAGE, "code": AppRefused.code})
    report: Document = json.loads(line)
    if "error" in report:
        raise AppRefused(report["error"] | {"folders": report["folders"]})
    return report


async def _kill(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _paths(report: Mapping[str, Any]) -> list[Path]:
    return [Path(folder) for folder in report.get("folders", ())]
