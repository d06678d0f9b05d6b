"""`tocsin executions list`: what ran, as the history has it."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from ...domain.events import TriggerKind
from ...domain.history import Status
from ...ports import ExecutionRow
from ...ports.queries import ExecutionQuery, ExecutionSort, Page
from ..input.values import instant
from ..output import paging
from ..output.format import seconds, state
from ..output.tables import table, this_year, unique_beginnings
from ..runtime.event_loop import run
from ..runtime.session import session_of

_HEADINGS = ("EXECUTION", "JOB", "STATUS", "TRIGGER", "SCHEDULED", "TOOK", "ATTEMPT", "ERROR")


def list_executions(  # noqa: PLR0913, PLR0917 - each is an option of the command
    context: typer.Context,
    job: paging.Job = None,
    status: Annotated[Status | None, typer.Option(help="Only those in this state.")] = None,
    trigger: Annotated[TriggerKind | None, typer.Option(help="Only those that this started.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only of jobs with this tag.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Scheduled then or later.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Scheduled before that.")] = None,
    error: paging.Error = None,
    sort: Annotated[
        ExecutionSort, typer.Option(help="By scheduled time, start or duration; the last leaves out what has none.")
    ] = "newest",
    cursor: paging.Cursor = None,
    limit: paging.Limit = None,
    is_all: paging.All = False,
) -> None:
    """List executions from the history, the newest first."""
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
        limit=paging.limit_of(limit, is_all=is_all),
    )

    async def read() -> Page[ExecutionRow]:
        async with session.operator() as operator:
            return await paging.rows_of(operator.executions, query, is_all=is_all)

    page = run(read())
    session.output.answer(
        [asdict(row) for row in page.rows],
        lambda: [
            table(
                _HEADINGS,
                [_row(row) for row in page.rows],
                empty="no executions",
                least=("ATTEMPT", "TRIGGER", "ERROR", "TOOK", "SCHEDULED"),
                brief={"EXECUTION": unique_beginnings, "SCHEDULED": this_year},
            )
        ],
    )
    paging.tell_of_more(page)


def _row(row: ExecutionRow) -> tuple[object, ...]:
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
