"""The section `calendars` of job files: each calendar as a set of dates.

A calendar comes from a list, from an iCalendar file, or from the public holidays of a country (the package `holidays`). Its dates go
into the definition of each job that names it, so that a decision looks nothing up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import ValidationError

from ...domain.definition import Calendar, DefinitionError, DefinitionProblem, is_name, problems, show
from ...domain.schedule import compact
from ..extras import ExtraNotInstalled, extra_of
from .icalendar_days import MAX_BYTES, days_of_file
from .text_files import read_bytes

Resolved: TypeAlias = dict[str, Any]

SECTION: Final = "calendars"
YEARS_BEFORE: Final = 1
"""Past years whose days a calendar has, for executions that come late and for backfills."""
YEARS_AFTER: Final = 2
"""Coming years whose days a calendar has, unless `until` says otherwise."""
MOST_YEARS: Final = 20
_PLAIN: Final = frozenset({"days", "weekdays", "until"})
_FORMS: Final = {
    "ics": frozenset({"ics", "until"}),
    "country": frozenset({"country", "subdivision", "until"}),
}
_EXAMPLE: Final = "a list of dates, or a mapping with `days`, `weekdays`, `ics` or `country`"


class CalendarSection:
    """The calendars of all files of a command, by name."""

    def __init__(self, today: date) -> None:
        """`today` decides on the years of calendars that do not end."""
        self._today = today
        self._places: dict[str, str] = {}
        self.calendars: dict[str, Resolved] = {}
        self.problems: list[DefinitionProblem] = []

    def add(self, document: object, source: str, folder: Path) -> None:
        """Add the calendars of a document; paths are relative to `folder`."""
        section = document.get(SECTION) if isinstance(document, Mapping) else None
        if section is None:
            return
        if not isinstance(section, Mapping):
            reason = "must be a mapping from names to calendars"
            self._report(DefinitionProblem(reason, field=SECTION, value=show(section), code="wrong-type"), source)
            return
        for name, written in section.items():
            try:
                self._add(name, written, source, folder)
            except DefinitionError as error:
                for problem in error.problems:
                    self._report(problem, source, name)

    def _add(self, name: object, written: object, source: str, folder: Path) -> None:
        if not isinstance(name, str) or not is_name(name):
            raise _refused("a name has lower-case letters, digits, hyphens and dots", value=show(name))
        if name in self._places:
            raise _refused(f"defined twice: in {self._places[name]} and in {source}", code="duplicate-name")
        self._places[name] = source
        fields = self._resolved(written, folder)
        try:
            Calendar.model_validate({"name": name, **fields})
        except ValidationError as error:
            raise DefinitionError(*problems(error)) from None
        self.calendars[name] = {"name": name, **fields}

    def _resolved(self, written: object, folder: Path) -> Resolved:
        if isinstance(written, list):
            return {"days": written}
        if not isinstance(written, Mapping):
            raise _refused(f"must be {_EXAMPLE}", value=show(written), code="wrong-type")
        form = next((form for form in _FORMS if form in written), None)
        known = _PLAIN if form is None else _FORMS[form]
        if unknown := [str(key) for key in written if key not in known]:
            raise _refused(f": the fields here are {', '.join(sorted(known))}", field=unknown[0], unknown=True)
        if form is None:
            return dict(written)
        first, last = self._window(written.get("until"))
        read = _days_of_ics if form == "ics" else _days_of_country
        try:
            days = read(written, folder, first, last)
        except ImportError as error:
            raise ExtraNotInstalled(f"A calendar with `{form}`", extra_of(error) or "calendars") from None
        return {"days": list(compact(map(date.isoformat, days))), "until": last.isoformat()}

    def _window(self, until: object) -> tuple[date, date]:
        first = date(self._today.year - YEARS_BEFORE, 1, 1)
        if until is None:
            return first, date(self._today.year + YEARS_AFTER, 12, 31)
        try:
            last = date.fromisoformat(until) if isinstance(until, str) else None
        except ValueError:
            last = None
        if last is None or not first <= last < first + timedelta(days=366 * MOST_YEARS):
            reason = f"must be a date such as {first.year + MOST_YEARS - 1}-12-31, from {first} on and at most {MOST_YEARS} years later"
            raise _refused(reason, field="until", value=show(until), code="out-of-range")
        return first, last

    def _report(self, problem: DefinitionProblem, source: str, name: object = None) -> None:
        place = problem.job or (None if name is None else f"calendar {show(name)}")
        inner = problem.source
        where = source if inner is None else f"{source}: {inner}"
        self.problems.append(replace(problem, job=place, source=where))


def _days_of_ics(written: Mapping[str, Any], folder: Path, first: date, last: date) -> Iterable[date]:
    path = written["ics"]
    if not isinstance(path, str) or not path:
        raise _refused("must be the path of an iCalendar file", field="ics", value=show(path), code="wrong-type")
    file = folder / path
    return list(days_of_file(read_bytes(file, MAX_BYTES), str(file), first, last))


def _days_of_country(written: Mapping[str, Any], folder: Path, first: date, last: date) -> Iterable[date]:
    import holidays  # noqa: PLC0415 - only job files with such calendars need it

    _ = folder
    country, subdivision = written["country"], written.get("subdivision")
    supported = holidays.list_supported_countries(include_aliases=True)
    if country not in supported:
        reason = "the package `holidays` does not have it: write an ISO 3166 code such as CZ or US"
        raise _refused(reason, field="country", value=show(country), code="unknown-choice")
    if subdivision is not None and subdivision not in supported[country]:
        reason = f"it is no part of {country} with holidays of its own: {', '.join(supported[country]) or 'the package has no parts of it'}"
        raise _refused(reason, field="subdivision", value=show(subdivision), code="unknown-choice")
    years = range(first.year, last.year + 1)
    return [day for day in holidays.country_holidays(country, subdiv=subdivision, years=years) if first <= day <= last]


def _refused(
    reason: str, *, field: str = "", value: str | None = None, unknown: bool = False, code: str = "invalid-value"
) -> DefinitionError:
    return DefinitionError(DefinitionProblem(reason, field=field, value=value, unknown=unknown, code=code))
