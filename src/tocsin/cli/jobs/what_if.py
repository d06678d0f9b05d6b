"""`tocsin what-if`: the recorded past, or the forecast, with other definitions or other workers."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ...domain.text import counted
from ...services.apply import with_defaults
from ..input.values import instant
from ..output.format import local, seconds
from ..output.tables import table
from ..runtime.errors import UsageError
from ..runtime.event_loop import run
from ..runtime.session import Session
from .apply import OWNER, File, read

if TYPE_CHECKING:
    from ...domain.what_if import WhatIfJob, WhatIfReport

SHOWN: Final = 5
"""Instants and executions of each job that the text lists; `-o json` has more of them."""


def what_if(
    session: Session,
    file: File = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start of the window; default: a week before its end, or of a forecast now."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="End of the window; default: now. A later time is a forecast.")
    ] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option(metavar="QUEUE=N", help="Slots of the workers of a queue; all jobs of the queue take part."),
    ] = None,
) -> None:
    """Show what would have been different with other definitions or other workers.

    The recorded past is replayed: which occurrences would have come or gone, and which executions would have overlapped, waited
    or been skipped. Nothing is registered or changed. TIME is a date and time, or an age such as 30d.

    Example: `tocsin what-if -f jobs.yaml --since 30d`
    """
    now = datetime.now(UTC)
    window = instant(since, "--since", now=now), instant(until, "--until", now=now)
    slots = dict(map(_slots, capacity or ()))
    report = run(_ask(session, file or [], window, slots))
    session.output.answer(asdict(report), lambda: list(_lines(report)))


async def _ask(
    session: Session, files: list[str], window: tuple[datetime | None, datetime | None], slots: dict[str, int]
) -> "WhatIfReport":
    from ...services.what_if import Question  # noqa: PLC0415 - only this command needs it

    settings = session.settings()
    definitions = read(settings, files, OWNER) if files or not slots else ()
    async with session.operator() as operator:
        complete = await with_defaults(operator, definitions, settings)
        return await operator.what_if(Question(complete, *window, slots))


def _slots(written: str) -> tuple[str, int]:
    queue, _, number = written.rpartition("=")
    if not queue or not number.isascii() or not number.isdigit():
        raise UsageError(
            f"--capacity is {written!r}: write a queue and its slots, such as default=4", code="invalid-capacity"
        )
    return queue, int(number)


def _lines(report: "WhatIfReport") -> Iterator[RenderableType]:
    kind = "forecast" if report.is_forecast else "replay of the past"
    yield Text(f"{kind} from {local(report.since)} to {local(report.until)}", style="bold")
    headings = ("JOB", "FIRED", "CAME", "WENT", "RAN", "SKIPPED", "OVERLAPS", "WAITED FOR LOCK", "WAITED FOR WORKER")
    rows: list[Sequence[object]] = []
    for name, before, after, came, went in (
        *((job.job, job.before, job.after, job.came.count, job.went.count) for job in report.jobs),
        *([("all", report.before, report.after, "", "")] if len(report.jobs) > 1 else []),
    ):
        rows.append(
            (
                name,
                _change(before.fired, after.fired),
                came,
                went,
                _change(_ran(before.outcomes), _ran(after.outcomes)),
                _change(sum(before.skipped.values()), sum(after.skipped.values())),
                _change(before.overlaps, after.overlaps),
                _change(seconds(before.lock_waits.p95), seconds(after.lock_waits.p95)),
                _change(seconds(before.worker_waits.p95), seconds(after.worker_waits.p95)),
            )
        )
    yield table(headings, rows, empty="no jobs", least=("OVERLAPS", "CAME", "WENT"))
    yield Text("before → after; the waits are the 95th percentiles", style="dim")
    for job in report.jobs:
        yield from _details(job)


def _details(job: "WhatIfJob") -> Iterator[RenderableType]:
    rows: list[Text] = []
    for verb, instants in (("would have fired", job.came), ("would not have fired", job.went)):
        if instants.count:
            more = "" if instants.count <= SHOWN else f", … ({instants.count:,})"
            rows.append(Text(f"  {verb}: {', '.join(local(at) for at in instants.first[:SHOWN])}{more}"))
    for difference in job.differences.first[:SHOWN]:
        before, after = (
            course.status + (f" ({course.reason})" if course.reason else "")
            for course in (difference.before, difference.after)
        )
        start = f", starts {local(difference.after.started_at)}" if difference.after.started_at else ""
        rows.append(Text(f"  {local(difference.scheduled_time)} {difference.trigger}: {before} → {after}{start}"))
    if job.differences.count > SHOWN:
        rows.append(Text(f"  … {counted(job.differences.count, 'execution')} with another course"))
    rows += [Text(f"  {note}", style="yellow") for note in job.notes]
    if rows:
        yield Text(job.job, style="bold")
        yield from rows


def _ran(outcomes: dict[str, int]) -> int:
    return sum(number for status, number in outcomes.items() if status not in {"skipped", "waiting"})


def _change(before: object, after: object) -> str:
    return str(before) if before == after else f"{before} → {after}"
