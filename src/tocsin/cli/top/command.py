"""`tocsin top`: jobs, running executions, queues and agents on one screen."""

import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from ...adapters.extras import require_extra
from ..output.format import is_interactive
from ..output.tables import table
from ..runtime.errors import Exit, UsageError
from ..runtime.event_loop import run, serve, until_done
from ..runtime.session import Session
from .head import MAX_LINE, head_of, plain
from .panels import MAX_ROWS, Listing, Panel, panels_of


def top(
    session: Session,
    interval: Annotated[float, typer.Option(min=1, help="Seconds between two reads of a table.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the tables once and exit.")] = False,
) -> None:
    """Show running executions, jobs, queues and agents on a screen with keys.

    `p` pauses or resumes the selected job, `t` triggers it, `c` cancels the selected execution, `l` follows log lines, `/` filters,
    `?` shows all keys, and `q` quits. The screen needs the extra `terminal`; `--once` does not.

    Example: `tocsin top --interval 5`
    """
    if once:
        run(_print(session))
        return
    require_extra("tocsin top", "terminal")
    if session.output.is_json or not is_interactive():
        raise UsageError(
            "`tocsin top` shows a screen, which needs a terminal and no `-o json`: add --once to print the tables once",
            code="not-a-terminal",
        )
    serve(_show(session, interval))


async def _show(session: Session, interval: float) -> None:
    from .operator_thread import operator_thread  # noqa: PLC0415 - `--once` needs no thread
    from .screen import TopApp  # noqa: PLC0415 - it imports the extra

    with _without_log_lines():
        async with operator_thread(session) as threaded:
            app = TopApp(threaded, interval)

            async def shown() -> None:
                await app.run_async()

            await until_done(shown(), stop=app.exit)
    if app.return_code:
        raise typer.Exit(Exit.UNFORESEEN)


@contextmanager
def _without_log_lines() -> Iterator[None]:
    """Write no log lines over the screen within the block."""
    root = logging.getLogger()
    handlers = root.handlers
    if sys.stderr.isatty():
        root.handlers = [logging.NullHandler()]
    try:
        yield
    finally:
        root.handlers = handlers


async def _print(session: Session) -> None:
    async with session.operator() as operator:
        panels = panels_of(operator, lookups=MAX_ROWS)
        document, *listings = await asyncio.gather(operator.status(), *(panel.read() for panel in panels))
    now = datetime.now(UTC)
    contents = list(zip(panels, listings, strict=True))

    def shown() -> Iterator[RenderableType]:
        head = head_of(document)
        yield Text(head.line, style="bold")
        yield from (Text(plain(problem, MAX_LINE), style="red") for problem in head.problems)
        for panel, listing in contents:
            yield from _table(panel, listing, now)

    session.output.answer(
        {"status": document}
        | {panel.id: [panel.document(item, now) for item in listing.items] for panel, listing in contents},
        shown,
    )


def _table(panel: Panel[Any], listing: Listing[Any], now: datetime) -> Sequence[RenderableType]:
    view = panel.view(listing, now)
    rows = [row.cells for row in view.rows]
    return (
        Text(),
        Text(f"{panel.title} ({view.number:,})", style="bold"),
        table(panel.headings, rows, empty=panel.empty, least=panel.headings[:0:-1]),
        *([Text(view.more, style="dim")] if view.more else []),
    )
