"""`tocsin backfill`, also `tocsin jobs backfill`: runs a job for instants of the past."""

from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ...services.operations.backfill import Backfill, Order, Span
from ..input.values import check, confirm, instant
from ..input.values import rate as rate_of
from ..output.format import local
from ..runtime.event_loop import run
from ..runtime.session import Session, session_of

SHOWN: Final = 3
"""Instants that the plan shows from its beginning, and from its end."""


def backfill(  # noqa: PLR0913, PLR0917 - each is an option of the command
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")],
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="The first instant that is taken.")],
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="The first that is not; by default now.")
    ] = None,
    only_missing: Annotated[
        bool, typer.Option("--only-missing", help="Only what the ledger says did not fire, or was skipped.")
    ] = False,
    order: Annotated[Order, typer.Option(help="Which are asked for first.")] = "oldest",
    name: Annotated[
        str | None, typer.Option(help="Run twice under one name it makes nothing twice; by default its span.")
    ] = None,
    rate: Annotated[str, typer.Option(help="How many at most: 10/s, 100/m.")] = "10/s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: Annotated[str | None, typer.Option(help="Why; it is recorded.")] = None,
) -> None:
    """Run a job for instants of the past, each with its own scheduled time.

    TIME is a date, a date and a time (both on the wall clock of the job's zone), or how long ago, as in 24h. The runs wait
    for each other, unless the job allows overlap.
    """
    session = session_of(context)
    often = rate_of(rate, "--rate")
    check(f"run {job} for instants of the past?", yes=yes or dry_run)

    async def work() -> tuple[Backfill, int]:
        async with session.operator() as operator:
            now, zone = datetime.now(UTC), (await operator.job(job)).definition.timezone
            first = instant(start, "--from", now=now, timezone=zone)
            last = now if end is None else instant(end, "--to", now=now, timezone=zone)
            span = Span(first, last, only_missing=only_missing, order=order)
            planned = await operator.plan_backfill(job, span, now=now, name=name)
            if not session.output.is_json:
                session.output.answer(None, lambda: _lines(planned))
            if dry_run or not planned.instants:
                return planned, 0
            confirm(f"run {len(planned.instants)} executions of {job}?", yes=yes, otherwise="nothing was run")
            asked = 0
            async for _ in operator.backfill(planned, rate=often, reason=reason):
                asked += 1
            return planned, asked

    planned, asked = run(work())
    _tell(session, planned, asked, dry_run=dry_run)


def _tell(session: Session, planned: Backfill, asked: int, *, dry_run: bool) -> None:
    session.output.answer(
        {**asdict(planned), "asked": asked, "dry_run": dry_run},
        lambda: (
            [Text.assemble((f"asked for {asked} executions", "cyan"), " of ", (planned.job, "bold"))] if asked else []
        ),
    )


def _lines(planned: Backfill) -> list[RenderableType]:
    unknown = planned.named - planned.fired - planned.missing
    counts = (
        f"{planned.named} instants: {planned.fired} fired, {planned.missing} did not, of {unknown} nothing is known"
    )
    some = [local(at) for at in islice(planned.instants, SHOWN)]
    if len(planned.instants) > SHOWN:
        some += ["…", local(planned.instants[-1])]
    return [
        Text.assemble((planned.job, "bold"), f"  backfill {planned.name}"),
        Text(counts, style="dim"),
        Text(f"{len(planned.instants)} to run: {', '.join(some)}" if planned.instants else "nothing to run"),
    ]
