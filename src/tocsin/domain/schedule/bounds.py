"""The first and the last moment of a schedule."""

import re
from datetime import datetime
from typing import Final

from .clock_changes import parse_moment
from .errors import ScheduleError, placed
from .instants import DstPolicy

_BOUND: Final = re.compile(r"\s+(from|until)\s+(?=\d{4}-\d)", re.IGNORECASE | re.ASCII)
_EXAMPLE: Final = "every 5 minutes from 2027-03-01T09:00 until 2027-04-01T00:00"


def without_bounds(text: str) -> str:
    """Return the text of a schedule without its bounds."""
    first = _BOUND.search(text)
    return text if first is None else text[: first.start()]


def bounds_of(text: str, timezone: str, dst: DstPolicy) -> tuple[datetime | None, datetime | None]:
    """Return the moments (UTC) between which a text fires, both included; None: no limit.

    Raises:
        ScheduleError: a moment cannot be read, or the bounds are not in order.
    """
    words = list(_BOUND.finditer(text))
    if not words:
        return None, None
    if [word[1].lower() for word in words] not in (["from", "until"], ["from"], ["until"]):
        raise ScheduleError(
            "expression: a schedule has at most one `from`, and then at most one `until`",
            text=text,
            start=words[-1].start(1),
            length=len(words[-1][1]),
            suggestion=_EXAMPLE,
            code="invalid-instant",
        )
    moments: dict[str, datetime] = {}
    for word, end in zip(words, [*(word.start() for word in words[1:]), len(text)], strict=True):
        with placed(text, word.end()):
            moments[word[1].lower()] = parse_moment(text[word.end() : end].rstrip(), timezone, dst)
    starts_at, ends_at = moments.get("from"), moments.get("until")
    if starts_at is not None and ends_at is not None and ends_at < starts_at:
        raise ScheduleError(
            "expression: it ends before it starts",
            text=text,
            start=words[-1].start(1),
            length=len(text) - words[-1].start(1),
            suggestion=_EXAMPLE,
            code="never-fires",
        )
    return starts_at, ends_at


def place_of_end(text: str) -> tuple[int, int]:
    """Return the position and the length of the `until` with which a text ends."""
    *_, word = _BOUND.finditer(text)
    return word.start(1), len(text.rstrip()) - word.start(1)
