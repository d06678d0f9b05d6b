"""Taking over new time-zone data without a restart (ojs-cron §5.3).

An operator writes a request into the KV bucket `timezones`, or sends SIGUSR1 to a process. Every process that reads schedules
then reads its `tzdata` package again. The leading ticker also reports the instants that moved.
"""

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from pydantic import BaseModel, ConfigDict

from .. import telemetry
from ..domain.ledger import Timetable
from ..domain.schedule import Moved, ScheduleError, TimezoneDatabase, moved, refresh, timezone_database
from ..domain.text import utc_text
from ..ports import Clock, LogUnavailable, Projections
from ..subjects import TIMEZONE_REPORT, TIMEZONE_REQUEST, Bucket

POLL_INTERVAL_S: Final = 2.0
AHEAD: Final = timedelta(days=400)
MAX_LISTED: Final = 100
"""Jobs in a report; `jobs` counts all."""
MAX_INSTANTS: Final = 3
"""Instants of a job in a report, of those removed and of those added."""
JOBS_AT_ONCE: Final = 64

_log = telemetry.get_logger("tocsin.timezones")


class MovedJob(BaseModel):
    """A job whose instants (UTC) moved, with the first of them."""

    model_config = ConfigDict(frozen=True)

    job: str
    timezone: str
    removed: tuple[datetime, ...] = ()
    added: tuple[datetime, ...] = ()
    error: str | None = None
    """The reason why its schedule cannot be read with the new data."""


class TimezoneReport(BaseModel):
    """The effect of new time-zone data on the jobs, over the next 400 days."""

    model_config = ConfigDict(frozen=True)

    request: int = 0
    """The revision of the request that it answers; 0: a signal."""
    before: str
    after: str
    at: datetime
    jobs: int = 0
    """The number of jobs that moved."""
    moved: tuple[MovedJob, ...] = ()


class TimezoneWatch:
    """Reads the time-zone data of this process again on request."""

    def __init__(self, projections: Projections, clock: Clock) -> None:
        self._projections = projections
        self._clock = clock
        self._seen: int | None = None

    async def run(self) -> None:
        """Poll for requests until cancelled; a lost connection delays a refresh."""
        while True:
            try:
                await self.run_once()
            except LogUnavailable as error:
                _log.warning("request for new time-zone data not read", action="log-unavailable", error=str(error))
            await self._clock.sleep(POLL_INTERVAL_S)

    async def run_once(self) -> None:
        """Read the data again if there is a request newer than this process."""
        entry = await self._projections.get(Bucket.TIMEZONES, TIMEZONE_REQUEST)
        revision = entry[1] if entry else 0
        if self._seen is not None and revision > self._seen:
            take_over()
        self._seen = max(revision, self._seen or 0)


def take_over() -> None:
    """Read the `tzdata` package of this process again, and log its version."""
    before = timezone_database().version
    _log.info("time-zone data read again", action="timezones-read", before=before, after=refresh().version)


async def report_of(
    timetables: Iterable[tuple[str, Timetable]], before: TimezoneDatabase, after: TimezoneDatabase, now: datetime
) -> TimezoneReport:
    """Return the effect of other data on jobs, from `now` (UTC) on."""
    moved_jobs: list[MovedJob] = []
    count = 0
    for number, (job, timetable) in enumerate(timetables):
        if not number % JOBS_AT_ONCE:
            await asyncio.sleep(0)
        if timetable.schedule is None or not timetable.enabled:
            continue
        difference, problem = _difference(timetable, before, after, now)
        if difference is None:
            continue
        count += 1
        if len(moved_jobs) < MAX_LISTED:
            removed, added = difference.removed[:MAX_INSTANTS], difference.added[:MAX_INSTANTS]
            moved_jobs.append(
                MovedJob(job=job, timezone=timetable.timezone, removed=removed, added=added, error=problem)
            )
    return TimezoneReport(before=before.version, after=after.version, at=now, jobs=count, moved=tuple(moved_jobs))


def _difference(
    timetable: Timetable, before: TimezoneDatabase, after: TimezoneDatabase, now: datetime
) -> tuple[Moved | None, str | None]:
    """Return what moved, or the reason why a schedule cannot be read with both databases."""
    text, timezone, dst = timetable.schedule or "", timetable.timezone, timetable.dst
    try:
        return moved(text, timezone, dst, before, after, now, now + AHEAD, days=timetable.days), None
    except ScheduleError as error:
        return Moved((), ()), error.problem


async def publish(report: TimezoneReport, projections: Projections) -> None:
    """Log a report, and store it for the command that requested it."""
    log = _log.warning if report.jobs else _log.info
    log(
        "time-zone data taken over",
        action="timezones-taken-over",
        before=report.before,
        after=report.after,
        jobs_moved=report.jobs,
    )
    for job in report.moved:
        _log.warning(
            "instants moved",
            action="instants-moved",
            job=job.job,
            timezone=job.timezone,
            removed=[utc_text(at) for at in job.removed],
            added=[utc_text(at) for at in job.added],
            error=job.error,
        )
    entry = await projections.get(Bucket.TIMEZONES, TIMEZONE_REQUEST)
    answer = report.model_copy(update={"request": entry[1] if entry else 0})
    await projections.put(Bucket.TIMEZONES, TIMEZONE_REPORT, answer.model_dump_json().encode())
