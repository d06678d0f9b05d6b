"""The screen of `tocsin top`: the head, four tables, and the keys."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import ClassVar, Final, TypeVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import Footer, Input, Static, TabbedContent
from typing_extensions import override

from ...ports.queries import ExecutionQuery
from .head import MAX_LINE, Head, failure_text, head_of, plain
from .operator_thread import OperatorThread
from .pane import Keys, LogScreen, PanelPane, Question
from .panels import panels_of

T = TypeVar("T")

MAX_PROBLEMS: Final = 2
"""Problems below the first line."""


class NowScreen(Screen[None]):
    """Shows the tables, and reads each again after an interval."""

    DEFAULT_CSS = """
    NowScreen { overflow: hidden; }
    NowScreen #head { height: auto; max-height: 4; padding: 0 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
    NowScreen TabbedContent, NowScreen ContentSwitcher { height: 1fr; }
    NowScreen #message { height: auto; max-height: 3; padding: 0 1; }
    NowScreen #filter { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("p", "switch", "Pause/resume"),
        ("t", "trigger", "Trigger"),
        ("c", "cancel", "Cancel"),
        ("l", "follow", "Logs"),
        ("slash", "filter", "Filter"),
        ("question_mark", "show_keys", "Help"),
        ("q", "app.quit", "Quit"),
        Binding("escape", "end_filter", show=False),
        *(Binding(str(number), f"show_table({number - 1})", show=False) for number in range(1, 5)),
    ]

    def __init__(self, threaded: OperatorThread, interval: float) -> None:
        """Show an installation; `interval`: seconds between two reads of a table."""
        super().__init__()
        self._threaded = threaded
        self._operator = threaded.operator
        self._interval = interval
        self._panels = panels_of(threaded.operator)
        self._changed = {panel.id: asyncio.Event() for panel in self._panels}

    @override
    def compose(self) -> ComposeResult:
        yield Static(Text("reading"), id="head")
        with TabbedContent():
            for panel in self._panels:
                yield PanelPane(panel)
        yield Static(id="message")
        yield Input(placeholder="Filter", id="filter", compact=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        for panel in self._panels:
            self.run_worker(self._refresh(self.query_one(f"#{panel.id}", PanelPane)))
        self.run_worker(self._refresh_head())
        self.action_show_table(0)

    async def _refresh(self, pane: PanelPane) -> None:
        async def read() -> None:
            pane.show_listing(await self._threaded.run(pane.panel.read), self._text)

        await self._repeat(read, pane.show_failure, self._changed[pane.panel.id])

    async def _refresh_head(self) -> None:
        widget = self.query_one("#head", Static)
        head: Head | None = None

        async def read() -> None:
            nonlocal head
            head = head_of(await self._threaded.run(self._operator.status))
            widget.update(_head_text(head))

        await self._repeat(read, lambda failure: widget.update(_head_text(head, failure)), asyncio.Event())

    async def _repeat(
        self, read: Callable[[], Awaitable[None]], show_failure: Callable[[str], None], changed: asyncio.Event
    ) -> None:
        """Read one time after another. After an error, the next read may succeed."""
        now = asyncio.get_running_loop().time
        while True:
            changed.clear()
            began = now()
            try:
                await read()
            except Exception as error:  # noqa: BLE001 - the user reads every error
                with suppress(NoMatches):  # the screen has closed
                    show_failure(failure_text(error))
            with suppress(TimeoutError):  # the wait ends before when the user changes something
                async with asyncio.timeout(max(self._interval, now() - began)):
                    await changed.wait()

    @property
    def _text(self) -> str:
        return self.query_one("#filter", Input).value

    @property
    def _pane(self) -> PanelPane:
        return self.query_one(f"#{self.query_one(TabbedContent).active}", PanelPane)

    def action_show_table(self, number: int) -> None:
        self.query_one(TabbedContent).active = self._panels[number].id
        self._pane.table.focus()

    def on_tabbed_content_tab_activated(self) -> None:
        """Let the arrow keys select rows of the table that is shown."""
        self._pane.table.focus()

    def action_filter(self) -> None:
        entry = self.query_one("#filter", Input)
        entry.display = True
        entry.focus()

    def action_end_filter(self) -> None:
        entry = self.query_one("#filter", Input)
        entry.value, entry.display = "", False
        self._pane.table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        for pane in self.query(PanelPane):
            pane.show(event.value)

    def on_input_submitted(self) -> None:
        """Go back to the rows, which stay filtered."""
        self._pane.table.focus()

    def action_show_keys(self) -> None:
        self.app.push_screen(Keys())

    @work(exclusive=True, group="action")
    async def action_switch(self) -> None:
        """Pause the selected job, or resume it."""
        name = self._selected_job()
        if name is None or (job := await self._try(partial(self._operator.job, name))) is None:
            return
        verb, switch = ("resume", self._operator.resume) if job.ledger.is_paused else ("pause", self._operator.pause)

        async def act(reason: str | None) -> str:
            changed = await switch(name, reason=reason)
            return f"{verb}d {name}" if changed else f"{name} was {verb}d already"

        await self._ask(f"{verb} job {name}?", act)

    @work(exclusive=True, group="action")
    async def action_trigger(self) -> None:
        if (name := self._selected_job()) is None:
            return

        async def act(reason: str | None) -> str:
            return f"triggered {name}: execution {await self._operator.trigger(name, reason=reason)}"

        await self._ask(f"trigger job {name}?", act)

    @work(exclusive=True, group="action")
    async def action_cancel(self) -> None:
        row = self._pane.selected
        if row is None or (execution_id := row.execution_id) is None:
            self._say("select an execution in the table Running", is_error=True)
            return

        async def act(reason: str | None) -> str:
            answer = await self._operator.cancel(execution_id, reason=reason, job=row.job)
            return f"cancelled {execution_id}" if answer.changed else f"{execution_id} was {answer.status} already"

        await self._ask(f"cancel execution {execution_id} of {row.job}?", act)

    @work(exclusive=True, group="action")
    async def action_follow(self) -> None:
        """Follow the log lines of the selected execution, or of the job's newest."""
        row, name = self._pane.selected, self._selected_job()
        if row is None or name is None:
            return
        execution_id = row.execution_id
        if execution_id is None:
            newest = await self._try(partial(self._operator.executions, ExecutionQuery(job=name, limit=1)))
            if newest is None:
                return
            if not newest.rows:
                self._say(f"job {name} has no executions", is_error=True)
                return
            execution_id = newest.rows[0].execution_id
        self.app.push_screen(LogScreen(self._threaded, execution_id, name))

    def _selected_job(self) -> str | None:
        """Return the name of the selected job; without one, show a message."""
        row = self._pane.selected
        if row is None or row.job is None:
            self._say("select a job in the table Jobs, or an execution in the table Running", is_error=True)
            return None
        return row.job

    async def _ask(self, question: str, act: Callable[[str | None], Awaitable[str]]) -> None:
        reason = await self.app.push_screen_wait(Question(plain(question, MAX_LINE)))
        if reason is not None:  # in a worker of its own, which the next key does not cancel
            self.run_worker(self._carry_out(partial(act, reason or None)))

    async def _carry_out(self, act: Callable[[], Awaitable[str]]) -> None:
        """Act, show the result, and read the tables again."""
        if (done := await self._try(act)) is None:
            return
        self._say(done)
        for changed in self._changed.values():
            changed.set()

    async def _try(self, operation: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of an operation; None: it failed, and the error is shown."""
        try:
            return await self._threaded.run(operation)
        except Exception as error:  # noqa: BLE001 - the user reads the error
            self._say(failure_text(error), is_error=True)
            return None

    def _say(self, message: str, *, is_error: bool = False) -> None:
        """Show a message until the next."""
        self.query_one("#message", Static).update(Text(plain(message, MAX_LINE), style="red" if is_error else "green"))


def _head_text(head: Head | None, failure: str = "") -> Text:
    """Return the head: a line, and the first problems or the failure."""
    problems = head.problems if head else ()
    lines = [Text(head.line, style="bold")] if head else []
    lines += [Text(plain(line, MAX_LINE), style="red") for line in ([failure] if failure else problems[:MAX_PROBLEMS])]
    if not failure and len(problems) > MAX_PROBLEMS:
        lines.append(Text(f"and {len(problems) - MAX_PROBLEMS} more; see `tocsin doctor`", style="dim"))
    return Text("\n").join(lines)


class TopApp(App[None]):
    """Shows an installation until the user quits."""

    TITLE = "tocsin top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [("ctrl+c", "quit", "Quit")]

    def __init__(self, threaded: OperatorThread, interval: float) -> None:
        """Show an installation; `interval`: seconds between two reads of a table."""
        super().__init__()
        self._threaded = threaded
        self._interval = interval

    @override
    def get_default_screen(self) -> NowScreen:
        return NowScreen(self._threaded, self._interval)
