"""The rules of a job about days: its calendars, with their dates, and its blackouts."""

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Annotated, Any, Final, Self, TypeAlias

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from .. import schedule as calendar
from ..schedule import DstPolicy, Schedule, Shift, Weekday
from .errors import DefinitionProblem, excess, show
from .fields import Name, StoredModel, Text, is_stored

MAX_CALENDARS: Final = 20
"""Calendars in `exclude`, and in `only`."""
MAX_RANGES: Final = 1_000
"""Dates and ranges of dates of all calendars of a job; one has at most 21 bytes."""
MAX_BLACKOUTS: Final = 100
MAX_REASON: Final = 200
"""Characters of the reason of a blackout."""
FIRST_YEAR: Final = 1970
LAST_YEAR: Final = 2199


class Calendar(StoredModel):
    """A named set of days, with its dates up to the last known."""

    name: Name
    """The name of the calendar."""
    days: tuple[Text, ...] = ()
    """Dates such as `2026-12-24`, and ranges with both ends such as `2026-12-24/2026-12-26`."""
    weekdays: tuple[Weekday, ...] = ()
    """Days of every week, such as `saturday`."""
    until: Text | None = None
    """The last date up to which the calendar is known; None: the last of `days`. It has no day after it, beside its `weekdays`."""

    @model_validator(mode="after")
    def _is_right(self, info: ValidationInfo) -> Self:
        if is_stored(info):
            return self
        ranges = [_range(text) for text in self.days]
        if not ranges and not self.weekdays:
            raise ValueError(f"the calendar {self.name} has no days: write `days` or `weekdays`")
        last = date.fromordinal(max(end.toordinal() for _, end in ranges)).isoformat() if ranges else None
        until = last if self.until is None else _date(self.until).isoformat()
        if until is not None and last is not None and until < last:
            raise ValueError(f"`until` is {until}, and the calendar {self.name} has later days, the last {last}")
        # Equal calendars are stored alike, also if they were written in another order or form.
        object.__setattr__(self, "days", calendar.compact(self.days))
        object.__setattr__(self, "until", until)
        object.__setattr__(self, "weekdays", tuple(day for day in calendar.WEEKDAYS if day in self.weekdays))
        return self

    @property
    def named(self) -> calendar.NamedDays:
        return calendar.NamedDays(self.name, self.days, self.weekdays, self.until or "")


def _date(text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text or not FIRST_YEAR <= day.year <= LAST_YEAR:
        raise ValueError(f"{show(text)} must be a date of the years {FIRST_YEAR} to {LAST_YEAR}, such as 2026-12-24")
    return day


def _range(text: str) -> tuple[date, date]:
    first, slash, last = text.partition("/")
    start, end = _date(first), _date(last if slash else first)
    if end < start:
        raise ValueError(f"{show(text)} ends before it begins")
    return start, end


class Blackout(StoredModel, serialize_by_alias=True, validate_by_name=True, validate_by_alias=True):
    """A span of time in which nothing fires."""

    start: Text = Field(alias="from")
    """Its first moment, such as `2026-12-20T18:00`: in the job's time zone, or with an offset."""
    end: Text = Field(alias="to")
    """The moment at which it is over."""
    reason: Text = ""
    """Why, for the readers of `why`."""

    @property
    def span(self) -> calendar.Blackout:
        return calendar.Blackout(self.start, self.end, self.reason)


def _resolved(value: Any) -> Any:  # noqa: ANN401 - before validation
    if isinstance(value, str):
        raise PydanticCustomError(
            "unknown_calendar",
            "no such calendar: define it under `calendars` of the job file or of the application, or write its days here",
        )
    return value


Calendars: TypeAlias = tuple[Annotated[Calendar, BeforeValidator(_resolved)], ...]
"""Calendars with their dates. A job file names them, and its section `calendars` has the dates."""


def day_problems(
    exclude: Sequence[Calendar],
    only: Sequence[Calendar],
    blackout: Sequence[Blackout],
    shift: Shift,
    schedule: Schedule | None,
) -> Iterator[DefinitionProblem]:
    """Yield the problems of a job's rules about days; `schedule` is without them."""
    given = [name for name, value in (("exclude", exclude), ("only", only), ("blackout", blackout)) if value]
    if schedule is None:
        for name in (*given, *(("shift",) if shift != "skip" else ())):
            yield DefinitionProblem("only a job with a schedule has it", field=name, code="exclusive-fields")
        return
    yield from _size_problems(exclude, only, blackout)
    yield from _blackout_problems(blackout, schedule.timezone)
    if shift == "skip":
        return
    if schedule.interval is not None:
        reason = (
            "an interval counts from the last firing and has no time of day to keep: write a cron expression, or `skip`"
        )
        yield DefinitionProblem(reason, field="shift", value=show(shift), code="exclusive-fields")
    elif not exclude and not only:
        reason = "only instants on days that a calendar closes move: name a calendar in `exclude` or `only`"
        yield DefinitionProblem(reason, field="shift", value=show(shift), code="required")


def _size_problems(
    exclude: Sequence[Calendar], only: Sequence[Calendar], blackout: Sequence[Blackout]
) -> Iterator[DefinitionProblem]:
    for field, values, most in (
        ("exclude", exclude, MAX_CALENDARS),
        ("only", only, MAX_CALENDARS),
        ("blackout", blackout, MAX_BLACKOUTS),
    ):
        yield from excess(len(values), "entries", most, field)
    count, field = sum(len(named.days) for named in (*exclude, *only)), "exclude" if exclude else "only"
    yield from excess(count, "dates and ranges in all calendars of the job", MAX_RANGES, field, "name fewer years")


def _blackout_problems(blackout: Sequence[Blackout], timezone: str) -> Iterator[DefinitionProblem]:
    for number, span in enumerate(blackout[:MAX_BLACKOUTS]):
        moments = []
        for field, written in (("from", span.start), ("to", span.end)):
            try:
                moments.append(calendar.parse_moment(written, timezone, DstPolicy(gap="shift")))
            except calendar.ScheduleError as error:
                place, reason = f"blackout.{number}.{field}", error.problem.removeprefix("at: ")
                yield DefinitionProblem(reason, field=place, value=show(written), code=error.code)
        if len(moments) == 2 and moments[0] >= moments[1]:  # noqa: PLR2004 - both could be read
            reason = f"it must be later than `from`, {span.start}"
            place = f"blackout.{number}.to"
            yield DefinitionProblem(reason, field=place, value=show(span.end), code="out-of-range")
        if len(span.reason) > MAX_REASON:
            reason = f"it has {len(span.reason):,} characters, more than {MAX_REASON}"
            yield DefinitionProblem(reason, field=f"blackout.{number}.reason", code="out-of-range")
