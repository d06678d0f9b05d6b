"""`tocsin dead-letters`: what failed for good (hip-62, Dead Letter Handling)."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from ..listing import DeadLetterQuery
from ..ports import DeadLetterRow
from .output import state, table
from .running import run
from .session import session_of

app = typer.Typer(help="Executions that failed for good.", no_args_is_help=True)


@app.callback()
def dead_letters() -> None:
    """Executions that failed for good."""


@app.command("list")
def list_dead_letters(
    context: typer.Context,
    job: Annotated[str | None, typer.Option(help="Only of this job.")] = None,
    unresolved: Annotated[bool, typer.Option("--unresolved", help="Only those that nobody has dealt with.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest first.")] = 50,
) -> None:
    """List dead letters from the history, the newest first."""
    session = session_of(context)

    async def read() -> list[DeadLetterRow]:
        async with session.installation() as installation, installation.history() as history:
            query = DeadLetterQuery(job=job, unresolved=unresolved, limit=limit)
            return list((await history.dead_letters(query)).rows)

    rows = run(read())
    session.output.answer(
        [asdict(row) for row in rows],
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
                    for row in rows
                ],
                empty="no dead letters",
            )
        ],
    )
