"""Everything that can be said about a schedule before it is used, as data; whoever shows it chooses the form."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import timezone as fixed_offset
from typing import Final

from . import timezones
from .advice import AHEAD, describe, warnings_at
from .clock_changes import clock_changes
from .dst import DstPolicy
from .english import meaning
from .instants import seconds
from .parser import parse
from .upcoming import next_instants

_INSTANTS: Final = 5


@dataclass(frozen=True, slots=True)
class Instant:
    """One coming instant, twice.

    Attributes:
        utc: in UTC.
        local: the same in the schedule's zone, with the offset in force then.
    """

    utc: datetime
    local: datetime


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a schedule means.

    Attributes:
        text, timezone: what was asked.
        meaning: one English sentence, made from what was understood.
        expressions: the cron expressions, or the `@every` or `@at`, that were understood.
        next: the coming instants.
        clock_changes: what the coming changes of the zone's clocks do to it, one sentence each.
        warnings: what its author may not expect, one sentence each.
        timezone_database: the release of the zone data that this is true under, such as `2026a`.
    """

    text: str
    timezone: str
    meaning: str
    expressions: tuple[str, ...]
    next: tuple[Instant, ...]
    clock_changes: tuple[str, ...]
    warnings: tuple[str, ...]
    timezone_database: str


def explain(
    text: str, timezone: str, now: datetime, *, dst: DstPolicy | None = None, n: int = _INSTANTS
) -> Explanation:
    """Reads a text as `parse` does, and says what it means from `now` (aware) on; intervals count from `now`.

    Raises:
        ScheduleError: as `parse` does.
    """
    schedule = parse(text, timezone, dst=dst)
    changes = clock_changes(schedule, now, now + AHEAD)
    return Explanation(
        text=text,
        timezone=timezone,
        meaning=meaning(schedule),
        expressions=schedule.expressions,
        next=tuple(Instant(at, _local(timezone, at)) for at in next_instants(schedule, now, n)),
        clock_changes=tuple(describe(change, timezone) for change in changes),
        warnings=warnings_at(schedule, now),
        timezone_database=timezones.database().version,
    )


def _local(timezone: str, at: datetime) -> datetime:
    offset = timezones.zone(timezone).span(seconds(at)).offset
    return at.astimezone(fixed_offset(timedelta(seconds=offset)))
