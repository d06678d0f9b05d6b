"""What a check says."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pydantic import JsonValue


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


_ORDER: Final = (Level.OK, Level.WARN, Level.BAD)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `code` is stable: alerts and scripts may rely on it."""

    code: str
    level: Level
    what: str
    """What was seen."""
    means: str = ""
    """What follows from it."""
    do: str = ""
    """What helps."""
    details: dict[str, JsonValue] = field(default_factory=dict)


def ok(code: str, what: str, **details: JsonValue) -> Finding:
    """All is well."""
    return Finding(code, Level.OK, what, details=details)


def warn(code: str, what: str, *, means: str, do: str, **details: JsonValue) -> Finding:
    """It works, and will not for long, or not in every case."""
    return Finding(code, Level.WARN, what, means, do, details)


def bad(code: str, what: str, *, means: str, do: str, **details: JsonValue) -> Finding:
    """Jobs do not run as they should, or might be lost."""
    return Finding(code, Level.BAD, what, means, do, details)


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level of all."""
    return max((finding.level for finding in findings), key=_ORDER.index, default=Level.OK)
