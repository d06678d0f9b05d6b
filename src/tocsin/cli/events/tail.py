"""`tocsin events`: what is decided, as it is decided."""

from typing import Annotated

import typer

from ..output import event_lines
from ..runtime.event_loop import serve
from ..runtime.session import Session, session_of


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
