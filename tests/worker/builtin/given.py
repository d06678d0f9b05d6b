"""Commands for the tests, as real processes."""

import asyncio
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from tests.worker.given import Bench
from tocsin.domain.definition.command import Command
from tocsin.domain.events import Failure, OutputLine
from tocsin.settings.builtin import CommandRules
from tocsin.worker.builtin.command import CommandFunction
from tocsin.worker.held_tasks import HeldTask

FUNCTION = "tocsin.command"
PYTHON = str(Path(sys.executable).resolve())
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "AWS_SECRET_ACCESS_KEY": "worker's own"}


class CommandBench(Bench):
    """A bench whose worker offers `tocsin.command` under some rules."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder.resolve()
        self.offer()

    def offer(self, *, environment: Mapping[str, str] = ENVIRONMENT, **rules: object) -> None:
        """Offer the function under these rules, instead of the usual."""
        usual: dict[str, Any] = {
            "programs": [f"{self.folder}/*", PYTHON],
            "interpreters": [str(Path("/bin/sh").resolve()), PYTHON],
            "directories": [str(self.folder)],
            "variables": ["REPORT_*"],
        }
        function = CommandFunction(CommandRules(**(usual | rules)), environment)
        self.handlers.add_builtin(FUNCTION, function)

    def program(self, name: str, text: str, shebang: str = "#!/bin/sh") -> str:
        """Write a program, and return its path."""
        path = self.folder / name
        path.write_text(f"{shebang}\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    async def give(self, command: Mapping[str, Any], **task: Any) -> HeldTask:  # noqa: ANN401 - as `given_tasks`
        """Dispatch and claim a task with a command."""
        builtin: dict[str, JsonValue] = Command(**command).model_dump(mode="json", exclude_defaults=True)
        await self.given_task(function=FUNCTION, builtin=builtin, **task)
        return HeldTask(await self.assigned())

    async def execute(self, command: Mapping[str, Any], **task: Any) -> JsonValue:  # noqa: ANN401 - as `given_tasks`
        """Run a command to its end, and return its result."""
        await self.executor.run(await self.give(command, **task))
        report = await self.report()
        assert report.error is None, report.error
        return report.result

    async def fail(self, command: Mapping[str, Any], **task: Any) -> Failure:  # noqa: ANN401 - as `given_tasks`
        """Run a command to its end, and return its failure."""
        await self.executor.run(await self.give(command, **task))
        error = (await self.report()).error
        assert error is not None
        return error

    async def script(self, text: str, **more: Any) -> JsonValue:  # noqa: ANN401 - as `Command`
        """Run a script of the shell."""
        return await self.execute({"script": text, "result": "last_line", **more})

    async def lines(self) -> list[OutputLine]:
        """Return the lines that the execution keeps."""
        await self.output.drain()
        return [r.message for r in await self.log.read("output.>") if isinstance(r.message, OutputLine)]

    async def texts(self) -> list[str]:
        return [line.text for line in await self.lines()]


async def until(happened: Callable[[], bool]) -> None:
    """Wait for a process outside the event loop."""
    async with asyncio.timeout(30):
        while not happened():  # noqa: ASYNC110 - a file or a process cannot wake an event
            await asyncio.sleep(0.02)


def is_alive(process: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def number_in(path: Path) -> int:
    return int(path.read_text())


def has_number(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(process: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(FileNotFoundError, ProcessLookupError):
                if parent_of(int(entry.name)) == process:
                    found.append(int(entry.name))
    return found
