"""The calendars of an application."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

from ..domain.definition import DefinitionError

Calendars: TypeAlias = Mapping[str, Mapping[str, object]]
"""Calendars with their dates, by name."""

NO_CALENDARS: Final[Calendars] = {}
_SOURCE: Final = "Tocsin(calendars=…)"


def read_calendars(written: Mapping[str, object]) -> Calendars:
    """Return calendars with their dates, which are written as in job files.

    The path of an .ics file may be a `Path`; a relative path is relative to the current folder.

    Raises:
        DefinitionError: lists all problems.
        ExtraNotInstalled: a calendar needs the extra `calendars`.
    """
    from ..adapters.files.calendars import SECTION, CalendarSection  # noqa: PLC0415 - few applications have calendars

    section = CalendarSection(datetime.now(UTC).date())
    section.add({SECTION: {name: _plain(calendar) for name, calendar in written.items()}}, _SOURCE, Path.cwd())
    if section.problems:
        raise DefinitionError(*section.problems)
    return section.calendars


def _plain(calendar: object) -> object:
    """Return a calendar as a parser of files returns it."""
    if isinstance(calendar, Mapping):
        return {key: str(value) if isinstance(value, Path) else value for key, value in calendar.items()}
    return list(calendar) if isinstance(calendar, tuple) else calendar
