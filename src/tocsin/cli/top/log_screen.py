"""The log lines of one execution, followed until it has ended."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import Footer, RichLog, Static
from typing_extensions import override

from ...services.operations.execution_output import ExecutionOutput, Line
from ...services.operator import Operator
from ..executions.commands import FOLLOW_INTERVAL_S
from ..executions.page import line_of
from .operator_thread import OperatorThread
from .texts import failure_text, plain

MAX_LINES: Final = 1_000
"""Log lines that stay on the screen."""
MAX_LINE: Final = 4_000
"""Characters of a log line."""


class LogScreen(Screen[None]):
    """Follows the lines that the handlers of an execution logged."""

    DEFAULT_CSS = """
    LogScreen Static { height: 1; background: $panel; padding: 0 1; }
    LogScreen RichLog { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,l", "dismiss(None)", "Back")]

    def __init__(self, threaded: OperatorThread, execution_id: str, job: str) -> None:
        super().__init__()
        self._threaded = threaded
        self._execution_id = execution_id
        self._job = job

    @override
    def compose(self) -> ComposeResult:
        yield Static(Text(f"{plain(self._job)} {plain(self._execution_id)}", style="bold"))
        yield RichLog(wrap=True, max_lines=MAX_LINES, min_width=1)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to follow."""
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        log, place, failure = self.query_one(RichLog), 0, ""
        was_over = False
        while True:
            try:
                output = await self._threaded.run(partial(self._read, self._threaded.operator, place))
            except Exception as error:  # noqa: BLE001 - an error is shown, and the next read may succeed
                if (text := failure_text(error)) != failure:
                    log.write(Text(text, style="red"))
                failure = text
            else:
                failure, place = "", output.next
                for line in output.lines:
                    log.write(shown(line))
                if was_over and not output.lines:
                    log.write(Text("the execution has ended", style="dim"))
                    return
                was_over = output.is_over
            await asyncio.sleep(FOLLOW_INTERVAL_S)

    async def _read(self, operator: Operator, after: int) -> ExecutionOutput:
        return await operator.output(await operator.execution(self._execution_id), after=after)


def shown(line: Line) -> Text:
    """Return a log line that is no markup and changes no terminal."""
    return line_of(replace(line, text=plain(line.text, MAX_LINE), step=plain(line.step), level=plain(line.level)))
