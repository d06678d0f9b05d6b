"""Compare the log with its replay for many random histories: `python -m tests.services.what_if FIRST LAST`."""

import asyncio
import sys
from random import Random

import structlog

from tests.services.what_if.history import History
from tests.services.what_if.test_unchanged import comparable, sides


async def differs(seed: int, *, given: bool) -> bool:
    history = History(Random(seed), edits=not given)
    await history.record()
    before, after = await sides(history, Random(seed).choice((0.0, 1.0, 2.5)), given=given)
    return any(comparable(after[job]) != comparable(side) for job, side in before.items())


def main(first: int, last: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    failed = [
        (seed, given)
        for seed in range(first, last)
        for given in (False, True)
        if asyncio.run(differs(seed, given=given))
    ]
    print(f"{2 * (last - first)} histories, {len(failed)} differ: {failed}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
