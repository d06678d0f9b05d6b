"""`tocsin tz`: the time-zone data of a running installation."""

import asyncio
import json
from datetime import UTC, datetime
from importlib import metadata
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ...domain.text import counted, utc_text
from ...engine.timezone_refresh import TimezoneReport
from ...ports import Projections
from ...subjects import TIMEZONE_REPORT, TIMEZONE_REQUEST, Bucket
from ..output.tables import table
from ..runtime.errors import Exit, UsageError
from ..runtime.event_loop import run
from ..runtime.session import actor, session_of

_POLL_S: Final = 0.5


def refresh(
    context: typer.Context,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the report of the leading ticker.")] = 30.0,
) -> None:
    """Let every process read its time-zone data again, and print the instants that moved.

    Upgrade the `tzdata` package where the processes run first. Nothing is restarted, and no instant is decided twice.

    Example: `pip install --upgrade tzdata && tocsin tz refresh`
    """
    session = session_of(context)

    async def request() -> TimezoneReport:
        async with session.installation() as installation:
            return await _requested(installation.projections, wait)

    report = run(request())
    session.output.answer(report.model_dump(mode="json"), lambda: [Text(_summary(report)), *_tables(report)])


async def _requested(projections: Projections, wait: float) -> TimezoneReport:
    """Write a request, and return the report that answers it."""
    body = {"at": utc_text(datetime.now(UTC)), "by": actor().identity, "tzdata": metadata.version("tzdata")}
    revision = await projections.put(Bucket.TIMEZONES, TIMEZONE_REQUEST, json.dumps(body).encode())
    for _ in range(max(1, round(wait / _POLL_S))):
        await asyncio.sleep(_POLL_S)
        entry = await projections.get(Bucket.TIMEZONES, TIMEZONE_REPORT)
        if entry and (report := TimezoneReport.model_validate_json(entry[0])).request >= revision:
            return report
    raise UsageError(
        f"No ticker reported within {wait:g} s. Processes that run later read the data that is installed then; run "
        "`tocsin status` to see whether a ticker leads.",
        Exit.UNREACHABLE,
        code="no-timezone-report",
    )


def _summary(report: TimezoneReport) -> str:
    """Return the change of the data in one line."""
    if report.before == report.after:
        return (
            f"time-zone data {report.after or 'unknown'}, as before: no newer data is installed where the ticker runs"
        )
    return f"time-zone data {report.before} -> {report.after}: {counted(report.jobs, 'job')} moved in the next 400 days"


def _tables(report: TimezoneReport) -> list[RenderableType]:
    if not report.moved:
        return []
    rows = [(one.job, one.timezone, _shown(one.removed), one.error or _shown(one.added)) for one in report.moved]
    return [table(("JOB", "TIME ZONE", "NO LONGER", "INSTEAD"), rows, empty="")]


def _shown(instants: tuple[datetime, ...]) -> str:
    return ", ".join(utc_text(at, "seconds") for at in instants)
