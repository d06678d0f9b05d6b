"""`tocsin events tail` and `tocsin events audit-trail`."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from ... import subjects
from ...domain.events import Message, Recorded, Trigger
from ...services.operations.audit_trail import asked_by
from ...services.operations.audit_trail import audit_trail as trail
from ..input.values import instant
from ..output import event_lines
from ..output.tables import table
from ..runtime.event_loop import run, serve
from ..runtime.session import Session, session_of


def audit_trail(
    context: typer.Context,
    job: Annotated[str | None, typer.Option(help="Show only this job.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Show changes since a date, a time, or a duration ago.")
    ] = None,
) -> None:
    """List the changes that users made, with user, time, source and reason.

    Changes are: registered, changed, deleted, paused, resumed and triggered jobs, cancelled executions and replayed dead
    letters.
    """
    session = session_of(context)
    begin = None if since is None else instant(since, "--since", now=datetime.now(UTC))

    async def read() -> list[Recorded[Message]]:
        async with session.installation() as installation:
            return await trail(installation.log, job, since=begin)

    records = run(read())
    session.output.answer(
        [event_lines.as_json(recorded) for recorded in records],
        lambda: [
            table(
                ("WHEN", "WHO", "FROM", "WHAT", "JOB", "REASON"),
                [_row(recorded) for recorded in records],
                empty="no operations are recorded",
                least=("FROM", "REASON"),
            )
        ],
    )


def _row(recorded: Recorded[Message]) -> tuple[object, ...]:
    fact = recorded.message
    by = asked_by(fact)
    what = f"{fact.trigger} trigger" if isinstance(fact, Trigger) else event_lines.describe(fact).verb
    return (
        recorded.time,
        Text(by.identity if by else "unknown", style="" if by else "dim"),
        by.source if by else "",
        what,
        Text(subjects.job_of(recorded.subject), style="bold"),
        getattr(fact, "reason", None) or "",
    )


def tail(
    context: typer.Context,
    job: Annotated[str | None, typer.Option(help="Show only this job.")] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the first stored event.")] = False,
) -> None:
    """Print each event when it is stored, until interrupted.

    The events of jobs, executions, locks and dead letters have one line each.
    """
    serve(_tail(session_of(context), job, from_start=from_start))


async def _tail(session: Session, job: str | None, *, from_start: bool) -> None:
    async with session.operator() as operator:
        async for recorded in operator.tail(job, from_start=from_start):
            session.output.line(event_lines.as_json(recorded), event_lines.line(recorded, width=session.output.width))
