"""Words for numbers, instants and changes."""

from collections.abc import Iterable
from datetime import UTC, datetime


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: `1 job`, `1,200 jobs`.

    `plural`: the plural of the noun, unless it is the noun with an `s`.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def utc_text(at: datetime, timespec: str = "auto") -> str:
    """Return an instant (aware) in UTC as RFC 3339: `2026-02-12T14:00:00Z`."""
    return at.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def added_and_removed(before: Iterable[str], after: Iterable[str]) -> str | None:
    """Return the elements that a list gained (`+a`) and lost (`-b`).

    None: only their order changed.
    """
    old, new = list(before), list(after)
    changes = [f"+{element}" for element in dict.fromkeys(new) if new.count(element) > old.count(element)]
    changes += [f"-{element}" for element in dict.fromkeys(old) if old.count(element) > new.count(element)]
    return ", ".join(changes) or None
