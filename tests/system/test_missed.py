"""The only ticker is killed: the missed span is announced once, and the log explains it."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.system.processes import site
from tests.system.running import event
from tocsin.domain.events import CronMissed, Due, Passed
from tocsin.services.explain import ExplainReader
from tocsin.subjects import TICKER_LEASE

JOB: dict[str, Any] = {
    "name": "tick",
    "schedule": "* * * * * *",
    "function": "work",
    "overlap_policy": "allow",
    "catch_up": "skip",
}


async def test_occurrences_missed_by_a_killed_ticker_are_explained(nats_url: str, tmp_path: Path) -> None:
    async with site(nats_url, tmp_path) as tocsin:
        ticker = tocsin.start("ticker")
        tocsin.start("planner", "dag_advancer", "retrier", "dead_letter_sink", "registrar", "lock_keeper", "matcher")
        tocsin.start_worker()
        await tocsin.ready()
        await tocsin.apply(JOB)
        public_event = await tocsin.public(f"{tocsin.settings.public_prefix}.missed.>")
        await tocsin.until(lambda: tocsin.facts("ledger.tick.due", Due))
        ticker.kill()
        killed = tocsin.installation.clock.now()
        await tocsin.passes(seconds=5)
        ticker.start()

        in_between = killed + timedelta(seconds=2)

        async def span() -> Passed | None:
            passed = [one.message for one in await tocsin.facts("ledger.tick.passed", Passed)]
            return next((one for one in passed if one.start < in_between <= one.until), None)

        missed = await tocsin.until(span)
        assert missed is not None
        while (heard := (await event(public_event))["data"])["until"] != missed.until.isoformat().replace(
            "+00:00", "Z"
        ):
            pass  # a busy machine may have missed some before
        assert (heard["reason"], heard["count"]) == ("missed", missed.count)
        asking = ExplainReader(tocsin.log, tocsin.installation.stored)
        [answer] = await asking.why("tick", in_between.replace(microsecond=0))
        assert (answer.verdict, answer.count) == ("missed", missed.count)
        gap = answer.gap
        assert gap is not None
        assert gap.start is not None
        assert gap.end is not None
        assert gap.start < answer.at < gap.end
        assert gap.start <= killed + timedelta(seconds=1)
        assert gap.before != gap.after

        [fired] = await asking.why("tick", (await tocsin.facts("ledger.tick.due", Due))[0].message.scheduled_time)
        assert fired.verdict == "fired"
        assert len(await tocsin.log.leaders(TICKER_LEASE)) >= 2

        await tocsin.delete("tick")
        everything = await tocsin.checked()
    unforeseen = [one for one in everything.facts(Passed) if one.message.reason == "missed"]
    assert len(everything.facts(CronMissed)) == len(unforeseen)
