"""The options that commands share, and values of options: instants, durations, rates, JSON and confirmations."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, overload

import typer
from pydantic import JsonValue

from ...domain import duration
from ...domain.definition import show
from ...domain.schedule import timezones
from ..output.format import is_interactive
from ..runtime.errors import Exit, UsageError

JobName: TypeAlias = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
Reason: TypeAlias = Annotated[str | None, typer.Option(help="Reason, recorded in the event.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Changes: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Print the changes without making them.")]
Out: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", metavar="FILE", help="Destination; by default standard output. For -o, with a dot or a slash."
    ),
]

FORMS = "an ISO date and time such as 2026-11-20T09:00 (on this machine's clock) or 2026-11-20T09:00Z, or how long ago: 90m, 2d"


@overload
def instant(written: str, option: str, *, now: datetime, timezone: str | None = None) -> datetime: ...
@overload
def instant(written: str | None, option: str, *, now: datetime, timezone: str | None = None) -> datetime | None: ...
def instant(written: str | None, option: str, *, now: datetime, timezone: str | None = None) -> datetime | None:
    """Return the instant (UTC) of an option, or None without the option.

    A time without an offset is in `timezone`, or in the local time zone.
    """
    if written is None or written == "now":
        return None if written is None else now
    try:
        return now - timedelta(seconds=duration.parse(written))
    except duration.DurationError:
        pass
    try:
        at = datetime.fromisoformat(written)
        return (at if at.tzinfo or timezone is None else at.replace(tzinfo=timezones.zone(timezone).data)).astimezone(
            UTC
        )
    except (ValueError, OverflowError):
        raise UsageError(f"{option} is {written!r}: write {FORMS}", code="invalid-time") from None


def length(written: str, option: str) -> timedelta:
    """Return the duration that an option holds."""
    try:
        return timedelta(seconds=duration.parse(written))
    except duration.DurationError as error:
        raise UsageError(f"{option} is {written!r}: {error}", code=error.code) from None


_PERIODS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0}
MAX_RATE: Final = 10_000.0
"""The largest rate per second that a client can reach."""


def rate(written: str, option: str) -> float:
    """Return a rate per second: `10/s`, `100/m`, `20/h`, or a plain number."""
    number, _, period = written.partition("/")
    try:
        often = float(number) / _PERIODS[period or "s"]
    except (ValueError, KeyError):
        often = 0.0
    if not 0 < often <= MAX_RATE:
        raise UsageError(f"{option} is {written!r}: write 10/s, 100/m or 20/h", code="invalid-rate")
    return often


def json_of(option: str, given: str | None, kind: type) -> Any:  # noqa: ANN401 - the caller names the type
    """Return the JSON object or list of an option, or None without the option."""
    if given is None:
        return None
    shape = "an object, as in '{\"key\": 1}'" if kind is dict else "a list, as in '[1, 2]'"
    source, text = (f"{option} {given}", _content(option, given)) if given.startswith("@") else (option, given)
    try:
        value: JsonValue = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UsageError(
            f"{source} is {show(text)}: not JSON ({error.msg.lower()}, {place}); write {shape}", code="invalid-json"
        ) from None
    if not isinstance(value, kind):
        raise UsageError(f"{source} is {show(value)}: write {shape}", code="invalid-json")
    return value


def _content(option: str, given: str) -> str:
    file = Path(given[1:])
    try:
        return file.read_text("utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{option} names {file}: {reason}; check the path", code="unreadable-file") from None
    except UnicodeDecodeError:
        raise UsageError(
            f"{option} names {file}: its text is not UTF-8; convert the file", code="unreadable-file"
        ) from None


def check(question: str, *, yes: bool) -> None:
    """Make sure that the user can answer a question."""
    if not yes and not is_interactive():
        raise UsageError(f"{question} stdin is not a terminal; pass --yes to confirm", code="confirmation-required")


def confirm(question: str, *, yes: bool, otherwise: str) -> None:
    """Ask the user to confirm, unless the call has `--yes`."""
    check(question, yes=yes)
    if not yes and not typer.confirm(question):
        raise UsageError(otherwise, Exit.NO, code="declined")
