"""`tocsin explain`: what a schedule means, and when it fires."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from ...domain.schedule import Explanation
from ...domain.schedule import explain as explained
from ..output.format import local
from ..runtime.session import session_of


def explain(
    context: typer.Context,
    text: Annotated[str, typer.Argument(metavar="SCHEDULE", help="Cron, `@every …`, or English, in quotes.")],
    tz: Annotated[str, typer.Option("--tz", help="The zone whose wall clock is meant.")] = "UTC",
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="How many instants to show.")] = 5,
) -> None:
    """Say what a schedule is understood as, and when it fires next. Needs no server.

    `@every 90s` counts from the registration or the last trigger. The clock is looked at once a second, so whole seconds fire
    in time, and instants between two seconds up to a second late, each of them all the same.
    """
    explanation = explained(text, tz, datetime.now(UTC), n=count)
    session_of(context).output.answer(
        {**asdict(explanation), "next": [one.utc for one in explanation.next]}, lambda: _page(explanation)
    )


def _page(explanation: Explanation) -> list[RenderableType]:
    instants = (f"  {_clock(one.local)}   {local(one.utc)} here" for one in explanation.next)
    return [
        Text(explanation.meaning, style="bold"),
        Text("   ".join(explanation.expressions), style="cyan"),
        *(Text(warning, style="yellow") for warning in explanation.warnings),
        *(Text(change, style="dim") for change in explanation.clock_changes if not _is_warned_of(explanation, change)),
        *(Text(instant) for instant in instants),
        *([] if explanation.next else [Text("it never fires again", style="yellow")]),
    ]


def _clock(at: datetime) -> str:
    """An instant on its own clock, with the milliseconds that `@every 1.5s` gives it."""
    fraction = f".{at.microsecond // 1_000:03}" if at.microsecond else ""
    return f"{at:%a %Y-%m-%d %H:%M:%S}{fraction} {at:%z}"


def _is_warned_of(explanation: Explanation, change: str) -> bool:
    return any(warning.startswith(change) for warning in explanation.warnings)
