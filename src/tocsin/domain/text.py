"""Texts for people: words for values, and foreign text made safe for a terminal."""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final

_EXCERPT: Final = 96


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, or its `plural`: `1 job`, `1,200 jobs`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def utc_text(at: datetime, timespec: str = "auto") -> str:
    """Return an instant (aware) in UTC as RFC 3339: `2026-02-12T14:00:00Z`."""
    return at.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def added_and_removed(before: Iterable[str], after: Iterable[str]) -> str | None:
    """Return the elements that a list gained (`+a`) and lost (`-b`), if any."""
    old, new = list(before), list(after)
    changes = [f"+{element}" for element in dict.fromkeys(new) if new.count(element) > old.count(element)]
    changes += [f"-{element}" for element in dict.fromkeys(old) if old.count(element) > new.count(element)]
    return ", ".join(changes) or None


def cut(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def excerpt(text: str, at: int) -> tuple[str, int]:
    """Return the text around a position, in one line, and the position there.

    A caret below it is at its position in any text: each character takes one column.
    """
    begin = max(0, at - _EXCERPT // 2) if len(text) > _EXCERPT else 0
    window = text[begin : begin + _EXCERPT]
    return "".join(char if char.isprintable() else " " for char in window), at - begin


def printable(text: str) -> str:
    r"""Return a text with an escape for each character that does not print.

    Such characters move the cursor, change the terminal's state, or reverse the order of the text: those of control
    sequences (`\x1b`), of the writing direction (`\u202e`), and line breaks. Other kinds of blanks become blanks.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def printable_lines(text: str) -> str:
    """Return a text as `printable` does, but keep its line breaks."""
    if text.isprintable():
        return text
    return "\n".join(map(printable, text.split("\n")))


def _escaped(char: str) -> str:
    if char == "\t":
        return "    "
    return " " if char.isspace() and char > "\x7f" else char.encode("unicode_escape").decode("ascii")


def matches(text: str, pattern: str) -> bool:
    """Match a pattern in which only `*` has a meaning: any characters."""
    return fnmatchcase(text, pattern.replace("[", "[[]").replace("?", "[?]"))


MAX_TEXT: Final = 300
"""Characters of an error that make its pattern."""
_VARIABLE: Final = re.compile(
    r"(?P<id>\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b)"
    r"|(?P<hex>\b0x[0-9a-f]+\b|\b(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{6,}\b)"
    r"|(?P<number>[0-9]+(?:[.,:][0-9]+)*)",
    re.IGNORECASE | re.ASCII,
)
_PLACEHOLDERS: Final = {"id": "<id>", "hex": "<hex>", "number": "<n>"}


def error_pattern(error: str) -> str:
    """Return an error's first line, with placeholders for numbers, ids and hexadecimal texts."""
    line = error[:MAX_TEXT].partition("\n")[0].rstrip()
    return _VARIABLE.sub(lambda match: _PLACEHOLDERS[match.lastgroup or ""], line)


def same_text(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return a text that only equal JSON values share.

    Names have no order, and 1 and 1.0 are one number. For Python, true would be that number too.
    """
    return json.dumps(_comparable(value), sort_keys=True)


def _comparable(value: Any) -> Any:  # noqa: ANN401
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_comparable(item) for item in value]
        case Mapping():
            return {name: _comparable(item) for name, item in value.items()}
        case _:
            return value
