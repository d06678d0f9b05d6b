"""`tocsin backfill`, also `tocsin jobs backfill`: run a job for past occurrences."""

from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ...domain.wording import counted
from ...services.operations.backfill import Backfill, Order, Span
from ..input.values import check, confirm, instant
from ..input.values import rate as rate_of
from ..output.format import local
from ..runtime.event_loop import run
from ..runtime.session import Session, session_of

SHOWN: Final = 3
"""Occurrences that the plan lists before the ellipsis."""


def backfill(  # noqa: PLR0913, PLR0917 - each is an option of the command
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")],
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="Start of the period, inclusive.")],
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="End of the period, exclusive; default: now.")
    ] = None,
    only_missing: Annotated[
        bool, typer.Option("--only-missing", help="Only occurrences that did not fire or were skipped, by the ledger.")
    ] = False,
    order: Annotated[Order, typer.Option(help="The order in which executions are requested.")] = "oldest",
    name: Annotated[
        str | None, typer.Option(help="A second backfill with the same name runs nothing twice; default: the period.")
    ] = None,
    rate: Annotated[str, typer.Option(help="Maximum rate of requests, such as 10/s or 100/m.")] = "10/s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan without running anything.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    reason: Annotated[str | None, typer.Option(help="Reason, recorded in the event.")] = None,
) -> None:
    """Run a job for past occurrences, each with its own scheduled time.

    TIME is a date or a date and time (without an offset in the job's time zone), or an age such as 24h. The executions run after each
    other unless the job's overlap policy allows overlap.

    Example: `tocsin backfill nightly --from 2026-11-01 --to 2026-11-08 --only-missing`
    """
    session = session_of(context)
    requests_per_second = rate_of(rate, "--rate")
    check(f"run {job} for past occurrences?", yes=yes or dry_run)

    async def work() -> tuple[Backfill, int]:
        async with session.operator() as operator:
            now, zone = datetime.now(UTC), (await operator.job(job)).definition.timezone
            first = instant(start, "--from", now=now, timezone=zone)
            last = now if end is None else instant(end, "--to", now=now, timezone=zone)
            span = Span(first, last, only_missing=only_missing, order=order)
            plan = await operator.plan_backfill(job, span, now=now, name=name)
            if not session.output.is_json:
                session.output.answer(None, lambda: _lines(plan))
            if dry_run or not plan.instants:
                return plan, 0
            confirm(f"run {counted(len(plan.instants), 'execution')} of {job}?", yes=yes, otherwise="nothing was run")
            requested = 0
            async for _ in operator.backfill(plan, rate=requests_per_second, reason=reason):
                requested += 1
            return plan, requested

    plan, requested = run(work())
    _print_result(session, plan, requested, dry_run=dry_run)


def _print_result(session: Session, plan: Backfill, requested: int, *, dry_run: bool) -> None:
    session.output.answer(
        {**asdict(plan), "asked": requested, "dry_run": dry_run},
        lambda: (
            [Text.assemble((f"requested {counted(requested, 'execution')}", "cyan"), " of ", (plan.job, "bold"))]
            if requested
            else []
        ),
    )


def _lines(plan: Backfill) -> list[RenderableType]:
    unknown = plan.named - plan.fired - plan.missing
    counts = f"{counted(plan.named, 'occurrence')}: {plan.fired} fired, {plan.missing} did not fire, {unknown} unknown"
    times = [local(at) for at in islice(plan.instants, SHOWN)]
    if len(plan.instants) > SHOWN:
        times += ["…", local(plan.instants[-1])]
    return [
        Text.assemble((plan.job, "bold"), f"  backfill {plan.name}"),
        Text(counts, style="dim"),
        Text(f"{len(plan.instants)} to run: {', '.join(times)}" if plan.instants else "nothing to run"),
    ]
