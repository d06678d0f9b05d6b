"""`tocsin executions list`, `show`, `logs` and `cancel`, and `tocsin dead-letters list`: pages of the history."""

import sys
from asyncio import sleep
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Final, TypeAlias, TypeVar

import typer
from rich.text import Text

from ...domain.events import TriggerKind
from ...domain.history import Status
from ...ports import DeadLetterRow, ExecutionRow
from ...ports.queries import (
    MAX_LIMIT,
    USUAL_LIMIT,
    DeadLetterQuery,
    DeadLetterSort,
    ExecutionQuery,
    ExecutionSort,
    Page,
    every,
)
from ...services.operations.execution_requests import Cancellation
from ...services.operator import Operator
from ..input.values import instant
from ..output.format import seconds, state
from ..output.tables import Brief, table, this_year, unique_beginnings
from ..runtime.batch import on_each
from ..runtime.errors import UsageError
from ..runtime.event_loop import run, serve
from ..runtime.session import Session, session_of

FOLLOW_INTERVAL_S: Final = 1.0
"""The time between two reads of `logs --follow`; workers send lines twice a second."""


def show(
    context: typer.Context,
    execution_id: Annotated[
        str, typer.Argument(metavar="EXECUTION", help="The execution's id or its first characters.")
    ],
) -> None:
    """Show the current state of an execution: steps, attempts and events.

    Reads the log, not the history.

    Example: `tocsin executions show 0193a5b0`
    """
    from ...services.operations.execution_output import output_if_readable  # noqa: PLC0415 - `cancel` needs none
    from .page import ExecutionDetails, as_json, page  # noqa: PLC0415 - see above

    session = session_of(context)

    async def read() -> ExecutionDetails:
        async with session.operator() as operator:
            match = await operator.execution(execution_id)
            return ExecutionDetails.of(match, await output_if_readable(operator.output(match)))

    details = run(read())
    session.output.answer(as_json(details), lambda: page(details))


def logs(
    context: typer.Context,
    execution_id: Annotated[
        str, typer.Argument(metavar="EXECUTION", help="The execution's id or its first characters.")
    ],
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the execution has ended.")
    ] = False,
) -> None:
    """Print the lines that the handlers of an execution logged.

    An execution keeps its last 200 lines for some days (`output.max_age`). Lines may be lost: a worker drops lines that it cannot send, and counts them.

    Example: `tocsin executions logs 0193a5b0 -f`
    """
    session = session_of(context)
    if is_followed:
        serve(_print_lines(session, execution_id, is_followed=True))
    else:
        run(_print_lines(session, execution_id, is_followed=False))


async def _print_lines(session: Session, execution_id: str, *, is_followed: bool) -> None:
    from .page import line_as_json, line_of  # noqa: PLC0415 - see above

    place, was_over = 0, not is_followed
    async with session.operator() as operator:
        while True:
            output = await operator.output(await operator.execution(execution_id), after=place)
            execution_id, place = output.execution_id, output.next
            for line in output.lines:
                session.output.line(line_as_json(line), line_of(line), is_whole=True)
            if was_over and not (is_followed and output.lines):
                return
            was_over = output.is_over
            await sleep(FOLLOW_INTERVAL_S)


def cancel(
    context: typer.Context,
    executions: Annotated[
        list[str], typer.Argument(metavar="EXECUTION", help="The ids of the executions or their first characters.")
    ],
    reason: Annotated[str | None, typer.Option(help="Reason, recorded in the event.")] = None,
    job: Annotated[str | None, typer.Option(help="The job of the executions, if known.")] = None,
) -> None:
    """Cancel planned, pending and running executions; leave finished executions unchanged.

    Pending steps never start, workers stop the running handlers, and the next execution in line gets the lock.

    Example: `tocsin executions cancel 0193a5b0 --reason "wrong day"`
    """
    session = session_of(context)

    async def cancel_execution(operator: Operator, execution: str) -> Cancellation:
        return await operator.cancel(execution, reason=reason, job=job)

    on_each(session, executions, cancel_execution, _line)


def _line(cancellation: Cancellation) -> Text:
    result = (state("cancelled"), " ") if cancellation.changed else ("", f"was already {cancellation.status}: ")
    return Text.assemble(*result, cancellation.execution_id, (f" of {cancellation.job}", "dim"))


Row = TypeVar("Row", ExecutionRow, DeadLetterRow)
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

_EXECUTION_HEADINGS: Final = ("EXECUTION", "JOB", "STATUS", "TRIGGER", "SCHEDULED", "TOOK", "ATTEMPT", "ERROR")
_DEAD_LETTER_HEADINGS: Final = ("ID", "JOB", "STATE", "ATTEMPTS", "LAST ATTEMPT", "LAST ERROR")


def list_executions(  # noqa: PLR0913, PLR0917 - each is an option of the command
    context: typer.Context,
    job: Job = None,
    status: Annotated[Status | None, typer.Option(help="Filter by status.")] = None,
    trigger: Annotated[TriggerKind | None, typer.Option(help="Filter by trigger.")] = None,
    tag: Annotated[str | None, typer.Option(help="Filter by a tag of the job.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Scheduled at this time or later.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Scheduled before this time.")] = None,
    error: Error = None,
    sort: Annotated[
        ExecutionSort,
        typer.Option(
            help="By scheduled time, start or duration; `longest` and `shortest` omit executions without a duration."
        ),
    ] = "newest",
    cursor: Cursor = None,
    limit: Limit = None,
    is_all: All = False,
) -> None:
    """List executions from the history, the newest first.

    Example: `tocsin executions list --job nightly --status failed --since 24h`
    """
    session, now = session_of(context), datetime.now(UTC)
    query = ExecutionQuery(
        job=job,
        status=status,
        trigger=trigger,
        tag=tag,
        since=instant(since, "--since", now=now),
        until=instant(until, "--until", now=now),
        error=error,
        sort=sort,
        cursor=cursor,
        limit=_page_size(limit, is_all=is_all),
    )
    page = _read(session, lambda operator: operator.executions, query, is_all=is_all)
    _print_page(
        session,
        page,
        _EXECUTION_HEADINGS,
        _execution_row,
        empty="no executions",
        least=("ATTEMPT", "TRIGGER", "ERROR", "TOOK", "SCHEDULED"),
        brief={"EXECUTION": unique_beginnings, "SCHEDULED": this_year},
    )


def _execution_row(row: ExecutionRow) -> tuple[object, ...]:
    return (
        row.execution_id,
        Text(row.job_name, style="bold"),
        state(row.status),
        row.trigger,
        row.scheduled_time,
        seconds(None if row.duration_ms is None else row.duration_ms / 1_000),
        row.attempt,
        (row.error or row.reason or "").partition("\n")[0],
    )


def list_dead_letters(  # noqa: PLR0913, PLR0917 - each is an option of the command
    context: typer.Context,
    job: Job = None,
    unresolved: Annotated[bool, typer.Option("--unresolved", help="Omit resolved dead letters.")] = False,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Last attempted at this time or later.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Last attempted before this time.")] = None,
    error: Error = None,
    sort: Annotated[DeadLetterSort, typer.Option(help="By the time of the last attempt.")] = "newest",
    cursor: Cursor = None,
    limit: Limit = None,
    is_all: All = False,
) -> None:
    """List dead letters from the history, the newest first.

    Example: `tocsin dead-letters list --unresolved --since 7d`
    """
    session, now = session_of(context), datetime.now(UTC)
    query = DeadLetterQuery(
        job=job,
        unresolved=unresolved,
        since=instant(since, "--since", now=now),
        until=instant(until, "--until", now=now),
        error=error,
        sort=sort,
        cursor=cursor,
        limit=_page_size(limit, is_all=is_all),
    )
    page = _read(session, lambda operator: operator.dead_letters, query, is_all=is_all)
    _print_page(
        session,
        page,
        _DEAD_LETTER_HEADINGS,
        _dead_letter_row,
        empty="no dead letters",
        least=("ATTEMPTS", "LAST ATTEMPT", "LAST ERROR"),
        brief={"ID": unique_beginnings, "LAST ATTEMPT": this_year},
    )


def _dead_letter_row(row: DeadLetterRow) -> tuple[object, ...]:
    return (
        row.id,
        Text(row.job_name, style="bold"),
        state("resolved" if row.resolved else "unresolved"),
        row.attempts,
        row.last_attempt,
        (row.last_error or "").partition("\n")[0],
    )


# --- pages -----------------------------------------------------------------------------------------------------------


def _page_size(limit: int | None, *, is_all: bool) -> int:
    """Return the number of rows to request at a time.

    Raises:
        UsageError: both `--limit` and `--all` were given.
    """
    if is_all and limit is not None:
        raise UsageError(
            "Cannot list: --all and --limit exclude each other. Omit either option.", code="conflicting-options"
        )
    return MAX_LIMIT if is_all else limit or USUAL_LIMIT


def _read(
    session: Session,
    reader: Callable[[Operator], Callable[[Query], Awaitable[Page[Row]]]],
    query: Query,
    *,
    is_all: bool,
) -> Page[Row]:
    """Read one page, or every row from the cursor on.

    Raises:
        UsageError: the query names a job that is not registered and has no history.
    """

    async def read() -> Page[Row]:
        async with session.operator() as operator:
            read_page = reader(operator)
            page = Page([row async for row in every(read_page, query)]) if is_all else await read_page(query)
            if not page.rows and query.job is not None:
                await _check_job(operator, query.job)
            return page

    return run(read())


async def _check_job(operator: Operator, job: str) -> None:
    """Check that a job is registered, or was and left rows in the history.

    Raises:
        JobNotFound: no row and no registration names it.
    """
    if (await operator.executions(ExecutionQuery(job=job, limit=1))).rows:
        return
    if (await operator.dead_letters(DeadLetterQuery(job=job, limit=1))).rows:
        return
    await operator.job(job)


def _print_page(
    session: Session,
    page: Page[Row],
    headings: Sequence[str],
    row_of: Callable[[Row], tuple[object, ...]],
    *,
    empty: str,
    least: Sequence[str],
    brief: Mapping[str, Brief],
) -> None:
    """Print a page to stdout, and the option that continues the list to stderr."""
    session.output.answer(
        [asdict(row) for row in page.rows],
        lambda: [table(headings, [row_of(row) for row in page.rows], empty=empty, least=least, brief=brief)],
    )
    if page.cursor is not None:
        print(f"there are more: --cursor {page.cursor}, or --all", file=sys.stderr)
