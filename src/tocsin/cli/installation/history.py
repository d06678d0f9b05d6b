"""`tocsin history`: the read model itself, which can always be made anew from the log."""

from typing import Annotated

import typer
from rich.text import Text

from ..output.format import is_interactive
from ..runtime.errors import Exit, UsageError
from ..runtime.event_loop import run
from ..runtime.session import session_of


def rebuild(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Empty the history and record it anew from the first fact on. Lists are incomplete while that takes."""
    session = session_of(context)
    if not yes:
        if not is_interactive():
            raise UsageError("rebuild empties the history before it fills it again: say --yes")
        if not typer.confirm("empty the history, and record it anew from the log?"):
            raise UsageError("nothing was done", Exit.NO)

    async def work() -> int:
        async with session.installation() as installation:
            return await session.backend.rebuild_history(installation)

    executions = run(work())
    session.output.answer({"executions": executions}, lambda: [Text(f"{executions:,} executions are recorded anew")])
