"""`tocsin stats`: how many executions reached an executor, and what became of those that were lost."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from ...services.execution_stats import Statistics, statistics
from ..input.values import instant
from ..output.format import local
from ..output.tables import table
from ..runtime.event_loop import run
from ..runtime.session import Session, session_of


def stats(
    context: typer.Context,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Count from then on: a date, a time, or how long ago.")
    ] = "24h",
) -> None:
    """Show how many executions reached an executor, how many were lost on the way, and how many of those were recovered.

    Counted over the executions that began since then, and the recoveries that were tried since then, as far as the log
    still holds them: what has been archived does not count. An execution counts as handed over once an executor claimed
    it (or, for a queue whose executors are outside, answered); whether it then completed or failed is not asked here.
    Skipped ones, and those that were cancelled before, were not to reach an executor, and do not count.
    """
    session = session_of(context)
    found = run(_count(session, instant(since, "--since", now=datetime.now(UTC))))
    session.output.answer(asdict(found), lambda: _page(found))


async def _count(session: Session, since: datetime) -> Statistics:
    async with session.installation() as installation:
        return await statistics(installation.log, since=since)


def _page(found: Statistics) -> list[RenderableType]:
    begun, recovered = found.executions, found.recoveries
    head = Text(f"from {local(found.since)} to {local(found.until)}", style="dim")
    executions = [
        ("that began", begun.total_executions),
        ("handed to an executor", begun.successful_executions),
        ("lost", begun.lost_executions),
        ("on their way", begun.pending_executions),
        ("handed over of those decided", _rate(begun.success_rate)),
    ]
    recoveries = [
        ("tried", recovered.total_recovery_attempts),
        ("successful", recovered.successful_recoveries),
        ("failed", recovered.failed_recoveries),
        ("executions abandoned", recovered.abandoned_recoveries),
        ("successful of those decided", _rate(recovered.recovery_success_rate)),
    ]
    return [
        head,
        Text(),
        table(("EXECUTIONS", ""), executions, empty=""),
        Text(),
        table(("RECOVERIES", ""), recoveries, empty=""),
    ]


def _rate(percentage: float | None) -> str:
    return "–" if percentage is None else f"{percentage:.2f} %"
