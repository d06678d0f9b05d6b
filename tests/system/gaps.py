"""Time without firings, or without starts, around kills, read only from the log.

A job fires every second. Right before a kill, the killer records it in the log by a trigger of a job of its own, whose reason names the
victim. The gap of a kill is the longest time between two firings, by the log's clock, that ends between that kill and the next. Without
a kill it is a second. If the victim is a matcher, the starts of tasks count in place of the firings.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any, Final

from tests.stored_events import StoredEvents
from tocsin.domain.events import Due, Message, Recorded, Requested, Started, Trigger
from tocsin.subjects import job_of

TICK: Final[dict[str, Any]] = {
    "name": "tick",
    "schedule": "* * * * * *",
    "function": "work",
    "overlap_policy": "allow",
    "catch_up": "all",
}
"""The job that fires every second, and once for each second that it could not."""
KILL: Final[dict[str, Any]] = {"name": "kill", "function": "work", "overlap_policy": "allow"}
"""The job that is triggered before each kill."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without a firing, or without a start, in seconds."""

    length: float
    from_kill: float
    """The part of it that is behind the kill."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """The firings around some kills."""

    gaps: tuple[Gap, ...]
    """One for each kill."""
    instants: int
    """How many fired."""
    lost: int
    """How many between the first and the last that fired did not, and how many of their executions did not start."""
    doubled: int
    """How many fired or started twice, or have two executions."""

    def row(self) -> dict[str, Any]:
        """Return all of it in one row; times in seconds."""
        return {
            "kills": len(self.gaps),
            "next_p50": round(median(gap.from_kill for gap in self.gaps), 2),
            "next_max": round(max(gap.from_kill for gap in self.gaps), 2),
            "gap_p50": round(median(gap.length for gap in self.gaps), 2),
            "gap_max": round(max(gap.length for gap in self.gaps), 2),
            "instants": self.instants,
            "lost": self.lost,
            "doubled": self.doubled,
        }


def measured(everything: StoredEvents, victim: str) -> Gaps:
    """The gaps by kind of victim, with fired and missing instants over the whole log."""
    dues = [recorded for recorded in everything.facts(Due) if recorded.message.job == TICK["name"]]
    starts = [recorded for recorded in everything.facts(Started) if recorded.message.job == TICK["name"]]
    measured_events: Sequence[Recorded[Message]] = starts if victim == "matcher" else dues
    kills = [r for r in everything.facts(Trigger) if job_of(r.subject) == KILL["name"]]
    ends = [*(kill.time for kill in kills[1:]), measured_events[-1].time + timedelta(microseconds=1)]
    fired = Counter(due.message.scheduled_time for due in dues)
    executions = Counter(at for at, _ in _executions(everything))
    started = Counter(start.message.execution_id for start in starts)
    named = _seconds(min(fired), max(fired))
    return Gaps(
        gaps=tuple(
            _longest(measured_events, kill.time, end)
            for kill, end in zip(kills, ends, strict=True)
            if kill.message.reason == victim
        ),
        instants=len(fired),
        lost=len(named - fired.keys()) + sum(id_ not in started for _, id_ in _executions(everything) if starts),
        doubled=sum(number > 1 for counted in (fired, executions, started) for number in counted.values()),
    )


def _executions(everything: StoredEvents) -> set[tuple[datetime, str]]:
    """Each execution of an instant, with the instant."""
    asked = (recorded.message for recorded in everything.facts(Requested))
    return {
        (fact.scheduled_time, fact.execution_id)
        for fact in asked
        if fact.job == TICK["name"] and fact.trigger == "cron"
    }


def _longest(events: Sequence[Recorded[Message]], kill: datetime, end: datetime) -> Gap:
    times = [event.time for event in events]
    length, later = max((later - time, later) for time, later in pairwise(times) if kill <= later < end)
    return Gap(round(length.total_seconds(), 3), round((later - kill).total_seconds(), 3))


def _seconds(first: datetime, last: datetime) -> set[datetime]:
    return {first + timedelta(seconds=n) for n in range(int((last - first).total_seconds()) + 1)}
