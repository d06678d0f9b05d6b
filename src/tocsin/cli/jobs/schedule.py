"""`tocsin schedule`, `tocsin explain` and `tocsin backfill`: the occurrences of jobs."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from operator import itemgetter
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ...domain.definition import is_name, upstream_jobs
from ...domain.formats import read_job, with_calendars
from ...domain.ledger import JobNotFound
from ...domain.schedule import DayRules, Explanation, LocalInstant, ScheduleError, parse
from ...domain.schedule import explain as explain_schedule
from ...domain.schedule.clock_changes import local_time
from ...domain.text import counted
from ...ports import LogUnavailable, NotPermitted, Unreachable
from ...services.jobs import Job
from ...services.operations.backfill import Backfill, Order, Span
from ...services.operator import Operator
from ...settings import SettingsError
from ..input.values import JobName, Reason, Yes, check, confirm, instant
from ..input.values import rate as rate_of
from ..output.format import local
from ..output.tables import print_table
from ..runtime.errors import UsageError
from ..runtime.event_loop import run
from ..runtime.session import Session

MAX_COUNTED: Final = 100_000
"""Occurrences that are counted for one job: more than one a second in a day."""
MAX_ROWS: Final = 4
"""A job with more occurrences than this has a single row with their number."""


@dataclass(frozen=True, slots=True)
class Upcoming:
    """The occurrences of one job in the window."""

    job: str
    schedule: str
    timezone: str
    depends_on: tuple[str, ...]
    """The jobs for whose runs each execution waits."""
    count: int
    fire_times: tuple[datetime, ...]


def schedule(
    session: Session,
    hours: Annotated[float, typer.Option(min=0.01, max=24 * 366, help="Length of the window in hours.")] = 24,
    limit: Annotated[int, typer.Option(min=1, help="Maximum occurrences of each job in JSON.")] = 100,
) -> None:
    """Show which jobs fire in the next hours, and when.

    AFTER names the jobs for whose runs an execution waits.

    Example: `tocsin schedule --hours 48`
    """
    now = datetime.now(UTC)
    until = now + timedelta(hours=hours)
    windows = (_upcoming(job, now, until) for job in session.ask(lambda operator: operator.jobs()))
    upcoming = [window for window in windows if window.fire_times]
    after = ("AFTER",) if any(window.depends_on for window in upcoming) else ()
    rows = (row for window in upcoming for row in _rows(window, names_jobs=bool(after)))
    print_table(
        session.output,
        {
            "from": now,
            "until": until,
            "jobs": [asdict(replace(window, fire_times=window.fire_times[:limit])) for window in upcoming],
        },
        ("WHEN", "JOB", "SCHEDULE", "ZONE", *after, "MORE"),
        sorted(rows, key=itemgetter(0)),
        empty=f"nothing fires before {local(until)}",
        least=("MORE", "ZONE", "SCHEDULE", *after),
    )


def _upcoming(job: Job, now: datetime, until: datetime) -> Upcoming:
    times, definition = (
        tuple(islice(takewhile(lambda at: at <= until, job.fire_times(now)), MAX_COUNTED)),
        job.definition,
    )
    depends_on = upstream_jobs(definition.depends_on)
    return Upcoming(job.name, definition.schedule or "", definition.timezone, depends_on, len(times), times)


def _rows(window: Upcoming, *, names_jobs: bool) -> Iterator[tuple[datetime, Text, *tuple[str, ...]]]:
    """Yield the table rows of a job; `names_jobs`: with those for which it waits."""
    times, name = window.fire_times, Text(window.job, style="bold")
    are_few = len(times) <= MAX_ROWS
    remainder = "" if are_few else f"and {len(times) - 1:,} times more until {local(times[-1])}"
    for at in times if are_few else times[:1]:
        after = (", ".join(window.depends_on),) if names_jobs else ()
        yield at, name, window.schedule, window.timezone, *after, remainder


def explain(
    session: Session,
    text: Annotated[
        str,
        typer.Argument(
            metavar="SCHEDULE|JOB",
            help="Cron, `@every …`, or English, in quotes; or the name of a registered job, with its time zone, calendars and blackouts. "
            "A word that is both, such as `daily`, is the job if one has this name, and the schedule with `--tz`.",
        ),
    ],
    tz: Annotated[
        str | None, typer.Option("--tz", help="Time zone of the schedule; default: that of the phrase, or UTC.")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="Number of occurrences to print.")] = 5,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="CALENDAR", help="A calendar on whose days it does not fire; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CALENDAR", help="A calendar on whose days alone it fires; repeatable.")
    ] = None,
    shift: Annotated[
        str | None, typer.Option(metavar="RULE", help="Times of excluded days: `skip` or `next_business_day`.")
    ] = None,
    file: Annotated[
        list[str] | None, typer.Option("--file", "-f", metavar="FILE", help="Job files that define the calendars.")
    ] = None,
) -> None:
    """Explain a schedule, or that of a registered job, and print its next occurrences.

    A schedule needs no server, except that a single word may also be the name of a job. `@every 90s` counts from the registration or the last trigger. The ticker reads the clock once a second: whole seconds fire on
    time, and occurrences between two seconds fire up to one second late, each of them once.

    Example: `tocsin explain "every weekday at 9am" --tz Europe/Berlin`, `tocsin explain "0 9 1 * *" -f jobs.yaml --exclude weekends`, or
    `tocsin explain nightly`
    """
    has_options = bool(tz or exclude or only or shift or file)
    is_name, is_schedule = _readings(text)
    if is_name and not is_schedule:
        if has_options:
            reason = f"{text} is a job, whose definition has its time zone and its calendars: leave out these options"
            raise UsageError(reason, code="conflicting-options")
        job = session.ask(lambda operator: operator.job(text))
        explanation = _of_registered(job, count)
    elif is_name and not has_options:
        explanation = run(_of_word(session, text, count))
    else:
        days = None
        if exclude or only or shift or file:
            days = _day_rules(text, tz, {"exclude": exclude or [], "only": only or [], "shift": shift}, file or [])
        explanation = explain_schedule(text, tz, datetime.now(UTC), days=days, n=count)
    session.output.answer(
        {**asdict(explanation), "next": [occurrence.utc for occurrence in explanation.next]}, lambda: _page(explanation)
    )


def _readings(text: str) -> tuple[bool, bool]:
    """Return whether a text may be a name of a job, and a schedule."""
    try:
        parse(text, "UTC")
    except ScheduleError:
        return is_name(text), False
    return is_name(text), True


async def _of_word(session: Session, text: str, count: int) -> Explanation:
    """Explain the job of a name, or the word as a schedule."""
    job: Job | None = None
    note = ""
    try:
        async with session.operator() as operator:
            with suppress(JobNotFound):
                job = await operator.job(text)
    except (LogUnavailable, Unreachable, NotPermitted, SettingsError) as error:
        note = f"explained as a schedule; whether a job has this name is not known: {error}"
    if job is None:
        explanation = explain_schedule(text, None, datetime.now(UTC), n=count)
    else:
        explanation = _of_registered(job, count, remedy=f"; for the schedule run `tocsin explain {text} --tz UTC`")
        note = "explained as the job of this name; with `--tz` it is the schedule"
    return replace(explanation, warnings=(*explanation.warnings, note)) if note else explanation


def _of_registered(job: Job, count: int, *, remedy: str = "") -> Explanation:
    """Return the explanation of the schedule of a job.

    `remedy` ends the error for a job without a schedule.
    """
    definition, now = job.definition, datetime.now(UTC)
    if definition.schedule is None:
        reason = f"the job {job.name} has no schedule: it runs on request, or on the events of its triggers{remedy}"
        raise UsageError(reason, code="no-schedule")
    explanation = explain_schedule(
        definition.schedule, definition.timezone, now, dst=definition.dst, days=definition.day_rules, n=count
    )
    if job.status != "active":  # it fires none of them
        reason = f"the job is {job.status}: it fires none of these until that changes"
        return replace(explanation, warnings=(*explanation.warnings, reason))
    times = islice(job.fire_times(now), count)  # an interval counts from its last run
    return replace(explanation, next=tuple(LocalInstant(at, local_time(explanation.timezone, at)) for at in times))


def _day_rules(text: str, tz: str | None, rules: Mapping[str, object], files: list[str]) -> DayRules | None:
    """Return the rules about days of a job with this schedule."""
    from ...adapters.files import load_calendars  # noqa: PLC0415 - few schedules have calendars

    written = {"name": "schedule", "function": "function", "schedule": text, "timezone": tz, **rules}
    job = with_calendars({name: value for name, value in written.items() if value}, load_calendars(*files))
    return read_job(job).day_rules


def _page(explanation: Explanation) -> list[RenderableType]:
    occurrences = (f"  {_clock(occurrence.local)}   {local(occurrence.utc)} here" for occurrence in explanation.next)
    return [
        Text(explanation.meaning, style="bold"),
        Text("   ".join(explanation.expressions), style="cyan"),
        *(Text(warning, style="yellow") for warning in explanation.warnings),
        *(
            Text(change, style="dim")
            for change in explanation.clock_changes
            if not any(warning.startswith(change) for warning in explanation.warnings)
        ),
        *(Text(occurrence) for occurrence in occurrences),
        *([] if explanation.next else [Text("it never fires again", style="yellow")]),
    ]


def _clock(at: datetime) -> str:
    """Format a time with its offset, and milliseconds as in `@every 1.5s`."""
    fraction = f".{at.microsecond // 1_000:03}" if at.microsecond else ""
    return f"{at:%a %Y-%m-%d %H:%M:%S}{fraction} {at:%z}"


SHOWN: Final = 3
"""Occurrences that the plan lists before the ellipsis."""


def backfill(  # noqa: PLR0913, PLR0917 - each is an option of the command
    session: Session,
    job: JobName,
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
    yes: Yes = False,
    reason: Reason = None,
) -> None:
    """Run a job for past occurrences, each with its own scheduled time.

    TIME is a date or a date and time (without an offset in the job's time zone), or an age such as 24h. The executions run after each
    other unless the job's overlap policy allows overlap.

    Example: `tocsin backfill nightly --from 2026-11-01 --to 2026-11-08 --only-missing`
    """
    requests_per_second = rate_of(rate, "--rate")
    for text, option in ((start, "--from"), (end, "--to")):  # read again when the job's time zone is known
        instant(text, option, now=datetime.now(UTC))

    async def work(operator: Operator) -> tuple[Backfill, int]:
        now, zone = datetime.now(UTC), (await operator.job(job)).definition.timezone
        check(f"run {job} for past occurrences?", yes=yes or dry_run)
        first = instant(start, "--from", now=now, timezone=zone)
        last = now if end is None else instant(end, "--to", now=now, timezone=zone)
        span = Span(first, last, only_missing=only_missing, order=order)
        plan = await operator.plan_backfill(job, span, now=now, name=name)
        session.output.print(_lines(plan))
        if dry_run or not plan.instants:
            return plan, 0
        confirm(f"run {counted(len(plan.instants), 'execution')} of {job}?", yes=yes, otherwise="nothing was run")
        requested = 0
        async for _ in operator.backfill(plan, rate=requests_per_second, reason=reason):
            requested += 1
        return plan, requested

    plan, requested = session.ask(work)
    line = Text.assemble((f"requested {counted(requested, 'execution')}", "cyan"), " of ", (plan.job, "bold"))
    document = {**asdict(plan), "requested": requested, "dry_run": dry_run}
    session.output.answer(document, lambda: [line] if requested else [])


def _lines(plan: Backfill) -> list[RenderableType]:
    unknown = plan.named - plan.fired - plan.missing
    counts = (
        f"{counted(plan.named, 'occurrence')}: {plan.fired:,} fired, {plan.missing:,} did not fire, {unknown:,} unknown"
    )
    times = [local(at) for at in islice(plan.instants, SHOWN)]
    if len(plan.instants) > SHOWN:
        times += ["…", local(plan.instants[-1])]
    return [
        Text.assemble((plan.job, "bold"), f"  backfill {plan.name}"),
        Text(counts, style="dim"),
        Text(f"{len(plan.instants):,} to run: {', '.join(times)}" if plan.instants else "nothing to run"),
    ]
