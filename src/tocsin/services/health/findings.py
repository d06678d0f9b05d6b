"""The result of a check, and what every check is given."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from ...domain.job_record import Registration
from ...engine.fold import Fold
from ...ports import LogUnavailable
from ...ports.server_inspection import MonitorReport
from .status import HealthTarget, Status, registrations_of

MAX_EXAMPLES: Final = 5


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check. `code` is stable: alerts and scripts may rely on it."""

    code: str
    level: Level
    what: str
    """The observation."""
    means: str = ""
    """The consequence."""
    do: str = ""
    """The remedy."""
    details: dict[str, JsonValue] = field(default_factory=dict)


def ok(code: str, what: str, **details: JsonValue) -> Finding:
    return Finding(code, Level.OK, what, details=details)


def warn(code: str, what: str, *, means: str, do: str, **details: JsonValue) -> Finding:
    """Return a finding of something that works now but may fail."""
    return Finding(code, Level.WARN, what, means, do, details)


def bad(code: str, what: str, *, means: str, do: str, **details: JsonValue) -> Finding:
    """Return a finding of jobs that fail to run, or may be lost."""
    return Finding(code, Level.BAD, what, means, do, details)


def worst(findings: Iterable[Finding]) -> Level:
    return max((finding.level for finding in findings), key=[*Level].index, default=Level.OK)


@dataclass(slots=True)
class CheckContext:
    """The installation that a check examines, and its status."""

    target: HealthTarget
    status: Status
    now: datetime
    """By the log's clock, or by this machine's if the log does not answer."""
    monitors: dict[str, MonitorReport | None] = field(default_factory=dict)
    """Reports by the URL of each monitoring endpoint; None: it did not answer."""
    _fold: Fold | LogUnavailable | None = None
    _registrations: list[Registration] | None = None
    """All jobs; None: no check has read them yet."""

    async def registrations(self) -> Sequence[Registration]:
        """Return all jobs, which several checks examine; they are read once."""
        if self._registrations is None:
            self._registrations = await registrations_of(self.target)
        return self._registrations

    async def fold(self) -> Fold:
        """Return the states of all events, which several checks examine."""
        if self._fold is None:
            try:
                self._fold = await self.target.load_fold()
            except LogUnavailable as error:
                self._fold = error  # a check waits no longer than the check before
        if isinstance(self._fold, LogUnavailable):
            raise self._fold
        return self._fold

    def age(self, at: datetime) -> timedelta:
        """Return the time since an instant, by the log's clock."""
        return self.now - at


@dataclass(frozen=True, slots=True)
class OverdueKind:
    """Things whose time is over: the finding to report if there are any."""

    code: str
    text: str
    """Sentence after the number of things, without the examples."""
    means: str
    do: str
    details: str
    """Name of the field of the details that lists examples."""
    all_well: str = ""
    """Text of the finding if there are none; empty: no finding."""
    level: Level = Level.BAD

    def report(self, names: Sequence[str]) -> list[Finding]:
        if not names:
            return [ok(self.code, self.all_well)] if self.all_well else []
        remainder = f" and {len(names) - MAX_EXAMPLES} more" if len(names) > MAX_EXAMPLES else ""
        text = f"{len(names)} {self.text}: {', '.join(names[:MAX_EXAMPLES])}{remainder}"
        details: dict[str, JsonValue] = {self.details: list(names[:MAX_EXAMPLES])}
        return [Finding(self.code, self.level, text, self.means, self.do, details)]
