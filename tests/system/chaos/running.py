"""One run of it, from the first process to the verdict."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.system.chaos.load import Load
from tests.system.chaos.outcome import Outcome, judged
from tests.system.chaos.plan import plan
from tests.system.chaos.strikes import Fleet
from tests.system.clustered import clustered

RATE: Final = 8.0
"""Triggers a second, beside what the schedules fire."""
PATIENCE: Final = 240.0
"""Seconds for all that is left to be done when the last strike is over."""


async def chaos(
    folder: Path, *, seconds: float, seed: int, separate: bool = False, rate: float = RATE, tell: Callable[[str], None]
) -> Outcome:
    """Strike for about so many seconds, then wait until all is done, and judge."""
    async with clustered(folder) as (tocsin, cluster):
        tocsin.patience = PATIENCE
        fleet = Fleet(tocsin, cluster, separate=separate)
        strikes = plan(seed, seconds, fleet.names)
        tell("\n".join((f"seed {seed}, {len(strikes)} strikes:", *map(str, strikes), "")))
        await tocsin.ready()
        load, begun = Load(tocsin, rate), time.monotonic()
        async with load.running():
            await fleet.strike(strikes, lambda text: tell(f"{time.monotonic() - begun:6.1f} s  {text}"))
        tell(f"{time.monotonic() - begun:6.1f} s  what is left is finished")
        deaths = fleet.deaths()
        outcome = await judged(tocsin, triggers=load.triggers, struck=fleet.struck)
        outcome.wrong += [f"{name} ended by itself:\n{said}" for name, said in deaths.items()]
        outcome.figures = {"seed": seed, "seconds": round(time.monotonic() - begun), **outcome.figures}
        return outcome
