"""Play many schedules, or repeat one (`python -m tests.simulation --help`).

The exit code is 1 if an invariant is violated.
"""

import argparse
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import get_args

from .focus import seeds_from
from .mutations import CAUGHT_BY_TESTS, MUTATIONS, judged_by_focus
from .simulation import Engine, Result, play, play_lightly


def main() -> int:
    """Play what the command line says."""
    options = _options()
    if options.seed is not None:
        return _show(play(options.seed, options.engine), trace=options.trace, only=re.compile(options.only))
    if options.mutations:
        return _mutations(options.first, options.seeds, options.jobs, options.only)
    return _many(seeds_from(options.first, options.seeds), options.jobs, options.engine)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many schedules to play")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes play them")
    parser.add_argument("--mutations", action="store_true", help="what each bug of the table costs until it is caught")
    parser.add_argument(
        "--engine",
        choices=get_args(Engine),
        help="processes with all stages, with one each, or with random stages; each seed has its own without it",
    )
    parser.add_argument("--seed", type=int, help="play this one only")
    parser.add_argument("--trace", action="store_true", help="tell all that happened in it")
    parser.add_argument(
        "--only", default="", help="of a trace, the lines in which this pattern is found; of the mutations, their names"
    )
    return parser.parse_args()


def _many(seeds: Sequence[int], jobs: int, engine: Engine | None) -> int:
    begun, failed, facts = time.perf_counter(), 0, 0
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for result in pool.imap_unordered(partial(play_lightly, engine=engine), seeds, chunksize=5):
            facts += result.facts
            if result.violations:
                failed += 1
                print(told(result), flush=True)
    took = time.perf_counter() - begun
    rate = 60 * len(seeds) / took
    print(f"{len(seeds):,} schedules, {facts:,} facts, {took:,.0f} s ({rate:,.0f} a minute): {failed} with violations")
    return 1 if failed else 0


def _mutations(first: int, count: int, jobs: int, only: str) -> int:
    names = [one.name for one in MUTATIONS if re.search(only, one.name) and one.name not in CAUGHT_BY_TESTS]
    begun, uncaught = time.perf_counter(), 0
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for verdict in pool.imap_unordered(partial(judged_by_focus, first=first, number=count), names):
            uncaught += verdict.violation is None
            after = f"{verdict.schedules:>6,}" if verdict.violation else "  none"
            print(f"{verdict.name:<64} {after}  {verdict.violation or 'not caught'}"[:150], flush=True)
    took = time.perf_counter() - begun
    print(f"{len(names)} bugs, {took:,.0f} s: {uncaught} of them not caught by {count:,} schedules")
    return 1 if uncaught else 0


def _show(result: Result, *, trace: bool, only: re.Pattern[str]) -> int:
    if trace:
        print("\n".join(line for line in str(result.trace).splitlines() if only.search(line)))
    print(told(result))
    return 1 if result.violations else 0


def told(result: Result) -> str:
    """A result in words, with the command that plays it again."""
    if not result.violations:
        return f"seed {result.seed}: {result.facts} facts in {result.seconds:.0f} s, all well (trace {result.digest})"
    again = f"python -m tests.simulation --engine {result.engine} --seed {result.seed} --trace"
    return "\n  ".join((f"seed {result.seed}: {again}", *result.violations))


if __name__ == "__main__":
    sys.exit(main())
