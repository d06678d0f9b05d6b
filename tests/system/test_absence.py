"""All tickers are away while jobs are edited, paused, resumed and deleted.

Afterwards no past instant fires except by the catch-up policy, and the ledger records the decision on each.
"""

import signal
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.system.processes import STAGES_WITHOUT_CLOCK, Site, site
from tocsin.domain import ledger
from tocsin.domain.events import Due, Passed
from tocsin.domain.ledger import PUNCTUALITY

EVERY_SECOND: Final = "* * * * * *"
EVERY_OTHER: Final = "*/2 * * * * *"
EVERY_THIRD: Final = "*/3 * * * * *"


def job(name: str, schedule: str = EVERY_SECOND, **fields: object) -> dict[str, Any]:
    return {"name": name, "schedule": schedule, "function": "work", "overlap_policy": "allow", **fields}


JOBS: Final = [
    job("steady"),
    job("rare", EVERY_THIRD),
    job("skipping", EVERY_THIRD, catch_up="skip"),
    job("catching", EVERY_THIRD, catch_up="all"),
    job("edited"),
    job("deployed", EVERY_THIRD),
    job("resumed"),
    job("paused"),
    job("deleted"),
]


async def test_absence_of_all_tickers_leaves_no_gap(nats_url: str, tmp_path: Path) -> None:
    async with site(nats_url, tmp_path) as tocsin:
        stopped, killed = tocsin.start("ticker"), tocsin.start("ticker")
        tocsin.start(*STAGES_WITHOUT_CLOCK)
        tocsin.start_worker()
        await tocsin.ready()
        await tocsin.apply(*JOBS)
        await fired_since(tocsin, names(JOBS))

        stopped.send(signal.SIGSTOP)
        killed.kill()
        away = tocsin.installation.clock.now()
        changed = await jobs_change(tocsin)
        back = await tocsin.passes(seconds=3)
        stopped.send(signal.SIGCONT)
        killed.start()
        await fired_since(tocsin, names(JOBS) - {"paused", "deleted"}, back)
        await tocsin.delete(*(names(JOBS) - {"deleted"}))

        everything = await tocsin.checked()

    dues = everything.facts(Due)
    late = [due for due in dues if due.time > back and due.message.scheduled_time < back - PUNCTUALITY]
    assert all(due.message.catch_up for due in late)
    caught_up = {name: [due.message for due in late if due.message.job == name] for name in names(JOBS)}
    assert {name for name, facts in caught_up.items() if facts} <= {"rare", "catching", "edited", "deployed"}
    assert all(len(facts) <= 1 for name, facts in caught_up.items() if name != "catching")
    assert thirds(away, back - PUNCTUALITY) <= {due.scheduled_time for due in caught_up["catching"]}
    assert all(due.scheduled_time > changed for due in caught_up["edited"])
    passed = [recorded.message for recorded in everything.facts(Passed) if recorded.time > back]
    assert {name: {fact.reason for fact in passed if fact.job == name} for name in names(JOBS)} == {
        "steady": {"missed"},
        "rare": {"missed"},
        "skipping": {"missed"},
        "catching": set(),
        "edited": {"superseded", "missed"},
        "deployed": {"missed"},
        "resumed": {"missed", "paused"},
        "paused": {"superseded", "paused"},
        "deleted": {"superseded"},
    }


def names(jobs: Iterable[dict[str, Any]]) -> set[str]:
    return {definition["name"] for definition in jobs}


def thirds(begin: datetime, end: datetime) -> set[datetime]:
    """Return the instants that `EVERY_THIRD` names between two times."""
    whole = begin.replace(microsecond=0)
    seconds = (whole + timedelta(seconds=n) for n in range(1, int((end - whole).total_seconds()) + 1))
    return {second for second in seconds if second.second % 3 == 0 and second < end}


async def fired_since(tocsin: Site, jobs: set[str], begin: datetime | None = None) -> None:
    """Wait until each of these jobs has fired, for an instant after `begin`."""

    async def have() -> bool:
        fired = [recorded.message for recorded in await tocsin.facts("ledger.>", Due)]
        return jobs <= {due.job for due in fired if begin is None or due.scheduled_time > begin}

    await tocsin.until(have)


async def jobs_change(tocsin: Site) -> datetime:
    """Make every kind of change to a job, each after a moment; return the time of the edit."""
    await tocsin.passes(seconds=1.2)
    await tocsin.change("resumed", partial(ledger.pause, job="resumed"))
    await tocsin.passes(seconds=1.2)
    await tocsin.apply(job("edited", EVERY_OTHER), job("deployed", EVERY_THIRD, input={"version": 2}))
    edited = tocsin.installation.clock.now()
    await tocsin.change("resumed", partial(ledger.resume, job="resumed"))
    await tocsin.change("paused", partial(ledger.pause, job="paused"))
    await tocsin.delete("deleted")
    await tocsin.passes(seconds=1.2)
    return edited
