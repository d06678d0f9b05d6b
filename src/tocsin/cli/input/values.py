"""Instants as people write them on a command line."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, overload
from zoneinfo import ZoneInfo

import typer
from pydantic import JsonValue

from ...domain import duration
from ...domain.definition import show
from ..output.format import is_interactive
from ..runtime.errors import Exit, UsageError

FORMS = "an ISO date and time such as 2026-11-20T09:00 (on this machine's clock) or 2026-11-20T09:00Z, or how long ago: 90m, 2d"


@overload
def instant(written: None, option: str, *, now: datetime, timezone: str | None = None) -> None: ...
@overload
def instant(written: str, option: str, *, now: datetime, timezone: str | None = None) -> datetime: ...
@overload
def instant(written: str | None, option: str, *, now: datetime, timezone: str | None = None) -> datetime | None: ...
def instant(written: str | None, option: str, *, now: datetime, timezone: str | None = None) -> datetime | None:
    """The instant (UTC) that an option was given; None: it was not.

    Without an offset it is on the wall clock of `timezone`, or of this machine.

    Raises:
        UsageError: neither an instant nor a length of time.
    """
    if written is None or written == "now":
        return None if written is None else now
    try:
        return now - timedelta(seconds=duration.parse(written))
    except duration.DurationError:
        pass
    try:
        at = datetime.fromisoformat(written)
        return (at if at.tzinfo or timezone is None else at.replace(tzinfo=ZoneInfo(timezone))).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(f"{option} is {written!r}: write {FORMS}", code="invalid-time") from None


def length(written: str, option: str) -> timedelta:
    """The length of time that an option was given.

    Raises:
        UsageError: it is none.
    """
    try:
        return timedelta(seconds=duration.parse(written))
    except duration.DurationError as error:
        raise UsageError(f"{option} is {written!r}: {error}") from None


_PERIODS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0}
MOST: Final = 10_000.0
"""More a second than one client can ask for."""


def rate(written: str, option: str) -> float:
    """How often a second: `10/s`, `100/m`, `20/h`, or a number of times a second.

    Raises:
        UsageError: it is none of these.
    """
    number, _, period = written.partition("/")
    try:
        often = float(number) / _PERIODS[period or "s"]
    except (ValueError, KeyError):
        often = 0.0
    if not 0 < often <= MOST:
        raise UsageError(f"{option} is {written!r}: write 10/s, 100/m or 20/h", code="invalid-rate")
    return often


def json_of(option: str, given: str | None, kind: type) -> Any:  # noqa: ANN401 - of the kind that was asked for
    """A JSON object or list, or None where nothing was given.

    Raises:
        UsageError: it is not JSON, or not of that kind, or the file cannot be read.
    """
    if given is None:
        return None
    wanted = "an object, as in '{\"key\": 1}'" if kind is dict else "a list, as in '[1, 2]'"
    source, text = (f"{option} {given}", _content(option, given)) if given.startswith("@") else (option, given)
    try:
        value: JsonValue = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{source} is {show(text)}: not JSON ({error.msg.lower()}, {place}); write {wanted}") from None
    if not isinstance(value, kind):
        raise UsageError(f"{source} is {show(value)}: write {wanted}")
    return value


def _content(option: str, given: str) -> str:
    file = Path(given[1:])
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{option} names {file}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{option} names {file}: its text is not UTF-8") from None


def check(question: str, *, yes: bool) -> None:
    """Make sure that somebody can answer.

    Raises:
        UsageError: nobody is there to be asked, and nobody said `--yes`.
    """
    if not yes and not is_interactive():
        raise UsageError(f"{question} stdin is not a terminal; pass --yes to confirm", code="confirmation-required")


def confirm(question: str, *, yes: bool, otherwise: str) -> None:
    """Ask, unless the answer was given with `--yes`.

    Raises:
        UsageError: the answer is no, and `otherwise` says what that means; or nobody is there to be asked.
    """
    check(question, yes=yes)
    if not yes and not typer.confirm(question):
        raise UsageError(otherwise, Exit.NO, code="declined")
