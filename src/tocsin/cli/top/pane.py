"""One table of the screen, with a line below it."""

from datetime import UTC, datetime
from typing import Any

from rich.text import Text
from textual.app import ComposeResult
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Static, TabbedContent, TabPane
from typing_extensions import override

from .panels import Panel, Row
from .readers import Listing


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
        """Add the columns."""
        self.table.add_columns(*self.panel.headings)

    @property
    def table(self) -> DataTable[Text]:
        """The table."""
        return self.query_one(DataTable)

    @property
    def selected(self) -> Row | None:
        """The row under the cursor."""
        place = self.table.cursor_row
        return self._rows[place] if place < len(self._rows) else None

    def show_listing(self, listing: Listing[Any], text: str) -> None:
        """Show what was read now, filtered by a text."""
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
        before, table = self.selected, self.table
        place = table.cursor_row
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
        failure = Text(self._failure, style="red")
        self.query_one(Static).update(failure if self._failure else Text(line, style="dim"))
