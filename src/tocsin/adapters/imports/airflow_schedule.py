"""The schedule of a DAG: presets, cron, intervals and timetables; its start and its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ...domain.schedule import timezones
from ...domain.schedule.expression import ALIASES
from .cron_dialects import CRONITER
from .drafts import Draft
from .python_syntax import Call, is_static, shown
from .schedules import Zone, set_cron, set_interval, set_timezone

ABSENT: Final = object()
"""An argument that is not given."""
_PRESETS: Final = {**ALIASES, "@quarterly": "0 0 1 */3 *"}
_WITH_SECONDS: Final = 6
_INTERVALS: Final = frozenset({"CronDataIntervalTimetable", "DeltaDataIntervalTimetable"})
_TRIGGERS: Final = frozenset({"CronTriggerTimetable", "DeltaTriggerTimetable"})
_EVENTS: Final = frozenset(
    {"Dataset", "Asset", "DatasetAlias", "AssetAlias", "DatasetOrTimeSchedule", "AssetOrTimeSchedule"}
)
"""Schedules by updates of data."""
_DATE_PARTS: Final = ("year", "month", "day", "hour", "minute", "second")


@dataclass(frozen=True, slots=True)
class Moment:
    """A date of a DAG.

    Attributes:
        local: the date and time, naive.
        zone: the name of its time zone; None: the installation's.
    """

    local: datetime
    zone: str | None

    def at(self, default: str) -> datetime:
        try:
            return self.local.replace(tzinfo=timezones.zone(self.zone or default).data).astimezone(UTC)
        except (ValueError, OverflowError):
            return self.local.replace(tzinfo=UTC)


def moment_of(value: Any, now: datetime) -> Moment | None:  # noqa: ANN401 - a value of the file
    """Return the date of a `datetime(…)` or a `days_ago(…)`; None: any other value."""
    match value:
        case Call(name="datetime") if len(value.args) <= len(_DATE_PARTS) + 1:
            parts = dict(zip(_DATE_PARTS, value.args, strict=False)) | {
                name: part for name, part in value.keywords.items() if name in _DATE_PARTS
            }
            zone = value.keywords.get("tz", value.keywords.get("tzinfo"))
            try:
                local = datetime(**parts)  # noqa: DTZ001 - the zone is beside it
            except (TypeError, ValueError, OverflowError):
                return None
            default = "UTC" if value.full in {"pendulum.datetime", "timezone.datetime"} else None
            return Moment(local, default if zone is None else zone_of(zone))
        case Call(name="days_ago", args=(int() as days, *_)) if 0 <= days < 100_000:  # noqa: PLR2004
            return Moment(
                (now - timedelta(days=days)).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None), "UTC"
            )
        case _:
            return None


def zone_of(value: Any) -> str | None:  # noqa: ANN401
    """Return the name of a time zone; None: it is computed at run time."""
    match value:
        case str():
            return value
        case Call(name="timezone" | "ZoneInfo" | "Timezone" | "gettz", args=(str() as name,)):
            return name
        case _ if getattr(value, "text", "").endswith((".utc", ".UTC")) or getattr(value, "text", "") == "UTC":
            return "UTC"
        case _:
            return None


def set_schedule(draft: Draft, arguments: Mapping[str, Any], start: Moment | None, zone: Zone) -> None:
    names = ("schedule", "schedule_interval", "timetable")
    written = next((arguments[name] for name in names if arguments.get(name, ABSENT) is not ABSENT), ABSENT)
    draft.original.append("no schedule is given" if written is ABSENT else f"schedule: {shown(written)}")
    named = start.zone if start else None
    if written is ABSENT:
        said = "the DAG names no schedule: Airflow 2 runs it each day, Airflow 3 never; write `schedule`"
        draft.add("schedule-not-expressible", said)
        return
    has_interval = True
    if isinstance(written, Call) and written.name in _INTERVALS | _TRIGGERS:
        has_interval = written.name in _INTERVALS
        given = written.keywords.get("timezone", written.args[1] if len(written.args) > 1 else None)
        named = zone_of(given) or named
        written = next(iter(written.args), written.keywords.get("cron", written.keywords.get("delta")))
    match written:
        case None:
            return
        case str():
            has_schedule = _set_text(draft, written)
        case timedelta():
            set_interval(draft, written, anchor=start.at(zone.name) if start else None, since="`start_date`")
            _explain(draft, has_interval=has_interval)
            return
        case _:
            code = (
                "schedule-not-expressible"
                if isinstance(written, list | Call) or is_static(written)
                else "computed-at-run-time"
            )
            said = "write `schedule` by hand"
            if any(isinstance(each, Call) and each.name in _EVENTS for each in _parts(written)):
                code = "schedule-not-expressible"
                said = "write `triggers`, or `schedule` and `depends_on` with the jobs that make the data"
            draft.add(code, f"the schedule is {_written(written)}: {said}")
            return
    if has_schedule:
        draft.names_no_zone = named is None
        set_timezone(draft, named or zone.name)
        _explain(draft, has_interval=has_interval)


def _parts(written: Any) -> list[Any]:  # noqa: ANN401
    return written if isinstance(written, list) else [written]


def _written(value: Any) -> str:  # noqa: ANN401
    parts = _parts(value)
    return ", ".join(map(shown, parts[:10])) if isinstance(value, list) and parts else shown(value)


def _set_text(draft: Draft, written: str) -> bool:
    text = written.strip()
    if text in {"@once", "@continuous"}:
        said = "trigger the job once" if text == "@once" else "write an interval such as `@every 1m`"
        draft.add("schedule-not-expressible", f"`{text}` has no equivalent: {said}")
        return False
    fields = _PRESETS[text].split() if text in _PRESETS else text.split()
    if len(fields) == _WITH_SECONDS:  # croniter has the second last, Tocsin first
        *fields, second = fields
        if not set_cron(draft, fields, CRONITER):
            return False
        draft.fields["schedule"] = f"{second} {draft.fields['schedule']}"
        return True
    if len(fields) != _WITH_SECONDS - 1:
        draft.add("schedule-not-expressible", f"`{text[:200]}` is no cron expression: write `schedule` by hand")
        return False
    if set_cron(draft, fields, CRONITER):
        if text in ALIASES:
            draft.fields["schedule"] = text
        return True
    return False


def _explain(draft: Draft, *, has_interval: bool) -> None:
    if has_interval and "schedule" in draft.fields:
        said = (
            "Airflow names a run by the beginning of its interval (`ds`, `logical_date`); `scheduled_time` is the instant of the run, "
            "one interval later"
        )
        draft.add("data-interval", said)


def set_limits(draft: Draft, arguments: Mapping[str, Any], now: datetime, zone: Zone) -> None:
    """Report the start and the end of the schedule."""
    for name in ("start_date", "end_date"):
        written = arguments.get(name)
        if written is None:
            continue
        moment = moment_of(written, now)
        if moment is None:
            draft.add("computed-at-run-time", f"`{name}` is {shown(written)}")
            continue
        is_past = moment.at(zone.name) <= now
        if name == "start_date" and not is_past:
            draft.add("start-not-supported", f"`start_date` is {moment.local}: apply the job then")
        elif name == "end_date":
            draft.add("end-not-supported", f"`end_date` is {moment.local}: pause or delete the job then")
            if is_past:
                draft.fields["enabled"] = False
