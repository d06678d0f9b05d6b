"""Repeated reads of open executions, and the rests of the recoverer between them."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from tests.stages.recovering import GRAPH, HOUR, JOB, MINUTE, Scene, begin, begin_and_lose, recovering
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain.events import Failed, Recovered, Report
from tocsin.ports import Loaded, LogUnavailable
from tocsin.stages.recoverer import stage
from tocsin.stages.recoverer.stage import REST_S
from tocsin.subjects import Stream
from tocsin.testing import settle


@pytest.fixture
async def scene(world: World) -> AsyncIterator[Scene]:
    await world.define({**JOB, "overlap_policy": "allow"})
    async with recovering(world) as it:
        await world.run(world.registrar, *it.stages)
        yield it


class Reads:
    """The scopes that were read, whole or for news, and the number of events that came."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.whole: list[str] = []
        self.news: list[str] = []
        self.events = 0
        self.error: Exception | None = None
        self._load_each = scene.world.log.load_each
        monkeypatch.setattr(scene.world.log, "load_each", self._read)

    async def _read(self, *scopes: str, after: Mapping[str, int] | None = None) -> Loaded:
        if self.error is not None:
            raise self.error
        loaded = await self._load_each(*scopes, after=after)
        (self.news if after else self.whole).extend(scopes)
        self.events += sum(map(len, loaded.facts))
        return loaded


async def look(scene: Scene, seconds: float, times: int = 1) -> None:
    """Let time pass, and the recoverer alone look, some times."""
    for _ in range(times):
        await scene.world.clock.run(seconds)
        await settle()
        while await scene.it.run_once(scene.world.clock.now()):
            pass


# --- waiting for a worker ------------------------------------------------------------------------------------------------


async def test_waiting_tasks_are_read_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for message_id in ("a", "b", "c"):
        await begin(scene, message_id)
    reads = Reads(scene, monkeypatch)
    await look(scene, 10)
    assert len(reads.whole) == 3
    events = reads.events
    await look(scene, MINUTE, times=55)
    assert (len(reads.whole), reads.events) == (3, events)
    assert len(reads.news) > 100
    await look(scene, MINUTE, times=10)
    assert len(reads.whole) == 6  # once an hour
    assert len(scene.it.open) == 3


async def test_claim_after_a_long_wait_has_its_deadline(scene: Scene) -> None:
    await begin(scene)
    await look(scene, 30, times=100)
    await look(scene, 17)
    await scene.claim()
    await look(scene, 1, times=39)
    assert await scene.world.stored(Report) == []
    await look(scene, 1, times=2)
    report = await scene.only(Report)
    assert (report.outcome, report.delivery, report.error.type) == ("failed", 1, "timed_out")


async def test_running_attempt_is_read_again_at_its_deadline(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.world.define({**JOB, "timeout": HOUR})
    await begin(scene)
    await scene.claim()
    await look(scene, 10)
    reads = Reads(scene, monkeypatch)
    await look(scene, MINUTE, times=59)
    assert reads.whole == []
    await look(scene, MINUTE, times=2)
    assert len(reads.whole) == 1
    assert (await scene.only(Report)).error.type == "timed_out"


async def test_waiting_execution_ends_at_its_time_limit(scene: Scene) -> None:
    await scene.world.define({**JOB, "execution_timeout": HOUR})
    await begin(scene)
    await look(scene, MINUTE, times=59)
    assert await scene.world.stored(Failed) == []
    await look(scene, MINUTE, times=2)
    assert (await scene.only(Failed)).reason == "timed_out"


async def test_unproven_loss_is_read_until_it_is_proven(scene: Scene) -> None:
    await scene.world.define(GRAPH)
    world = scene.world
    await world.trigger("nightly")
    await world.run(world.planner, world.lock_keeper)
    await look(scene, MINUTE, times=60)  # the DAG advancer is down
    assert await world.stored(Recovered) == []
    await scene.lose()
    await look(scene, MINUTE, times=5)
    assert len(await world.stored(Recovered)) == 1


async def test_news_of_one_execution_are_read_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for message_id in ("a", "b", "c"):
        await begin(scene, message_id)
    await look(scene, 10)
    task = await scene.claim()
    reads = Reads(scene, monkeypatch)
    await look(scene, 40)
    assert (len(reads.news), len(reads.whole)) == (3, 1)
    assert task.execution_id in reads.whole[0]


async def test_unanswered_look_is_repeated(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await begin(scene)
    await look(scene, 10)
    await scene.claim()
    reads = Reads(scene, monkeypatch)
    reads.error = LogUnavailable("no answer")
    await look(scene, 41)
    reads.error = None
    await look(scene, 1)
    assert len(await scene.world.stored(Report)) == 1


async def test_executions_without_events_are_forgotten(scene: Scene) -> None:
    await begin(scene)
    await look(scene, 10)
    assert len(scene.it.open) == 1
    log = scene.world.log
    for recorded in await log.read("execution.>"):
        log._streams[Stream.LOG].remove(recorded.sequence)
    await look(scene, 5 * MINUTE)
    assert len(scene.it.open) == 0


async def test_execution_without_events_is_forgotten_beside_others(scene: Scene) -> None:
    for message_id in ("a", "b"):
        await begin(scene, message_id)
    await look(scene, 10)
    events = await scene.world.log.read("execution.>")
    removed = subjects.execution_scope(events[0].subject)
    for recorded in events:
        if subjects.execution_scope(recorded.subject) == removed:
            scene.world.log._streams[Stream.LOG].remove(recorded.sequence)
    await look(scene, 5 * MINUTE, times=15)
    assert (removed in scene.it.open, len(scene.it.open)) == (False, 1)


async def test_claim_after_lost_messages_has_its_deadline(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without power lost its newest messages, and stores others at their sequences."""
    await begin(scene)
    load_each = scene.world.log.load_each

    async def before(*scopes: str, after: Mapping[str, int] | None = None) -> Loaded:
        loaded = await load_each(*scopes, after=after)
        return Loaded(loaded.facts, loaded.upto + 1_000)

    with monkeypatch.context() as patch:
        patch.setattr(scene.world.log, "load_each", before)
        await look(scene, 10)
    await scene.claim()
    await look(scene, MINUTE, times=70)
    assert (await scene.only(Report)).error.type == "timed_out"


# --- a backlog -----------------------------------------------------------------------------------------------------------


async def test_backlog_is_examined_in_portions(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "PORTION", 2)
    for message_id in ("a", "b", "c"):
        await begin(scene, message_id)
    await scene.world.clock.run(10)
    await settle()
    reads = Reads(scene, monkeypatch)
    assert await scene.it.run_once(scene.world.clock.now())
    assert len(reads.whole) == 2
    assert not await scene.it.run_once(scene.world.clock.now())
    assert len(set(reads.whole)) == 3


async def test_recoverer_rests_between_portions(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "PORTION", 1)
    for message_id in ("a", "b", "c"):
        await begin(scene, message_id)
    await scene.world.clock.run(10)
    await scene.it._leadership.run_once()
    reads = Reads(scene, monkeypatch)
    running, counts = asyncio.create_task(scene.it.run()), []
    for _ in range(3):
        await settle()
        counts.append(len(reads.whole))
        await scene.world.clock.run(REST_S)
    running.cancel()
    assert counts == [1, 2, 3]


async def test_backlog_of_losses_is_recovered(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "PORTION", 2)
    await scene.world.define({**GRAPH, "overlap_policy": "allow"})
    for index in range(5):
        await begin_and_lose(scene, f"trigger-{index}")
    await look(scene, 5 * MINUTE + 1)
    assert len(await scene.world.stored(Recovered)) == 5


async def test_evidence_of_a_backlog_grows_old(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog that never ends does not hide that a stage has passed a message."""
    monkeypatch.setattr(stage, "PORTION", 1)
    world = scene.world
    await world.define({**GRAPH, "overlap_policy": "allow"})
    world.durable(world.dag_advancer.subscriptions[1])
    for index in range(2):
        await world.trigger("nightly", f"trigger-{index}")
    await world.run(world.planner, world.lock_keeper)
    await world.clock.run(5 * MINUTE + 1)
    await settle()
    assert await scene.it.run_once(world.clock.now())  # the DAG advancer is down
    for _ in range(2):
        await scene.lose()
    await world.clock.run(stage.EVIDENCE_AGE_S)
    assert await scene.it.run_once(world.clock.now())
    assert len(await world.stored(Recovered)) == 1
