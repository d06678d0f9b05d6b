"""The audit accepts the recoverer's decisions, and reports forbidden decisions."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from tests.stages.recovering import GRAPH, JOB, LOSS, SILENCE, Scene
from tests.stages.world import World
from tests.stored_events import StoredEvents
from tocsin.domain.events import Failed, Message, Recorded, Recovered, Report


@pytest.fixture(scope="module")
def everything() -> StoredEvents:
    """A log in which everything is lost once, and all else takes too long."""
    return asyncio.run(happened())


async def happened() -> StoredEvents:
    world = World()
    scene = Scene(world)
    await world.define(JOB)
    await scene.begin("its first attempt fails, and its second is silent")
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


def test_what_it_did_breaks_no_rule(everything: StoredEvents) -> None:
    assert everything.audited().violations == ()
    assert len(everything.facts(Recovered)) == 3
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
        (first(Recovered), "recovery 2 follows recovery 0"),
        (first(Recovered, recovery=2), "recovery 2 follows recovery 0"),
        (earlier(Failed, "timed_out"), "before its time limit of 20"),
        (by_nobody, "reported that it failed"),
    ],
    ids=["no fact on it", "miscounted", "too early", "no report"],
)
def test_what_it_must_not_do_is_noticed(everything: StoredEvents, change: Change, reason: str) -> None:
    planted = everything.changed(lambda messages: [c for r in messages if (c := change(r)) is not None])
    found = planted.audited().violations
    assert any(reason in str(violation) for violation in found), found
