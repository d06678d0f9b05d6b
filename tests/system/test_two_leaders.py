"""Tickers that all lead, as after a pause beyond the lease: the log decides."""

from collections import Counter
from pathlib import Path
from typing import Final

from tests.system.processes import STAGES_WITHOUT_CLOCK, site
from tests.system.usurper import REFUSED
from tocsin.domain.events import Due

LEADERS: Final = 2
JOBS: Final = [f"tick-{number}" for number in range(20)]
INSTANTS: Final = 6


async def test_each_occurrence_fires_once_under_any_leader(nats_url: str, tmp_path: Path) -> None:
    async with site(nats_url, tmp_path) as tocsin:
        leaders = [tocsin.start("ticker", module=["tests.system.usurper"]) for _ in range(LEADERS)]
        tocsin.start(*STAGES_WITHOUT_CLOCK)
        tocsin.start_worker()
        await tocsin.ready()
        await tocsin.apply(*({"name": job, "schedule": "* * * * * *", "function": "work"} for job in JOBS))

        async def all_have_fired_under_both() -> bool:
            fired = Counter(recorded.message.job for recorded in await tocsin.facts("ledger.>", Due))
            is_contested = any(REFUSED in leader.said() for leader in leaders)
            return is_contested and min(fired[job] for job in JOBS) >= INSTANTS

        await tocsin.until(all_have_fired_under_both)
        await tocsin.delete(*JOBS)

        everything = await tocsin.checked()

    fired = Counter((due.job, due.scheduled_time) for due in (r.message for r in everything.facts(Due)))
    assert set(fired.values()) == {1}
