"""`tocsin dead-letters`: what failed for good, and what is done about it (hip-62, Dead Letter Handling)."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from ...ports import DeadLetterRow
from ...ports.queries import DeadLetterQuery, DeadLetterSort, Page
from ...services.operations.dead_letters import Letter, Replay, Resolution
from ...services.operator import Operator
from ..input.values import instant, json_of
from ..output import paging
from ..output.format import state
from ..output.tables import table, this_year, unique_beginnings
from ..runtime.batch import on_each
from ..runtime.event_loop import run
from ..runtime.session import session_of
from . import page as letter_page

Id = Annotated[str, typer.Argument(metavar="DEAD-LETTER", help="Its id, or the first characters of it.")]
Job = Annotated[str | None, typer.Option(help="Only of this job.")]
Reason = Annotated[str | None, typer.Option(help="Why; it is recorded.")]


def list_dead_letters(  # noqa: PLR0913, PLR0917 - each is an option of the command
    context: typer.Context,
    job: Job = None,
    unresolved: Annotated[bool, typer.Option("--unresolved", help="Only those that nobody has dealt with.")] = False,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Last attempted then or later.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Last attempted before that.")] = None,
    error: paging.Error = None,
    sort: Annotated[DeadLetterSort, typer.Option(help="By last attempt.")] = "newest",
    cursor: paging.Cursor = None,
    limit: paging.Limit = None,
    is_all: paging.All = False,
) -> None:
    """List dead letters from the history, the newest first."""
    session, now = session_of(context), datetime.now(UTC)
    query = DeadLetterQuery(
        job=job,
        unresolved=unresolved,
        since=instant(since, "--since", now=now),
        until=instant(until, "--until", now=now),
        error=error,
        sort=sort,
        cursor=cursor,
        limit=paging.limit_of(limit, is_all=is_all),
    )

    async def read() -> Page[DeadLetterRow]:
        async with session.operator() as operator:
            return await paging.rows_of(operator.dead_letters, query, is_all=is_all)

    page = run(read())
    session.output.answer(
        [asdict(row) for row in page.rows],
        lambda: [
            table(
                ("ID", "JOB", "STATE", "ATTEMPTS", "LAST ATTEMPT", "LAST ERROR"),
                [
                    (
                        row.id,
                        Text(row.job_name, style="bold"),
                        state("resolved" if row.resolved else "unresolved"),
                        row.attempts,
                        row.last_attempt,
                        (row.last_error or "").partition("\n")[0],
                    )
                    for row in page.rows
                ],
                empty="no dead letters",
                least=("ATTEMPTS", "LAST ATTEMPT", "LAST ERROR"),
                brief={"ID": unique_beginnings, "LAST ATTEMPT": this_year},
            )
        ],
    )
    paging.tell_of_more(page)


def show(context: typer.Context, dead_letter: Id) -> None:
    """Show one dead letter: every attempt, the last error with its traceback, the input, and what became of its replays."""
    session = session_of(context)

    async def read() -> Letter:
        async with session.operator() as operator:
            return await operator.dead_letter(dead_letter)

    letter = run(read())
    session.output.answer(letter_page.as_json(letter), lambda: letter_page.page(letter))


def replay(
    context: typer.Context,
    dead_letter: Id,
    input: Annotated[  # noqa: A002 - the field is called so
        str | None, typer.Option(metavar="JSON|@FILE", help="An object whose keys go over the input that there was.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Even while a replay is open, and even though it is resolved.")
    ] = False,
    reason: Reason = None,
) -> None:
    """Run what failed once more, by the job's definition of now, for the same scheduled time.

    A replay that completes resolves the dead letter. Overlapping runs are waited for, whatever the job's policy is.
    """
    session = session_of(context)
    over = json_of("--input", input, dict)

    async def ask() -> Replay:
        async with session.operator() as operator:
            return await operator.replay(dead_letter, input=over, reason=reason, again=again)

    made = run(ask())
    session.output.answer(asdict(made), lambda: [line(made)])


def resolve(
    context: typer.Context,
    dead_letter: Annotated[
        list[str], typer.Argument(metavar="DEAD-LETTER", help="Their ids, or the first characters of each.")
    ],
    reason: Reason = None,
) -> None:
    """Acknowledge dead letters: nothing is left to be done about them."""
    session = session_of(context)

    async def settle(operator: Operator, given: str) -> Resolution:
        return await operator.resolve(given, reason=reason)

    on_each(session, dead_letter, settle, _resolved)


def line(made: Replay) -> Text:
    """One replay, as it is told."""
    to = f"execution {made.execution_id}" if made.execution_id else "handed in again"
    return Text.assemble(("replayed ", "cyan"), (made.job, "bold"), f" {made.id}: {to}")


def _resolved(one: Resolution) -> Text:
    said = ("resolved ", "green") if one.changed else "was resolved already: "
    return Text.assemble(said, one.id, (f" of {one.job}", "dim"))
