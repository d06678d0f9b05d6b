"""`tocsin events audit-trail`: who changed what, when, from where and why."""

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
    job: Annotated[str | None, typer.Option(help="Only of this job.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From then on: a date, a time, or how long ago.")
    ] = None,
) -> None:
    """List who registered, changed, deleted, paused, resumed and triggered jobs, cancelled executions and replayed dead letters."""
    session = session_of(context)
    begin = None if since is None else instant(since, "--since", now=datetime.now(UTC))

    async def read() -> list[Recorded[Message]]:
        async with session.installation() as installation:
            return await trail(installation.log, job, since=begin)

    found = run(read())
    session.output.answer(
        [event_lines.as_json(recorded) for recorded in found],
        lambda: [
            table(
                ("WHEN", "WHO", "FROM", "WHAT", "JOB", "REASON"),
                [_row(recorded) for recorded in found],
                empty="nobody has asked for anything",
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
        Text(by.identity if by else "nobody said", style="" if by else "dim"),
        by.source if by else "",
        what,
        Text(subjects.job_of(recorded.subject), style="bold"),
        getattr(fact, "reason", None) or "",
    )


def tail(
    context: typer.Context,
    job: Annotated[str | None, typer.Option(help="Only of this job.")] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the first fact that is stored.")] = False,
) -> None:
    """Print every fact about jobs, executions, locks and dead letters as it is stored, one line each, until interrupted."""
    serve(_tail(session_of(context), job, from_start=from_start))


async def _tail(session: Session, job: str | None, *, from_start: bool) -> None:
    async with session.operator() as operator:
        async for recorded in operator.tail(job, from_start=from_start):
            session.output.line(event_lines.as_json(recorded), event_lines.line(recorded, width=session.output.width))
