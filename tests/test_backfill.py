"""Backfills: which instants, in which order, and none twice."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.domain.given import NOON
from tests.stages.test_lock_keeper import completed
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import ids, ledger
from tocsin.domain.events import (
    Actor,
    Admitted,
    Cancelled,
    Due,
    Passed,
    Queued,
    Requested,
    Skipped,
    Trigger,
)
from tocsin.domain.ledger import JobNotFound
from tocsin.domain.text import utc_text
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.services.jobs import Registry
from tocsin.services.operations import backfill
from tocsin.services.operations.backfill import Backfill, Span
from tocsin.services.operations.errors import OperationError

ADA = Actor(identity="ada", source="test")
JOB = "nightly"
HOUR = timedelta(hours=1)


def at(hour: int, day: int = 20) -> datetime:
    return datetime(2026, 11, day, hour, tzinfo=UTC)


@pytest.fixture
def world() -> World:
    return World()


def nightly(**more: object) -> dict[str, object]:
    return {"name": JOB, "schedule": "0 * * * *", "function": "f", **more}


async def planned(world: World, span: Span, **more: Any) -> Backfill:  # noqa: ANN401 - as `plan`
    registry = Registry(world.log, world.projections, world.clock)
    return await backfill.plan(world.past, registry, JOB, span, **{"now": at(0, 25), **more})


async def run(world: World, wanted: Backfill, **more: Any) -> list[str]:  # noqa: ANN401 - as `begin`
    async def ask() -> list[str]:
        return [one.execution_id async for one in backfill.begin(world.log, wanted, world.clock, **more)]

    asking = asyncio.create_task(ask())
    while not asking.done():
        world.clock.advance(0.5)
        await asyncio.wait([asking], timeout=0.001)
    await world.run(world.planner, world.lock_keeper)
    return asking.result()


async def requested(world: World) -> list[Requested]:
    return [fact for fact in await world.stored(Requested) if not isinstance(fact, Admitted) or fact.fence is None]


async def test_range_includes_its_start_and_excludes_its_end(world: World) -> None:
    await world.define(nightly())
    plan = await planned(world, Span(at(3), at(6)))
    assert plan.instants == (at(3), at(4), at(5))
    assert (plan.named, plan.fired, plan.missing) == (3, 0, 0)
    assert (await planned(world, Span(at(3), at(6), order="newest"))).instants == (at(5), at(4), at(3))


async def test_instants_follow_the_zone_and_its_clock_changes(world: World) -> None:
    await world.define(nightly(schedule="30 2 * * *", timezone="Europe/Berlin"))
    spring = Span(datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 3, 31, tzinfo=UTC))
    instants = (await planned(world, spring)).instants
    assert [one.isoformat() for one in instants] == ["2026-03-28T01:30:00+00:00", "2026-03-30T00:30:00+00:00"]
    autumn = Span(datetime(2025, 10, 26, tzinfo=UTC), datetime(2025, 10, 27, tzinfo=UTC))
    assert len((await planned(world, autumn)).instants) == 1


async def test_excluded_instants_are_left_out(world: World) -> None:
    blackout = [{"from": "2026-11-20T03:30", "to": "2026-11-20T05:00"}]
    await world.define(nightly(blackout=blackout, exclude=[{"name": "fair", "days": ["2026-11-21"]}]))
    plan = await planned(world, Span(at(3), at(6)))
    assert (plan.instants, plan.named) == ((at(3), at(5)), 2)
    assert (await planned(world, Span(at(23), at(1, 22)))).instants == (at(23), at(0, 22))


async def test_only_what_did_not_fire_or_was_skipped(world: World) -> None:
    definition = await world.define(nightly())
    known: Any = {"job": JOB, "definition": definition}
    await world.given(
        Due(**known, scheduled_time=at(1)),
        Passed(**known, start=at(1), until=at(3), reason="missed", count=2),
        Due(**known, scheduled_time=at(4)),
        Skipped(**known, execution_id="a", reason="overlap_skip", scheduled_time=at(4), trigger="cron"),
        Due(**known, scheduled_time=at(5)),
    )  # fmt: skip
    plan = await planned(world, Span(at(0), at(8), only_missing=True))
    assert plan.instants == (at(2), at(3), at(4))
    assert (plan.named, plan.fired, plan.missing) == (8, 2, 3)
    assert len((await planned(world, Span(at(0), at(8)))).instants) == 8


@pytest.mark.parametrize(
    ("definition", "span", "code"),
    [
        ({}, Span(at(6), at(6)), "empty-span"),
        ({}, Span(at(6), at(0, 26)), "future-span"),
        ({"schedule": None}, Span(at(3), at(6)), "no-schedule"),
        ({"schedule": "@every 90s"}, Span(at(3), at(6)), "no-calendar"),
        ({"schedule": "* * * * * *"}, Span(at(3), at(3) + timedelta(days=2)), "too-many-instants"),
    ],
)
async def test_what_cannot_be_made_up_for_says_why(
    world: World, definition: dict[str, object], span: Span, code: str
) -> None:
    await world.define(nightly(**definition))
    with pytest.raises(OperationError) as refused:
        await planned(world, span)
    assert refused.value.code == code


async def test_unknown_job_is_not_found(world: World) -> None:
    registry = Registry(world.log, world.projections, world.clock)
    with pytest.raises(JobNotFound) as refused:
        await backfill.plan(world.past, registry, "nobody", Span(at(3), at(6)), now=at(0, 25))
    assert refused.value.job == "nobody"


async def test_each_execution_carries_its_instant_and_actor(world: World) -> None:
    await world.define(nightly(overlap_policy="allow"))
    wanted = await planned(world, Span(at(3), at(5)), name="repair")
    asked = await run(world, wanted, by=ADA, reason="lost")
    made = await requested(world)
    assert [one.execution_id for one in made] == asked == [ids.backfill_id(JOB, "repair", at(h)) for h in (3, 4)]
    assert [one.scheduled_time for one in made] == [at(3), at(4)]
    assert {(one.trigger, one.backfill, one.by) for one in made} == {("backfill", "repair", ADA)}
    assert made[0].meta["cron_triggered_at"] == utc_text(at(3))
    assert {trigger.reason for trigger in await world.stored(Trigger)} == {"lost"}


async def test_run_twice_it_makes_nothing_twice(world: World) -> None:
    world.clock.advance((at(0, 25) - world.clock.now()).total_seconds())
    await world.define(nightly(overlap_policy="allow"))
    span = Span(at(3), at(6))
    first = await run(world, await planned(world, span))
    world.clock.advance(600)  # the log has forgotten the messages' ids
    assert await run(world, await planned(world, span)) == first
    assert len(await world.stored(Trigger)) == 6
    assert len(await requested(world)) == 3
    await run(world, await planned(world, span, name="once more"))
    assert len(await requested(world)) == 6
    world.clock.advance(90_000)  # the planner has forgotten the requests
    assert (await planned(world, span, now=world.clock.now())).instants == ()


async def test_no_scheduled_instant_is_used_up(world: World) -> None:
    definition = await world.define(nightly(overlap_policy="allow"))
    await run(world, await planned(world, Span(at(3), at(4))))
    await world.given(Due(job=JOB, scheduled_time=at(3), definition=definition))
    await world.run(world.planner)
    assert [fact.trigger for fact in await requested(world)] == ["backfill", "cron"]
    state, _ = await LedgerReader(world.log).load(JOB)
    assert ledger.missing_fact(state) is None


async def test_i4_what_is_delivered_again_adds_nothing(world: World) -> None:
    await world.define(nightly())
    await run(world, await planned(world, Span(at(3), at(6))))
    size = await world.size()
    await world.redeliver(world.planner, world.lock_keeper)
    assert await world.size() == size


async def test_incomplete_backfill_trigger_becomes_dead_letter(world: World) -> None:
    await world.define(nightly())
    world.log.receive(subjects.trigger(JOB), b'{"backfill": "x"}')
    world.log.receive(subjects.trigger(JOB), b'{"backfill": "x", "scheduled_time": "2026-11-20T03:00:00"}')
    await world.run(world.planner)
    letters = await world.log.read("dead-letter.>")
    assert len(letters) == 2
    assert "`scheduled_time`" in letters[0].message.reason  # type: ignore[attr-defined]


async def in_turn(world: World) -> list[str]:
    """Let each execution complete as soon as it may run; the order in which they ran."""
    ran: list[str] = []
    while len(admitted := await world.stored(Admitted)) > len(ran):
        ran.append(admitted[-1].execution_id)
        await world.given(completed(admitted[-1].execution_id, admitted[-1].fence))
        await world.run(world.lock_keeper)
    return ran


@pytest.mark.parametrize("policy", ["skip", "enqueue", "cancel_previous"])
async def test_backfilled_runs_neither_skip_nor_cancel_others(world: World, policy: str) -> None:
    await world.define(nightly(overlap_policy=policy))
    asked = await run(world, await planned(world, Span(at(0), at(12))))
    assert await in_turn(world) == asked
    assert (await world.stored(Skipped), await world.stored(Cancelled)) == ([], [])


async def test_where_overlap_is_allowed_they_all_run(world: World) -> None:
    await world.define(nightly(overlap_policy="allow"))
    await run(world, await planned(world, Span(at(0), at(12))))
    assert len(await world.stored(Admitted)) == 12
    assert await world.stored(Queued) == []


@pytest.mark.parametrize("policy", ["skip", "enqueue", "cancel_previous"])
async def test_what_the_schedule_names_meanwhile_goes_first(world: World, policy: str) -> None:
    definition = await world.define(nightly(overlap_policy=policy))
    asked = await run(world, await planned(world, Span(at(0), at(4))))
    await world.given(Due(job=JOB, scheduled_time=NOON, definition=definition))
    await world.run(world.planner, world.lock_keeper)
    regular = ids.occurrence_id(JOB, NOON)
    assert await in_turn(world) == [asked[0], regular, *asked[1:]]
    assert (await world.stored(Skipped), await world.stored(Cancelled)) == ([], [])


async def test_cron_18_scheduled_run_waits_for_a_backfill(world: World) -> None:
    definition = await world.define(nightly(overlap_policy="skip"))
    asked = await run(world, await planned(world, Span(at(0), at(2))))
    for hour in (12, 13):
        await world.given(Due(job=JOB, scheduled_time=NOON.replace(hour=hour), definition=definition))
        await world.run(world.planner, world.lock_keeper)
    [skipped] = await world.stored(Skipped)
    assert skipped.scheduled_time == NOON + HOUR
    assert await in_turn(world) == [asked[0], ids.occurrence_id(JOB, NOON), asked[1]]
    assert len({fact.execution_id for fact in await world.stored(Requested)}) == 4
