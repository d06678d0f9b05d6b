"""`tocsin schedule`: what fires in the hours to come."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from operator import itemgetter
from typing import Annotated, Final

import typer
from rich.text import Text

from ...services.jobs import Job
from ..output.format import local
from ..output.tables import table
from ..runtime.event_loop import run
from ..runtime.session import session_of

ENOUGH: Final = 100_000
"""Instants that are counted for one job: more than one a second in a day."""
FEW: Final = 4
"""Instants of one job that have a row each; more are told in one."""


@dataclass(frozen=True, slots=True)
class Upcoming:
    """The instants of one job in the window."""

    job: str
    schedule: str
    timezone: str
    fire_times: tuple[datetime, ...]


def schedule(
    context: typer.Context,
    hours: Annotated[float, typer.Option(min=0.01, max=24 * 366, help="How far to look ahead.")] = 24,
    limit: Annotated[int, typer.Option(min=1, help="Instants of each job in JSON.")] = 100,
) -> None:
    """Show which jobs fire in the next 24 hours, and when."""
    session = session_of(context)
    now = datetime.now(UTC)
    until = now + timedelta(hours=hours)

    async def read() -> tuple[Job, ...]:
        async with session.operator() as operator:
            return await operator.jobs()

    upcoming = [found for job in run(read()) if (found := _upcoming(job, now, until)).fire_times]
    session.output.answer(
        {
            "from": now,
            "until": until,
            "jobs": [
                {
                    "job": one.job,
                    "schedule": one.schedule,
                    "timezone": one.timezone,
                    "count": len(one.fire_times),
                    "fire_times": one.fire_times[:limit],
                }
                for one in upcoming
            ],
        },
        lambda: [
            table(
                ("WHEN", "JOB", "SCHEDULE", "ZONE", "MORE"),
                sorted((row for one in upcoming for row in _rows(one)), key=itemgetter(0)),
                empty=f"nothing fires before {local(until)}",
                least=("MORE", "ZONE", "SCHEDULE"),
            )
        ],
    )


def _upcoming(job: Job, now: datetime, until: datetime) -> Upcoming:
    fire_times = tuple(islice(takewhile(lambda at: at <= until, job.fire_times(now)), ENOUGH))
    return Upcoming(job.name, job.definition.schedule or "", job.definition.timezone, fire_times)


def _rows(one: Upcoming) -> Iterator[tuple[datetime, Text, str, str, str]]:
    """The rows of a job: when, which, by what schedule, in what zone, how often more."""
    name, few = Text(one.job, style="bold"), len(one.fire_times) <= FEW
    more = "" if few else f"and {len(one.fire_times) - 1:,} times more until {local(one.fire_times[-1])}"
    for at in one.fire_times if few else one.fire_times[:1]:
        yield at, name, one.schedule, one.timezone, more
