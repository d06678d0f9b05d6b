"""`tocsin stats`: executions handed over, lost and recovered."""

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
        str, typer.Option(metavar="TIME", help="Count from this time: a date, a time, or an age such as 24h.")
    ] = "24h",
) -> None:
    """Count the executions that were handed over, lost and recovered.

    Counts the executions that began after `--since` and the recoveries tried after it, as far as the log still holds them: archived
    events do not count. An execution is handed over when an executor claims it or, on a queue with external executors, reports on it;
    its later success or failure does not matter. Executions that were skipped, or cancelled before they were handed over, do not count.

    Example: `tocsin stats --since 7d`
    """
    session = session_of(context)
    counts = run(_count(session, instant(since, "--since", now=datetime.now(UTC))))
    session.output.answer(asdict(counts), lambda: _page(counts))


async def _count(session: Session, since: datetime) -> Statistics:
    async with session.installation() as installation:
        return await statistics(installation.log, since=since)


def _page(counts: Statistics) -> list[RenderableType]:
    executions, recoveries = counts.executions, counts.recoveries
    head = Text(f"from {local(counts.since)} to {local(counts.until)}", style="dim")
    execution_rows = [
        ("started", executions.total_executions),
        ("handed over", executions.successful_executions),
        ("lost", executions.lost_executions),
        ("pending", executions.pending_executions),
        ("handed over, of those decided", _rate(executions.success_rate)),
    ]
    recovery_rows = [
        ("tried", recoveries.total_recovery_attempts),
        ("successful", recoveries.successful_recoveries),
        ("failed", recoveries.failed_recoveries),
        ("executions abandoned", recoveries.abandoned_recoveries),
        ("successful, of those decided", _rate(recoveries.recovery_success_rate)),
    ]
    return [
        head,
        Text(),
        table(("EXECUTIONS", ""), execution_rows, empty=""),
        Text(),
        table(("RECOVERIES", ""), recovery_rows, empty=""),
    ]


def _rate(percentage: float | None) -> str:
    return "–" if percentage is None else f"{percentage:.2f} %"
