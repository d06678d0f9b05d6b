"""`tocsin events audit-trail`: who changed what, when, from where and why."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from ... import subjects
from ...domain.events import Message, Recorded, Trigger
from ...services.operations.audit_trail import asked_by
from ...services.operations.audit_trail import audit_trail as trail
from ..input.instants import instant
from ..output import event_lines
from ..output.tables import table
from ..runtime.event_loop import run
from ..runtime.session import session_of


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
