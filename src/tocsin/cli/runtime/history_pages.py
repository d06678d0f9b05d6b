"""Pages of the history: the options that lists share, reading and printing."""

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, TypeAlias, TypeVar

import typer

from ...ports import DeadLetterRow, ExecutionRow
from ...ports.queries import MAX_LIMIT, USUAL_LIMIT, DeadLetterQuery, ExecutionQuery, Page, every
from ...services.notifications import NotificationRow
from ...services.operator import Operator
from ..output.tables import Brief, print_table
from .errors import UsageError
from .session import Session

Row = TypeVar("Row", ExecutionRow, DeadLetterRow, NotificationRow)
Query = TypeVar("Query", ExecutionQuery, DeadLetterQuery)

Job: TypeAlias = Annotated[str | None, typer.Option(help="Filter by job.")]
Error: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Filter by a text that the last error contains.")
]
Limit: TypeAlias = Annotated[
    int | None, typer.Option(min=1, max=MAX_LIMIT, show_default=str(USUAL_LIMIT), help="Rows of one page.")
]
Cursor: TypeAlias = Annotated[str | None, typer.Option(help="Continue after the page that printed this cursor.")]
All: TypeAlias = Annotated[bool, typer.Option("--all", help="Print every row instead of one page.")]


def page_size(limit: int | None, *, is_all: bool) -> int:
    """Return the number of rows to request at a time; refuse `--limit` beside `--all`."""
    if is_all and limit is not None:
        raise UsageError(
            "Cannot list: --all and --limit exclude each other. Omit either option.", code="conflicting-options"
        )
    return MAX_LIMIT if is_all else limit or USUAL_LIMIT


def read_page(
    session: Session,
    reader_of: Callable[[Operator], Callable[[Query], Awaitable[Page[Row]]]],
    query: Query,
    *,
    is_all: bool,
) -> Page[Row]:
    """Read one page, or every row from the cursor on."""

    async def read(operator: Operator) -> Page[Row]:
        reader = reader_of(operator)
        page = Page([row async for row in every(reader, query)]) if is_all else await reader(query)
        if not page.rows and query.job is not None:
            await check_job(operator, query.job)
        return page

    return session.ask(read)


async def check_job(operator: Operator, job: str) -> None:
    """Check that a job is registered, or was and left rows in the history."""
    if (await operator.executions(ExecutionQuery(job=job, limit=1))).rows:
        return
    if (await operator.dead_letters(DeadLetterQuery(job=job, limit=1))).rows:
        return
    await operator.job(job)


def print_page(
    session: Session,
    page: Page[Row],
    headings: Sequence[str],
    row_of: Callable[[Row], tuple[object, ...]],
    *,
    empty: str,
    least: Sequence[str],
    brief: Mapping[str, Brief] | None = None,
) -> None:
    """Print a page to stdout, and the option that continues the list to stderr."""
    document, rows = [asdict(row) for row in page.rows], map(row_of, page.rows)
    print_table(session.output, document, headings, rows, empty=empty, least=least, brief=brief)
    if page.cursor is not None:
        print(f"there are more: --cursor {page.cursor}, or --all", file=sys.stderr)
