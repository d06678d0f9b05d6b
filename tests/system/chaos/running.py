"""One run of it, from the first process to the verdict."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from tests.system.chaos.api_viewers import ApiViewers
from tests.system.chaos.attack import Attack
from tests.system.chaos.installations import SERVERS, installed
from tests.system.chaos.load import Load
from tests.system.chaos.outcome import Outcome, judged
from tests.system.chaos.plan import plan
from tests.system.chaos.strikes import Fleet

RATE: Final = 8.0
"""Triggers a second, beside what the schedules fire."""
PATIENCE: Final = 240.0
"""Seconds for all that is left to be done when the last strike is over."""


async def chaos(
    folder: Path,
    *,
    seconds: float,
    seed: int,
    separate: bool = False,
    rate: float = RATE,
    servers: int = SERVERS[-1],
    attack: bool = False,
    tell: Callable[[str], None],
) -> Outcome:
    """Strike for about so many seconds, then wait until all is done, and judge."""
    async with installed(folder, servers, accounts=attack) as (tocsin, cluster):
        tocsin.patience = PATIENCE
        viewers = await ApiViewers.of(tocsin) if attack else None
        fleet = Fleet(tocsin, cluster, separate=separate, port=viewers.port if viewers else None)
        strikes = plan(seed, seconds, fleet.names)
        tell("\n".join((f"seed {seed}, {len(strikes)} strikes:", *map(str, strikes), "")))
        await tocsin.ready()
        load, begun = Load(tocsin, rate), time.monotonic()
        attackers = Attack(tocsin, load, folder, viewers) if viewers else None
        async with load.running(), attackers.running() if attackers else nullcontext():
            await fleet.strike(strikes, lambda text: tell(f"{time.monotonic() - begun:6.1f} s  {text}"))
        tell(f"{time.monotonic() - begun:6.1f} s  what is left is finished")
        deaths = fleet.deaths()
        outcome = await judged(tocsin, triggers=load.triggers, struck=fleet.struck, attack=attackers)
        outcome.wrong += [f"{name} ended by itself:\n{said}" for name, said in deaths.items()]
        outcome.figures = {"seed": seed, "seconds": round(time.monotonic() - begun), **outcome.figures}
        return outcome
