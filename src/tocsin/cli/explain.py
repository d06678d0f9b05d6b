"""`tocsin explain`: what a schedule means, and when it fires."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from ..domain.calendar import Explanation
from ..domain.calendar import explain as explained
from .output import local
from .session import session_of


def explain(
    context: typer.Context,
    text: Annotated[str, typer.Argument(metavar="SCHEDULE", help="Cron, `@every …`, or English, in quotes.")],
    tz: Annotated[str, typer.Option("--tz", help="The zone whose wall clock is meant.")] = "UTC",
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="How many instants to show.")] = 5,
) -> None:
    """Say what a schedule is understood as, and when it fires next. Needs no server."""
    explanation = explained(text, tz, datetime.now(UTC), n=count)
    session_of(context).output.answer(
        {**asdict(explanation), "next": [one.utc for one in explanation.next]}, lambda: _page(explanation)
    )


def _page(explanation: Explanation) -> list[RenderableType]:
    instants = (f"  {one.local:%a %Y-%m-%d %H:%M:%S %z}   {local(one.utc)} here" for one in explanation.next)
    return [
        Text(explanation.meaning, style="bold"),
        Text("   ".join(explanation.expressions), style="cyan"),
        *(Text(warning, style="yellow") for warning in explanation.warnings),
        *(Text(change, style="dim") for change in explanation.clock_changes if not _is_warned_of(explanation, change)),
        *(Text(instant) for instant in instants),
        *([] if explanation.next else [Text("it never fires again", style="yellow")]),
    ]


def _is_warned_of(explanation: Explanation, change: str) -> bool:
    return any(warning.startswith(change) for warning in explanation.warnings)
