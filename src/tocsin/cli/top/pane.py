"""One table of the screen, with a line below it."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.coordinate import Coordinate
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, RichLog, Static, TabbedContent, TabPane
from typing_extensions import override

from ...services.operations.execution_output import ExecutionOutput, Line
from ...services.operator import Operator
from ..executions.commands import FOLLOW_INTERVAL_S
from ..executions.page import line_of
from .head import failure_text, plain
from .operator_thread import OperatorThread
from .panels import Listing, Panel, Row

KEYS: Final = {
    "1 2 3 4": "show a table",
    "↑ ↓": "select a row",
    "p": "pause the job of the row, or resume it",
    "t": "trigger the job of the row",
    "c": "cancel the execution of the row",
    "l": "follow the log lines of the execution, or of the job's newest one",
    "/": "filter all tables by a text; Escape ends the filter",
    "?": "show the keys",
    "q": "quit",
}
_STYLE: Final = """
    align: center middle;
    & > Vertical { width: 72; max-width: 95%; height: auto; padding: 1 2; border: round $primary; background: $surface; }
"""


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


class Question(ModalScreen[str | None]):
    """A dialog for a confirmation and a reason; None: the user declined."""

    DEFAULT_CSS = f"Question {{ {_STYLE} }}"
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    @override
    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(self._question))
            yield Input(placeholder="Reason (optional)")
            yield Static(Text("Enter confirms, Escape declines", style="dim"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class Keys(ModalScreen[None]):
    """A list of the keys."""

    DEFAULT_CSS = f"Keys {{ {_STYLE} }}"
    BINDINGS: ClassVar[list[BindingType]] = [("escape,question_mark,q,enter", "dismiss(None)", "Close")]

    @override
    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text("\n".join(f"{keys:<8} {meaning}" for keys, meaning in KEYS.items())))


class PanelPane(TabPane):
    """One table, and a line about its hidden rows or its failure."""

    DEFAULT_CSS = """
    PanelPane { padding: 0; height: 1fr; }
    PanelPane DataTable { height: 1fr; }
    PanelPane Static { height: auto; max-height: 3; padding: 0 1; }
    """

    def __init__(self, panel: Panel[Any]) -> None:
        super().__init__(panel.title, id=panel.id)
        self.panel = panel
        self._listing: Listing[Any] | None = None
        self._rows: tuple[Row, ...] = ()
        self._failure = ""
        self._read_at = ""

    @override
    def compose(self) -> ComposeResult:
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static()

    def on_mount(self) -> None:
        for heading in self.panel.headings:
            self.table.add_column(heading, width=len(heading))

    @property
    def table(self) -> DataTable[Text]:
        return self.query_one(DataTable)

    @property
    def selected(self) -> Row | None:
        place = self.table.cursor_row
        return self._rows[place] if place < len(self._rows) else None

    def show_listing(self, listing: Listing[Any], text: str) -> None:
        """Show the items of a new read, filtered by a text."""
        self._listing, self._failure = listing, ""
        self._read_at = f"{datetime.now().astimezone():%H:%M:%S}"
        self.show(text)

    def show_failure(self, failure: str) -> None:
        """Show why the table could not be read; its rows stay."""
        since = f" (rows of {self._read_at})" if self._read_at else ""
        self._failure = f"{failure}{since}"
        self._show_line("")

    def show(self, text: str) -> None:
        """Show the rows whose names contain a text, and keep the cursor on its row."""
        if self._listing is None:
            return
        view = self.panel.view(self._listing, datetime.now(UTC), text)
        before, table, place = self.selected, self.table, self.table.cursor_row
        columns = zip(table.ordered_columns, self.panel.headings, *(row.cells for row in view.rows), strict=True)
        for column, heading, *cells in columns:  # the table itself measures late, and keeps what it drew before
            column.width = max([len(heading), *(cell.cell_len for cell in cells)])
        if [row.key for row in view.rows] == [row.key for row in self._rows]:
            self._update(view.rows)
        else:
            table.clear()
            for row in view.rows:
                table.add_row(*row.cells)
            places = {row.key: number for number, row in enumerate(view.rows)}
            if view.rows:
                kept = min(place, len(view.rows) - 1)
                table.move_cursor(row=kept if before is None else places.get(before.key, kept))
        self._rows = view.rows
        self.panel.notice([row.key for row in view.rows])
        self._show_line(view.more if view.rows else "nothing matches" if text else self.panel.empty)
        self.query_ancestor(TabbedContent).get_tab(self).label = f"{self.panel.title} {view.number:,}"

    def _update(self, rows: tuple[Row, ...]) -> None:
        for place, (row, before) in enumerate(zip(rows, self._rows, strict=True)):
            for column, (value, old) in enumerate(zip(row.cells, before.cells, strict=True)):
                if (value, value.style) != (old, old.style):
                    self.table.update_cell_at(Coordinate(place, column), value, update_width=True)

    def _show_line(self, line: str) -> None:
        self.query_one(Static).update(Text(self._failure or line, style="red" if self._failure else "dim"))
