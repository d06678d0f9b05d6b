"""Time per occurrence: the calendar beside croniter and cronsim, in the same run.

    python -m benchmarks.calendar_engines [--rounds 5]

Every engine walks from the same moment through the same number of occurrences. The engines take turns, so that other load
affects all of them, and the fastest round of each counts. The ratios hold from machine to machine. A star marks a ratio whose
two engines name different occurrences, because the peer follows other rules.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from time import perf_counter
from zoneinfo import ZoneInfo

from croniter import croniter
from cronsim import CronSim

from tocsin.domain.schedule import parse

START = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
ORDINARY = ("* * * * *", "*/15 * * * *", "0 9 * * 1-5", "30 2 * * *", "0 0 1 * *", "5,35 8-18/2 * * MON,WED")
HARD = ("0 0 29 2 *", "0 0 29 2 1", "0 0 13 * 5", "0 0 L 2 *", "0 0 * 2 6#5")
SECONDS_PER_MICROSECOND = 1e-6

Walk = Callable[[str, str], Iterator[datetime]]


def tocsin(expression: str, timezone: str) -> Iterator[datetime]:
    """Return the occurrences after START."""
    schedule = parse(expression, timezone)
    at = schedule.next_after(START, anchor=START)
    while at is not None:
        yield at
        at = schedule.next_after(at, anchor=START)


def by_croniter(expression: str, timezone: str) -> Iterator[datetime]:
    """Return the same from croniter, on aware datetimes as its users write it."""
    walk = croniter(expression, START.astimezone(ZoneInfo(timezone)), datetime, max_years_between_matches=100)
    while True:
        yield walk.get_next()


def by_cronsim(expression: str, timezone: str) -> Iterator[datetime]:
    """Return the same from cronsim."""
    return CronSim(expression, START.astimezone(ZoneInfo(timezone)))


@dataclass(frozen=True)
class Result:
    """The result of one engine in one case: seconds per occurrence, and the occurrences."""

    seconds: float
    instants: list[datetime]


def measure(walk: Walk, expression: str, timezone: str, n: int) -> Result:
    """Time one round: `n` occurrences after the first, which includes the parsing."""
    instants = walk(expression, timezone)
    found = [next(instants)]
    begin = perf_counter()
    found += islice(instants, n)
    return Result((perf_counter() - begin) / n, [at.astimezone(UTC) for at in found])


def best(expression: str, timezone: str, n: int, rounds: int) -> list[Result]:
    """Return the fastest round of each engine; their rounds alternate."""
    engines: tuple[Walk, ...] = (tocsin, by_croniter, by_cronsim)
    results = [[measure(walk, expression, timezone, n) for walk in engines] for _ in range(rounds)]
    return [min(column, key=lambda result: result.seconds) for column in zip(*results, strict=True)]


def parsing(rounds: int, n: int = 300) -> list[float]:
    """Return the seconds that each engine takes to parse an expression for the first time."""
    expressions = [f"{k % 60} {k % 24} {k % 28 + 1} * {k % 7}" for k in range(n)]
    readers: tuple[Callable[[str], object], ...] = (parse, croniter, lambda text: CronSim(text, START))
    times: list[list[float]] = [[] for _ in readers]
    for turn in range(rounds):
        for column, read in zip(times, readers, strict=True):
            # Blanks tell the texts of the rounds apart, so that none is remembered from an earlier one.
            texts = [text + " " * (turn + 1) for text in expressions]
            begin = perf_counter()
            for text in texts:
                read(text)
            column.append((perf_counter() - begin) / n)
    return [min(column) for column in times]


def ratio(ours: Result, theirs: Result) -> str:
    """Return the time of the peer as a multiple of ours."""
    star = "" if theirs.instants == ours.instants else "*"
    return f"{theirs.seconds / ours.seconds:8.1f}×{star:1}"


def main() -> None:
    """Print one line for each case."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--rounds", type=int, default=5, help="rounds of which the fastest counts (default: 5)")
    rounds = options.parse_args().rounds
    print(f"{'next':28} {'zone':18} {'tocsin':>10} {'croniter':>10} {'cronsim':>10}")
    cases = [(text, zone, 300) for zone in ("UTC", "America/New_York") for text in ORDINARY]
    cases += [(text, "UTC", 50) for text in HARD]
    for text, zone, n in cases:
        ours, *others = best(text, zone, n, rounds)
        ratios = " ".join(ratio(ours, theirs) for theirs in others)
        print(f"{text:28} {zone:18} {ours.seconds / SECONDS_PER_MICROSECOND:7.1f} µs {ratios}")
    ours_alone, *peers = parsing(rounds)
    ratios = " ".join(f"{theirs / ours_alone:8.1f}× " for theirs in peers)
    print(f"{'reading an expression':28} {'':18} {ours_alone / SECONDS_PER_MICROSECOND:7.1f} µs {ratios}")


if __name__ == "__main__":
    main()
