"""The audit accepts the recoverer's decisions, and reports forbidden decisions."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from tests.stages.recovering import GRAPH, JOB, LOSS, SILENCE, Scene, started
from tests.stages.world import World
from tests.stored_events import StoredEvents
from tocsin.domain.events import Dispatched, Failed, Lost, Message, Recorded, Recovered, Report, Started


@pytest.fixture(scope="module")
def everything() -> StoredEvents:
    """A log in which everything is lost once, and all else takes too long."""
    return asyncio.run(happened())


async def happened() -> StoredEvents:
    world = World()
    scene = Scene(world)
    await world.define(JOB)
    await scene.begin("its task is lost, its first attempt fails, and its second is silent")
    await recover_a_task(scene)
    await scene.report(await scene.claim(), "failed")
    await scene.passes(2)
    await scene.claim()
    await scene.passes(SILENCE)
    await world.define(GRAPH)
    await scene.begin_and_lose("it is lost for good")
    for _ in range(3):
        await scene.passes_in_vain(LOSS)
    await scene.passes(LOSS)
    await world.define({**JOB, "execution_timeout": "20s"})
    await scene.begin("it takes too long")
    await scene.claim()
    await scene.passes(21)
    await world.define({**JOB, "retry": {"max_attempts": 1}})
    await scene.begin("its only attempt is silent")
    await scene.claim()
    await scene.passes(SILENCE)
    return await StoredEvents.of(world.log)


async def recover_a_task(scene: Scene) -> None:
    """Store the recovery of a task that no worker claimed."""
    world = scene.world
    task, since = await scene.only(Dispatched), world.clock.now()
    world.clock.advance(LOSS)
    lost = (Lost(what="dispatched", since=since, step=task.step, attempt=task.attempt),)
    await world.given(
        Recovered(job=task.job, execution_id=task.execution_id, recovery=1, lost=lost, recovered_at=world.clock.now())
    )
    await world.run(*scene.stages)


def test_what_it_did_breaks_no_rule(everything: StoredEvents) -> None:
    assert everything.audited().violations == ()
    assert len(everything.facts(Recovered)) == 4
    reasons = [failed.message.reason for failed in everything.facts(Failed)]
    assert reasons == ["attempts", "abandoned", "timed_out", "attempts"]


Change = Callable[[Recorded[Message]], Recorded[Message] | None]


def first(kind: type[Message], **fields: object) -> Change:
    """The first fact of a kind says something else; without fields, it is not there."""
    seen: list[Recorded[Message]] = []

    def change(recorded: Recorded[Message]) -> Recorded[Message] | None:
        if not isinstance(recorded.message, kind) or (seen and seen[0] is not recorded):
            return recorded
        seen.append(recorded)
        return msgspec.structs.replace(recorded, message=recorded.message.changed(**fields)) if fields else None

    return change


def earlier(kind: type[Message], reason: str) -> Change:
    """A failure with a reason came a quarter of a minute earlier."""

    def change(recorded: Recorded[Message]) -> Recorded[Message]:
        is_it = isinstance(recorded.message, kind) and getattr(recorded.message, "reason", None) == reason
        return msgspec.structs.replace(recorded, time=recorded.time - timedelta(seconds=15)) if is_it else recorded

    return change


def by_nobody(recorded: Recorded[Message]) -> Recorded[Message] | None:
    """The recoverer never reported what it says was silent."""
    is_it = isinstance(recorded.message, Report) and recorded.message.worker == "recoverer"
    return None if is_it else recorded


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (first(Recovered), "is stored twice"),
        (first(Recovered, recovery=2), "recovery 2 follows recovery 0"),
        (first(Recovered, lost=()), "is stored twice"),
        (earlier(Failed, "timed_out"), "before its time limit of 20"),
        (by_nobody, "reported that it failed"),
    ],
    ids=["no fact on it", "miscounted", "nothing was lost", "too early", "no report"],
)
def test_what_it_must_not_do_is_noticed(everything: StoredEvents, change: Change, reason: str) -> None:
    planted = everything.changed(lambda messages: [c for r in messages if (c := change(r)) is not None])
    found = planted.audited().violations
    assert any(reason in str(violation) for violation in found), found


def test_a_task_that_was_claimed_was_not_lost(everything: StoredEvents) -> None:
    """A claim between the task and the fact that it was lost."""
    log = [*everything.log]
    place = next(i for i, r in enumerate(log) if isinstance(r.message, Recovered))
    task = next(r.message for r in log if isinstance(r.message, Dispatched))
    claim = msgspec.structs.replace(log[place], message=started(task), subject="execution.nightly.x.started.main.1.1")
    found = replace(everything, log=[*log[:place], claim, *log[place:]]).audited().violations
    assert isinstance(claim.message, Started)
    assert any("attempt 1 of main was not lost" in str(violation) for violation in found), found
