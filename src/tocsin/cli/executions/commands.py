"""`tocsin executions list`, `show`, `logs` and `cancel`."""

from asyncio import sleep
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Final, TypeAlias, TypeVar

import typer
from rich.text import Text

from ...domain.events import TriggerKind
from ...domain.execution_record import Status
from ...ports import ExecutionRow
from ...ports.queries import ExecutionQuery, ExecutionSort
from ...services.operations.dead_letters import Resolution
from ...services.operations.errors import NotFound
from ...services.operations.execution_output import output_if_readable
from ...services.operations.execution_requests import Cancellation
from ...services.operator import Operator
from ..input.values import Reason, instant
from ..output.format import seconds, state
from ..output.tables import this_year, unique_beginnings
from ..runtime.error_report import failure_of
from ..runtime.errors import UsageError
from ..runtime.event_loop import run, serve
from ..runtime.history_pages import All, Cursor, Error, Job, Limit, page_size, print_page, read_page
from ..runtime.session import Session
from .page import ExecutionDetails, FanOutDetails, as_json, line_of, page

D = TypeVar("D", Cancellation, Resolution)
FOLLOW_INTERVAL_S: Final = 1.0
"""The time between two reads of `logs --follow`; workers send lines twice a second."""

Id: TypeAlias = Annotated[str, typer.Argument(metavar="EXECUTION", help="The execution's id or its first characters.")]


def show(session: Session, execution_id: Id) -> None:
    """Show the current state of an execution: steps, attempts and events.

    Of an occurrence that fanned out, it shows the executions on its shards. Reads the log, not the history.

    Example: `tocsin executions show 0193a5b0`
    """

    async def read(operator: Operator) -> ExecutionDetails | FanOutDetails:
        match = await operator.execution(execution_id)
        if (fan_out := await operator.fan_out(match)) is not None:
            return FanOutDetails(match, fan_out)
        output = await output_if_readable(operator.output(match))
        return ExecutionDetails.of(match, output, await operator.hold_ups(match))

    details = session.ask(read)
    if isinstance(details, FanOutDetails):
        session.output.answer(details.as_json(), details.page)
        return
    session.output.answer(as_json(details), lambda: page(details))


def logs(
    session: Session,
    execution_id: Id,
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the execution has ended.")
    ] = False,
) -> None:
    """Print the lines that the handlers of an execution logged.

    An execution keeps its last 200 lines for some days (`output.max_age`). Lines may be lost: a worker drops lines that it cannot send, and counts them.

    Example: `tocsin executions logs 0193a5b0 -f`
    """
    printing = _print_lines(session, execution_id, is_followed=is_followed)
    (serve if is_followed else run)(printing)


async def _print_lines(session: Session, execution_id: str, *, is_followed: bool) -> None:
    place, was_over = 0, not is_followed
    async with session.operator() as operator:
        while True:
            output = await operator.output(await operator.execution(execution_id), after=place)
            execution_id, place = output.execution_id, output.next
            for line in output.lines:
                session.output.line(asdict(line), line_of(line), is_whole=True)
            if was_over and not (is_followed and output.lines):
                return
            was_over = output.is_over
            await sleep(FOLLOW_INTERVAL_S)


def on_each(
    session: Session, ids: Sequence[str], operate: Callable[[Operator, str], Awaitable[D]], line: Callable[[D], Text]
) -> None:
    """Run an operation on each id, and print a `line` for each result.

    Raises:
        UsageError: some ids do not exist. The other ids are processed and their results printed.
    """
    done: list[D] = []
    missing: list[NotFound] = []

    async def operate_all(operator: Operator) -> None:
        for id_ in ids:
            try:
                done.append(await operate(operator, id_))
            except NotFound as error:
                missing.append(error)

    session.ask(operate_all)
    if done:
        session.output.answer([asdict(result) for result in done], lambda: [line(result) for result in done])
    if missing:
        raise UsageError("; ".join(map(str, missing)), failure_of(missing[0]).code, code=missing[0].code)


def cancel(
    session: Session,
    executions: Annotated[
        list[str], typer.Argument(metavar="EXECUTION", help="The ids of the executions or their first characters.")
    ],
    reason: Reason = None,
    job: Annotated[str | None, typer.Option(help="The job of the executions, if known.")] = None,
) -> None:
    """Cancel planned, pending and running executions; leave finished executions unchanged.

    Pending steps never start, workers stop the running handlers, and the next execution in line gets the lock. The id of an
    occurrence that fanned out cancels the executions on all its shards.

    Example: `tocsin executions cancel 0193a5b0 --reason "wrong day"`
    """
    on_each(session, executions, lambda operator, given: operator.cancel(given, reason=reason, job=job), _line)


def _line(cancellation: Cancellation) -> Text:
    result = (state("cancelled"), " ") if cancellation.changed else ("", f"was already {cancellation.status}: ")
    return Text.assemble(*result, cancellation.execution_id, (f" of {cancellation.job}", "dim"))


def list_executions(  # noqa: PLR0913, PLR0917 - each is an option of the command
    session: Session,
    job: Job = None,
    status: Annotated[Status | None, typer.Option(help="Filter by status.")] = None,
    trigger: Annotated[TriggerKind | None, typer.Option(help="Filter by trigger.")] = None,
    tag: Annotated[str | None, typer.Option(help="Filter by a tag of the job.")] = None,
    occurrence: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Filter by the id under which executions were fanned out over shards."),
    ] = None,
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
    now = datetime.now(UTC)
    query = ExecutionQuery(
        job=job,
        status=status,
        trigger=trigger,
        tag=tag,
        occurrence=occurrence,
        since=instant(since, "--since", now=now),
        until=instant(until, "--until", now=now),
        error=error,
        sort=sort,
        cursor=cursor,
        limit=page_size(limit, is_all=is_all),
    )
    print_page(
        session,
        read_page(session, lambda operator: operator.executions, query, is_all=is_all),
        ("EXECUTION", "JOB", "STATUS", "TRIGGER", "SCHEDULED", "TOOK", "ATTEMPT", "ERROR"),
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
