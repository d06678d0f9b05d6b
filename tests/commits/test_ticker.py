"""The ticker: each instant ends in one decision, under any leader."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import asdict
from structlog.testing import capture_logs

from tests.commits.processes import NAMES, Runner
from tests.commits.test_memory import Work
from tocsin import subjects
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Actor,
    CronMissed,
    Deleted,
    Dispatched,
    Due,
    Message,
    Passed,
    Shard,
    ShardsDefined,
    unfold,
)
from tocsin.domain.ledger import Ledger
from tocsin.domain.schedule.instants import CalendarRule

MINUTELY = {"schedule": "* * * * *"}


async def stored(work: Work, kind: type[Message]) -> list[Any]:
    events = unfold(await work.installation.events())
    return [recorded.message for recorded in events if isinstance(recorded.message, kind)]


async def fired(work: Work) -> list[object]:
    return [due.scheduled_time for due in await stored(work, Due)]


async def tick(work: Work, seconds: float) -> None:
    """Let time pass, and decide."""
    work.installation.clock.advance(seconds)
    await work.runner.run()


async def state_of(work: Work, job: str) -> Ledger:
    return ledger.fold(
        r for r in await work.installation.events() if subjects.scope_of(r.message) == subjects.ledger(job)
    )


async def edit(work: Work, job: str, **fields: Any) -> None:  # noqa: ANN401 - fields of a definition
    """Change the definition of a job."""
    definition = JobDefinition.model_validate({"name": job, "function": "f", "overlap_policy": "allow", **fields})
    await work.installation.store(*ledger.define(await state_of(work, job), definition))


async def test_occurrence_is_recorded_when_it_is_due() -> None:
    work = Work()
    await work.define("tick", **MINUTELY)
    await tick(work, 30)
    assert await fired(work) == []
    await tick(work, 30)
    assert await fired(work) == [work.installation.clock.now()]
    await tick(work, 1)
    assert len(await fired(work)) == 1


async def test_decisions_stop_while_no_ticker_leads() -> None:
    work = Work(tuple(name for name in NAMES if name != "ticker"))
    await work.define("tick", **MINUTELY)
    await tick(work, 120)
    assert await fired(work) == []


def once(work: Work) -> str:
    """A schedule of one instant, in a minute."""
    return f"at {work.installation.clock.now() + timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}"


async def test_job_scheduled_once_is_preserved() -> None:
    work = Work()
    await work.define("once", schedule=once(work))
    with capture_logs() as lines:
        await tick(work, 60)
        await tick(work, 60)
    assert len(await fired(work)) == 1
    assert (await stored(work, Deleted), [line for line in lines if line["log_level"] == "error"]) == ([], [])


async def test_job_scheduled_once_is_dropped() -> None:
    work = Work()
    await work.define("once", schedule=once(work), on_completion="drop")
    await tick(work, 30)
    assert await stored(work, Deleted) == []
    await tick(work, 30)
    [deleted] = await stored(work, Deleted)
    await tick(work, 60)
    assert len(await fired(work)) == len(await stored(work, Deleted)) == 1
    assert (deleted.job, deleted.by) == ("once", Actor(identity="ticker"))
    assert len(await stored(work, Dispatched)) == 1


async def test_job_whose_schedule_ends_is_dropped() -> None:
    work = Work()
    end = work.installation.clock.now() + timedelta(minutes=2)
    await work.define("once", schedule=f"* * * * * until {end:%Y-%m-%dT%H:%M:%SZ}", on_completion="drop")
    await tick(work, 60)
    assert (len(await fired(work)), await stored(work, Deleted)) == (1, [])
    for _ in range(3):
        await tick(work, 60)
    assert (len(await fired(work)), len(await stored(work, Deleted))) == (2, 1)


async def test_dropped_job_is_deleted_after_crash() -> None:
    work = Work()
    await work.define("once", schedule=once(work), on_completion="drop")
    work.installation.clock.advance(60)
    await work.installation.store(Due(job="once", scheduled_time=work.installation.clock.now(), definition=1))
    await tick(work, 1)
    assert len(await fired(work)) == len(await stored(work, Deleted)) == 1


async def test_dropped_job_that_did_not_fire_stays() -> None:
    work = Work()
    await work.define("once", schedule=once(work), on_completion="drop", catch_up="skip")
    await tick(work, 90)
    await tick(work, 60)
    assert await fired(work) == await stored(work, Deleted) == []
    assert [fact.reason for fact in await stored(work, Passed)] == ["missed"]


async def test_i1_two_tickers_fire_each_occurrence_once() -> None:
    work = Work()
    work.runner = Runner(work.installation, [("ticker",), ("ticker",)])
    await work.define("tick", **MINUTELY)
    for _ in range(5):
        await tick(work, 60)
    times = await fired(work)
    assert len(times) == len(set(times)) == 5


async def test_pause_after_an_instant_does_not_stop_it() -> None:
    work = Work()
    await work.define("tick", **MINUTELY)
    await work.runner.run()
    work.installation.clock.advance(60)
    await work.installation.store(*ledger.pause(await state_of(work, "tick"), "tick"))
    await work.runner.run()
    assert await fired(work) == [work.installation.clock.now()]
    assert await stored(work, Passed) == []


async def test_edit_is_followed() -> None:
    work = Work()
    await work.define("tick", schedule="0 0 1 1 *")
    await tick(work, 1)
    await edit(work, "tick", **MINUTELY)
    await tick(work, 1)
    await tick(work, 60)
    assert len(await fired(work)) == 1


async def test_edit_before_an_instant_does_not_delay_it() -> None:
    """Nothing of the job is decided yet."""
    work = Work()
    await work.define("tick", schedule="0 0 1 1 *")
    await tick(work, 55)
    await edit(work, "tick", **MINUTELY)
    await tick(work, 1)
    await tick(work, 4)
    assert len(await fired(work)) == 1


@pytest.mark.parametrize("timezone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("schedule", ["* * * * *", "0 * * * *"])
async def test_each_firing_searches_the_calendar_once(
    monkeypatch: pytest.MonkeyPatch, schedule: str, timezone: str
) -> None:
    searches = Counter[str]()

    def counted(name: str) -> Callable[..., Any]:
        search = getattr(CalendarRule, name)

        def count(*arguments: Any) -> Any:  # noqa: ANN401 - passed on
            searches[name] += 1
            return search(*arguments)

        return count

    for name in ("next_after", "occurrences"):
        monkeypatch.setattr(CalendarRule, name, counted(name))
    work = Work(("ticker",))
    await work.define("tick", schedule=schedule, timezone=timezone)
    await work.runner.run()
    for _ in range(60):
        await tick(work, 3_600 if schedule.startswith("0") else 60)
    assert len(await fired(work)) == 60
    assert sum(searches.values()) <= 60 + 3


async def test_due_of_a_divided_job_names_the_map() -> None:
    work = Work(("ticker",))
    await work.define("plain", **MINUTELY)
    await work.define("divided", **MINUTELY, partition="all_shards")
    versions = [0]
    for shard_id in ("a", "b"):
        await tick(work, 60)
        await work.installation.store(ShardsDefined(shards=(Shard(shard_id=shard_id),)))
        versions.append((await work.installation.events())[-1].sequence)
    await tick(work, 60)
    dues = await stored(work, Due)
    assert [due.shards for due in dues if due.job == "divided"] == versions
    assert {due.shards for due in dues if due.job == "plain"} == {0}


async def test_absence_fires_one_catch_up() -> None:
    work = Work()
    await work.define("tick", **MINUTELY)
    await tick(work, 600 + 30)
    [due] = await stored(work, Due)
    assert due.catch_up
    assert [(fact.reason, fact.count) for fact in await stored(work, Passed)] == [("missed", 9)]


async def test_catch_up_is_decided_in_parts() -> None:
    work = Work(("ticker",))
    await work.define("behind", schedule="* * * * * *", catch_up="all", catch_up_limit=1000)
    await tick(work, 590)
    times = await fired(work)
    assert len(times) == len(set(times)) == 590
    assert max(len(commit.events) for commit in await work.installation.commits()) <= 4096


async def test_undecidable_job_does_not_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    await work.define("broken", **MINUTELY)
    await work.define("tick", **MINUTELY)
    decide = ledger.decide_instants

    def broken(state: Ledger, *arguments: Any, **options: Any) -> list[Due | Passed]:  # noqa: ANN401 - passed on
        if state.job == "broken":
            raise ValueError("a bug")
        return decide(state, *arguments, **options)

    monkeypatch.setattr(ledger, "decide_instants", broken)
    await tick(work, 60)
    assert [fact.job for fact in await stored(work, Due)] == ["tick"]


JOB = {**MINUTELY, "timezone": "Europe/Berlin"}


async def test_missed_span_is_announced() -> None:
    work = Work()
    begin = work.installation.clock.now()
    await work.define("a.job", **JOB)
    await tick(work, 600)
    [passed], [event] = await stored(work, Passed), await stored(work, CronMissed)
    assert subjects.subject_of(event) == "cron.missed.a_job"
    assert asdict(event.data) == {
        "cron_name": "a.job",
        "cron_expression": "* * * * *",
        "timezone": "Europe/Berlin",
        "reason": "missed",
        "count": 9,
        "start": begin,
        "until": begin + timedelta(minutes=9),
    }
    assert passed.count == 9
    assert event.timestamp == work.installation.clock.now()


async def test_each_span_is_announced_once() -> None:
    work = Work()
    await work.define("a.job", **JOB)
    for minutes in (3, 1, 5, 7):
        await tick(work, 60 * minutes)
    work.runner = Runner(work.installation, [NAMES])  # as after a restart
    await work.runner.run()
    assert [event.data.count for event in await stored(work, CronMissed)] == [2, 4, 6]


async def test_superseded_span_is_announced() -> None:
    work = Work()
    await work.define("a.job", **JOB)
    work.installation.clock.advance(60 * 5)
    await edit(work, "a.job", **{**JOB, "schedule": "0 3 * * *"})
    await tick(work, 60)
    [passed], [event] = await stored(work, Passed), await stored(work, CronMissed)
    assert (passed.reason, event.data.reason, event.data.count) == ("superseded", "superseded", 5)


@pytest.mark.parametrize("change", [ledger.pause, ledger.delete])
async def test_requested_pause_raises_no_alert(change: Callable[[Ledger, str], Sequence[Message]]) -> None:
    work = Work()
    await work.define("a.job", **JOB)
    await work.installation.store(*change(await state_of(work, "a.job"), "a.job"))
    await tick(work, 600)
    assert await stored(work, CronMissed) == []
