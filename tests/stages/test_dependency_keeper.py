"""The dependency keeper: an execution waits for the last runs of the jobs on which it depends, and for nothing else."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from typing_extensions import override

from tests.domain.given import KEY
from tests.guards import guarded
from tests.stages.world import World
from tocsin import subjects
from tocsin.adapters.memory.archive import InMemoryStoredLog
from tocsin.cli.jobs.why import sentence
from tocsin.domain import execution, ids, ledger
from tocsin.domain.events import (
    Acquired,
    Admitted,
    Cancelled,
    Completed,
    CronAnswer,
    CronSkipped,
    CronTriggered,
    DependenciesSettled,
    Dispatched,
    Due,
    Failed,
    Message,
    Passed,
    Planned,
    Skipped,
    TriggerKind,
)
from tocsin.domain.execution import Status
from tocsin.domain.execution.state import request_fields
from tocsin.domain.ledger import Ledger
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.ports import LogUnavailable, StaleRead, StoredMessage
from tocsin.services.explain import ExplainReader
from tocsin.stages.dependency_keeper.stage import CURSOR, DependencyKeeper
from tocsin.subjects import Bucket, Stream
from tocsin.testing import InMemoryEventLog, settle

MIDNIGHT = datetime(2026, 1, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)
UP = {"name": "load", "function": "f", "schedule": "0 * * * *"}
DOWN = {"name": "report", "function": "g", "schedule": "0 2 * * *", "depends_on": ["load"]}
AT = MIDNIGHT + 2 * HOUR
"""The instant of the dependent job."""


def go_to(world: World, at: datetime) -> None:
    """Let the clock come to a time, if it is not over."""
    world.clock.advance(max(0.0, (at - world.clock.now()).total_seconds()))


@dataclass
class Scene:
    """A world with a dependency keeper that leads."""

    world: World

    async def define(self, *definitions: dict[str, Any]) -> None:
        for definition in definitions:
            await self.world.define(definition)

    async def due(self, job: str, at: datetime) -> str:
        """The instant of a job fires; the id of its execution."""
        state, _ = await LedgerReader(self.world.log).load(job)
        assert state.current is not None
        go_to(self.world, at)
        await self.world.given(Due(job=job, scheduled_time=at, definition=state.current.definition))
        await self.play()
        return ids.occurrence_id(job, at)

    async def passes(self, seconds: float) -> None:
        """Time goes by, in steps in which the keeper looks."""
        for _ in range(3):
            self.world.clock.advance(seconds / 3)
            await self.play()

    async def play(self) -> None:
        """Let all stages and the keeper do what they can."""
        for _ in range(4):
            await self.world.run(
                self.world.registrar, self.world.planner, self.world.lock_keeper, self.world.dag_advancer
            )
            await settle()
            self.world.clock.advance(0.6)
            await settle()

    async def state(self, job: str, execution_id: str) -> execution.Execution:
        return execution.fold(await self.world.log.load(subjects.execution(job, execution_id)))

    async def status(self, job: str, execution_id: str) -> Status:
        return (await self.state(job, execution_id)).status

    async def end(self, job: str, execution_id: str, kind: type = Completed) -> None:
        """A run ends."""
        state = await self.state(job, execution_id)
        fields = {
            "job": job,
            "execution_id": execution_id,
            "scheduled_time": state.request.scheduled_time,
            "trigger": state.request.trigger,
            "fence": state.fence,
        }
        await self.world.given(kind(**fields))
        await self.play()


@asynccontextmanager
async def keeping(world: World, stored: InMemoryStoredLog | None = None) -> AsyncIterator[DependencyKeeper]:
    """A dependency keeper whose loops run."""
    keeper = DependencyKeeper(
        world.log,
        stored or InMemoryStoredLog(world.log),
        world.projections,
        world.elect("dependency-keeper"),
        world.clock,
    )
    loops = [
        asyncio.create_task(loop())
        for loop in (keeper.lead, keeper.follow, keeper.follow_runs, keeper.run, keeper.tick)
    ]
    await settle()
    try:
        yield keeper
    finally:
        for loop in loops:
            loop.cancel()
        for loop in loops:
            with suppress(asyncio.CancelledError):
                await loop


@pytest.fixture
async def scene(world: World) -> AsyncIterator[Scene]:
    go_to(world, MIDNIGHT)
    async with keeping(world):
        yield Scene(world)


# --- scheduled jobs -------------------------------------------------------------------------------------------------


async def test_execution_waits_for_the_last_run(scene: Scene) -> None:
    await scene.define(UP, DOWN)
    first = await scene.due("load", MIDNIGHT + HOUR)
    await scene.end("load", first)
    last = await scene.due("load", AT)
    held = await scene.due("report", AT)
    state = await scene.state("report", held)
    assert (state.status, execution.waits_for(state)) == (Status.PLANNED, "dependency")
    await scene.end("load", last)
    assert await scene.status("report", held) is Status.ADMITTED
    settled = (await scene.world.stored(DependenciesSettled))[0]
    assert settled.outcome == "met"
    [run] = settled.runs
    assert (run.job, run.execution_id, run.ended, run.since) == ("load", last, "completed", AT - 24 * HOUR)
    assert (await scene.world.stored(CronTriggered))[-1].data.cron_name == "report"


async def test_undecided_instant_of_the_other_job_counts(scene: Scene) -> None:
    await scene.define(UP, DOWN)
    await scene.end("load", await scene.due("load", MIDNIGHT + HOUR))
    held = await scene.due("report", AT)  # the ticker reaches `load` later
    await scene.passes(5)
    assert await scene.status("report", held) is Status.PLANNED
    last = await scene.due("load", AT)
    assert await scene.status("report", held) is Status.PLANNED
    await scene.end("load", last)
    assert await scene.status("report", held) is Status.ADMITTED


async def test_later_execution_hides_no_unplanned_instant(scene: Scene) -> None:
    """The planner could not read a state, and planned a later instant first."""
    await scene.define(UP, DOWN)
    first = await scene.due("load", MIDNIGHT + HOUR)
    await scene.end("load", first)
    held = await scene.due("report", AT)
    before = (await scene.state("load", first)).request
    dues = [Due(job="load", scheduled_time=at, definition=before.plan.definition) for at in (AT, AT + HOUR)]
    later = {"execution_id": ids.occurrence_id("load", AT + HOUR), "scheduled_time": AT + HOUR}
    await scene.world.given(*dues, Planned(**request_fields(before) | later))
    for _ in range(5):
        scene.world.clock.advance(1)
        await settle()
    assert await scene.status("report", held) is Status.PLANNED
    await scene.play()
    last = ids.occurrence_id("load", AT)
    await scene.end("load", last)
    await scene.passes(5)
    [settled] = await scene.world.stored(DependenciesSettled)
    assert [run.execution_id for run in settled.runs] == [last]


async def fires(scene: Scene, job: str, at: datetime) -> None:
    """The instant of a job fires, and no stage has planned it."""
    state, _ = await LedgerReader(scene.world.log).load(job)
    assert state.current is not None
    await scene.world.given(Due(job=job, scheduled_time=at, definition=state.current.definition))


async def waits(scene: Scene, seconds: float) -> None:
    """Let the keeper look while no other stage runs; it ends no wait."""
    for _ in range(10):
        scene.world.clock.advance(seconds / 10)
        await settle()
    assert await scene.world.log.read(subjects.filter_for("execution.dependencies-settled")) == []


@pytest.mark.parametrize("later", [0, 1], ids=["last", "moved-on"])
@pytest.mark.parametrize("earlier", [None, Completed, Failed], ids=["none", "completed", "failed"])
async def test_unplanned_instant_is_waited_for_beyond_the_timeout(
    scene: Scene, earlier: type | None, later: int
) -> None:
    """The planner is behind: it is not known whether the job ran."""
    await scene.define(UP, {**DOWN, "dependency_timeout": "1m"})
    if earlier is not None:
        await scene.end("load", await scene.due("load", MIDNIGHT + HOUR), earlier)
    held = await scene.due("report", AT)
    for hours in range(later + 1):
        await fires(scene, "load", AT + hours * HOUR)
    await waits(scene, 600)
    await scene.world.run(scene.world.planner)
    await scene.end("load", ids.occurrence_id("load", AT))
    await scene.passes(60)
    [settled] = await scene.world.stored(DependenciesSettled)
    assert [run.execution_id for run in settled.runs] == [ids.occurrence_id("load", AT)]
    assert await scene.status("report", held) is Status.ADMITTED


async def test_undecided_instant_is_waited_for_beyond_the_timeout(scene: Scene) -> None:
    """The ticker was down, and decides on the instants of the gap later."""
    await scene.define(UP, {**DOWN, "dependency_timeout": "1m"})
    held = await scene.due("report", AT)
    await waits(scene, 600)
    await fires(scene, "load", AT)
    await scene.world.run(scene.world.planner)
    await scene.end("load", ids.occurrence_id("load", AT))
    await scene.passes(60)
    assert await scene.status("report", held) is Status.ADMITTED


@pytest.mark.parametrize("is_begun", [True, False], ids=["its end", "its beginning"])
async def test_unreadable_event_of_the_run_is_waited_for(scene: Scene, *, is_begun: bool) -> None:
    await scene.define(UP, {**DOWN, "dependency_timeout": "1m"})
    run = ids.occurrence_id("load", AT)
    subject = f"execution.load.{run}.{'completed.locked' if is_begun else 'admitted.main.1'}"
    if is_begun:
        await scene.due("load", AT)
    else:
        await fires(scene, "load", AT)
    expect = await scene.world.log.tail(subjects.execution("load", run))
    scene.world.log.receive(subject, b'{"v": 9}', headers=guarded(subject, expect=expect))
    await scene.due("report", AT)
    await waits(scene, 600)


async def test_missed_instant_leaves_the_run_before_it(scene: Scene) -> None:
    await scene.define(UP, DOWN)
    await scene.end("load", await scene.due("load", MIDNIGHT + HOUR))
    held = await scene.due("report", AT)
    state, _ = await LedgerReader(scene.world.log).load("load")
    assert state.current is not None
    definition = state.current.definition
    await scene.world.given(
        Passed(job="load", definition=definition, start=MIDNIGHT + HOUR, until=AT, reason="missed", count=1)
    )
    await scene.passes(10)
    assert await scene.status("report", held) is Status.ADMITTED


async def test_run_before_the_window_does_not_count(scene: Scene) -> None:
    await scene.define(
        {**UP, "schedule": "0 1 * * *"},
        {**DOWN, "depends_on": [{"job": "load", "within": "30m"}], "dependency_timeout": "1h"},
    )
    await scene.end("load", await scene.due("load", MIDNIGHT + HOUR))
    held = await scene.due("report", AT)
    await scene.passes(60)
    assert await scene.status("report", held) is Status.PLANNED
    await scene.passes(3_600)
    skipped = (await scene.world.stored(Skipped))[-1]
    assert (skipped.execution_id, skipped.reason) == (held, "dependency_missing")
    assert (await scene.world.stored(CronSkipped))[-1].data.reason == "dependency_missing"


async def test_failed_run_is_waited_for_until_the_timeout(scene: Scene) -> None:
    await scene.define(UP, {**DOWN, "dependency_timeout": "1h"})
    last = await scene.due("load", AT)
    held = await scene.due("report", AT)
    await scene.end("load", last, Failed)
    await scene.passes(600)
    assert await scene.status("report", held) is Status.PLANNED
    await scene.passes(3_600)
    assert (await scene.world.stored(Skipped))[-1].reason == "dependency_failed"


async def test_circle_of_two_registrations_ends(scene: Scene) -> None:
    """Each was registered while the other was not: each wait ends, and nothing runs."""
    jobs = ("load", "report"), ("report", "load")
    await scene.define(
        *({**DOWN, "name": name, "depends_on": [other], "dependency_timeout": "1h"} for name, other in jobs)
    )
    held = {name: await scene.due(name, AT) for name, _ in jobs}
    await scene.passes(600)
    assert {await scene.status(name, execution_id) for name, execution_id in held.items()} == {Status.PLANNED}
    log = scene.world.log
    [answer] = await ExplainReader(log, InMemoryStoredLog(log)).why("report", AT)
    assert "runs of load, which wait for each other in a circle: report → load → report" in sentence(answer)

    async def may_see(job: str) -> bool:
        return job != "load"

    [answer] = await ExplainReader(log, InMemoryStoredLog(log), may_see=may_see).why("report", AT)
    assert answer.outcome is not None
    assert answer.outcome.circle == "report → a hidden job → report"
    await scene.passes(3_600)
    skipped = {(event.job, event.execution_id, event.reason) for event in await scene.world.stored(Skipped)}
    assert skipped == {(name, execution_id, "dependency_missing") for name, execution_id in held.items()}


@pytest.mark.parametrize("was_run", [True, False])
@pytest.mark.parametrize("change", [ledger.pause, ledger.delete, None], ids=["paused", "deleted", "unknown"])
async def test_job_that_left_counts_with_its_runs(
    change: Callable[[Ledger, str], Sequence[Message]] | None,
    was_run: bool,  # noqa: FBT001 - a parameter
    scene: Scene,
) -> None:
    """The last run counts, also if its job was paused or deleted meanwhile; without one, the wait ends by its timeout."""
    await scene.define(*([] if change is None else [UP]), {**DOWN, "dependency_timeout": "1h"})
    if was_run and change is not None:
        await scene.end("load", await scene.due("load", MIDNIGHT + HOUR))
    if change is not None:
        state, _ = await LedgerReader(scene.world.log).load("load")
        [fact] = change(state, "load")
        await scene.world.given(fact)
        start = MIDNIGHT + HOUR if was_run else MIDNIGHT
        if change is ledger.pause:
            assert state.current is not None
            passed = {
                "definition": state.current.definition,
                "start": start,
                "until": AT,
                "reason": "paused",
                "count": 1,
            }
            go_to(scene.world, AT)
            await scene.world.given(Passed.model_validate({"job": "load", **passed}))
    held = await scene.due("report", AT)
    await scene.passes(600)
    is_met = was_run and change is not None
    assert await scene.status("report", held) is (Status.ADMITTED if is_met else Status.PLANNED)
    await scene.passes(3_600)
    reasons = [event.reason for event in await scene.world.stored(Skipped) if event.job == "report"]
    assert reasons == ([] if is_met else ["dependency_missing"])


@pytest.mark.parametrize("end", [Failed, Cancelled, Completed])
async def test_finished_accepts_every_end(scene: Scene, end: type) -> None:
    await scene.define(UP, {**DOWN, "depends_on": [{"job": "load", "on": "finished"}]})
    last = await scene.due("load", AT)
    held = await scene.due("report", AT)
    assert await scene.status("report", held) is Status.PLANNED
    await scene.end("load", last, end)
    assert await scene.status("report", held) is Status.ADMITTED


async def test_replay_of_a_failed_run_counts_for_it(scene: Scene) -> None:
    await scene.define(UP, DOWN)
    last = await scene.due("load", AT)
    held = await scene.due("report", AT)
    await scene.end("load", last, Failed)
    replay = await run_of(scene, "load", AT, trigger="replay")
    await scene.play()
    assert await scene.status("report", held) is Status.PLANNED
    await scene.end("load", replay)
    assert await scene.status("report", held) is Status.ADMITTED


async def test_later_run_does_not_count(scene: Scene) -> None:
    await scene.define(UP, DOWN)
    last = await scene.due("load", AT)
    held = await scene.due("report", AT)
    await scene.end("load", last, Failed)
    await scene.end("load", await scene.due("load", AT + HOUR))
    assert await scene.status("report", held) is Status.PLANNED


async def test_skipped_occurrence_is_no_run(scene: Scene) -> None:
    await scene.define(UP, DOWN)
    running = await scene.due("load", MIDNIGHT + HOUR)
    await scene.due("load", AT)  # skipped, because the run before it still holds the lock
    held = await scene.due("report", AT)
    assert await scene.status("report", held) is Status.PLANNED
    await scene.end("load", running)
    assert await scene.status("report", held) is Status.ADMITTED


# --- without a schedule, without a lock, several --------------------------------------------------------------------


async def test_triggered_run_counts_without_a_lock(scene: Scene) -> None:
    await scene.define({"name": "load", "function": "f", "overlap_policy": "allow"})
    await scene.define(
        {"name": "report", "function": "g", "overlap_policy": "allow", "depends_on": [{"job": "load", "within": "1h"}]}
    )
    await scene.world.trigger("load")
    await scene.play()
    await scene.world.trigger("report", "n")
    await scene.play()
    [planned] = await scene.world.stored(Planned)
    assert await scene.status("report", planned.execution_id) is Status.PLANNED
    [run] = await scene.world.stored(Admitted)
    await scene.end("load", run.execution_id)
    assert await scene.status("report", planned.execution_id) is Status.ADMITTED
    assert await scene.world.stored(Acquired) == []


async def test_all_dependencies_are_needed(scene: Scene) -> None:
    await scene.define(UP)
    await scene.define({**UP, "name": "clean"})
    await scene.define({**DOWN, "depends_on": ["load", "clean"]})
    load, clean = await scene.due("load", AT), await scene.due("clean", AT)
    held = await scene.due("report", AT)
    await scene.end("load", load)
    assert await scene.status("report", held) is Status.PLANNED
    await scene.end("clean", clean)
    assert await scene.status("report", held) is Status.ADMITTED


async def test_planner_takes_no_lock_before_the_wait(scene: Scene) -> None:
    await scene.define(UP, DOWN)
    await scene.due("load", AT)
    await scene.due("report", AT)
    assert [acquired.job for acquired in await scene.world.stored(Acquired)] == ["load"]


async def test_lock_is_requested_after_the_wait(scene: Scene) -> None:
    await scene.define(UP, {**DOWN, "overlap_policy": "enqueue"})
    last = await scene.due("load", AT)
    first, second = await run_of(scene, "report", AT), await scene.due("report", AT)
    await scene.end("load", last)
    assert await scene.status("report", first) is Status.ADMITTED
    state = await scene.state("report", second)
    assert (state.status, execution.waits_for(state)) == (Status.PLANNED, "lock")
    await scene.end("report", first)
    assert await scene.status("report", second) is Status.ADMITTED


async def test_cancelled_execution_waits_no_longer(world: World) -> None:
    go_to(world, MIDNIGHT)
    scene = Scene(world)
    async with keeping(world) as keeper:
        await scene.define(UP, DOWN)
        last = await scene.due("load", AT)
        held = await scene.due("report", AT)
        assert len(keeper.dependents) == 1
        await scene.end("report", held, Cancelled)
        assert len(keeper.dependents) == 0
    await scene.end("load", last)
    assert await scene.status("report", held) is Status.CANCELLED
    assert await scene.world.stored(DependenciesSettled) == []


# --- limits and answers ----------------------------------------------------------------------------------------------

ON_DEMAND = {"name": "report", "function": "g", "depends_on": [{"job": "load", "within": "6h"}]}


async def answers(scene: Scene) -> list[tuple[str, str, str]]:
    """Return the answers to triggers: their ids, the answer and its code."""
    given = [answer.data for answer in await scene.world.stored(CronAnswer)]
    return [(answer.trigger_id.removeprefix("api."), answer.answer, answer.code) for answer in given]


async def test_trigger_that_waits_is_answered_once(scene: Scene) -> None:
    await scene.define(UP, ON_DEMAND)
    last = await scene.due("load", AT)
    await scene.world.trigger("report", "a")
    await scene.play()
    assert await answers(scene) == [("a", "queued", "dependencies_not_met")]
    await scene.world.redeliver(scene.world.planner)
    assert len(await answers(scene)) == 1
    await scene.end("load", last)
    assert (await scene.world.stored(Acquired))[-1].job == "report"
    await scene.world.redeliver(scene.world.planner, scene.world.lock_keeper)
    assert len(await answers(scene)) == 1


async def test_trigger_that_waited_in_vain_is_answered_again(scene: Scene) -> None:
    await scene.define(UP, {**ON_DEMAND, "dependency_timeout": "10m"})
    await scene.due("load", AT)
    await scene.world.trigger("report", "a")
    await scene.play()
    await scene.passes(601)
    assert await answers(scene) == [("a", "queued", "dependencies_not_met"), ("a", "skipped", "dependency_missing")]
    await scene.world.redeliver(scene.world.planner, scene.world.lock_keeper)
    assert len(await answers(scene)) == 2


async def test_answer_follows_a_crash_after_planning(scene: Scene) -> None:
    """A process stored that the execution waits, and died before its answer."""
    await scene.define(UP, ON_DEMAND)
    await scene.due("load", AT)
    await scene.world.trigger("report", "a")
    await scene.play()
    other = Scene(World())
    go_to(other.world, MIDNIGHT)
    await other.define(UP, ON_DEMAND)
    await other.world.given(*(recorded.message for recorded in await scene.world.log.read("execution.>")))
    await other.world.trigger("report", "a")
    await other.play()
    assert await answers(other) == [("a", "queued", "dependencies_not_met")]


async def test_trigger_beyond_max_waiting_is_refused(scene: Scene) -> None:
    await scene.define(UP, {**ON_DEMAND, "max_waiting": 2})
    last = await scene.due("load", AT)
    for trigger in "abc":
        await scene.world.trigger("report", trigger)
    await scene.play()
    [skipped] = await scene.world.stored(Skipped)
    assert (skipped.reason, skipped.trigger_id) == ("queue_full", "api.c")
    assert (await answers(scene))[-1] == ("c", "refused", "queue_full")
    assert (await scene.world.stored(CronSkipped))[-1].data.reason == "queue_full"
    await scene.end("load", last)
    settled = await scene.world.stored(DependenciesSettled)
    assert sorted(fact.outcome for fact in settled) == ["met", "met", "queue_full"]


async def test_wait_that_ended_leaves_room(scene: Scene) -> None:
    await scene.define(UP, {**ON_DEMAND, "max_waiting": 1, "overlap_policy": "allow"})
    last = await scene.due("load", AT)
    await scene.world.trigger("report", "a")
    await scene.play()
    await scene.end("load", last)
    await scene.due("load", AT + HOUR)
    await scene.world.trigger("report", "b")
    await scene.play()
    assert await scene.world.stored(Skipped) == []
    assert (await answers(scene))[-1] == ("b", "queued", "dependencies_not_met")


async def test_backfills_wait_beside_max_waiting(scene: Scene) -> None:
    await scene.define(UP, {**ON_DEMAND, "max_waiting": 1})
    await scene.due("load", AT)
    for minute in range(3):
        await run_of(scene, "report", AT + minute * timedelta(minutes=1))
    await scene.world.trigger("report", "a")
    await scene.play()
    assert await scene.world.stored(Skipped) == []
    await scene.world.trigger("report", "b")
    await scene.play()
    assert [skipped.trigger_id for skipped in await scene.world.stored(Skipped)] == ["api.b"]


# --- restarts -------------------------------------------------------------------------------------------------------


async def test_keeper_that_starts_later_decides_the_same(world: World) -> None:
    go_to(world, MIDNIGHT)
    scene = Scene(world)
    await scene.define(UP, DOWN)
    last = await scene.due("load", AT)
    held = await scene.due("report", AT)
    await scene.end("load", last)
    assert await scene.status("report", held) is Status.PLANNED
    async with keeping(world):
        await scene.play()
    assert await scene.status("report", held) is Status.ADMITTED


async def test_run_that_begins_during_the_decision_counts(world: World) -> None:
    go_to(world, MIDNIGHT)
    async with keeping(world) as keeper:
        scene = Scene(world)
        await scene.define(UP, DOWN)
        await scene.end("load", await scene.due("load", MIDNIGHT + HOUR))
        load, fired = keeper._ledgers.load, list[str]()

        async def slow(job: str) -> tuple[Ledger, int]:
            """Answer after the other job fired, was planned, and was followed."""
            if job == "load" and not fired:
                fired.append(ids.occurrence_id("load", AT))
                state, _ = await load(job)
                assert state.current is not None
                await world.given(Due(job="load", scheduled_time=AT, definition=state.current.definition))
                await world.run(world.planner, world.lock_keeper, world.dag_advancer)
                await settle()
            return await load(job)

        keeper._ledgers.load = slow  # type: ignore[method-assign]
        held = await scene.due("report", AT)
        assert await scene.status("report", held) is Status.PLANNED
        await scene.end("load", fired[0])
        assert await scene.status("report", held) is Status.ADMITTED


async def test_job_that_never_rests_is_decided_on(world: World) -> None:
    """Whenever the keeper looks whether it knows all runs, another has just begun."""
    go_to(world, MIDNIGHT)
    async with keeping(world):
        scene = Scene(world)
        await scene.define({**UP, "overlap_policy": "allow"}, DOWN)
        last = await scene.due("load", AT)
        held = await scene.due("report", AT)
        ask, asked = world.log.has_newer, count()

        async def busy(*filters: str, after: int, upto: int | None = None) -> bool:
            await world.trigger("load", f"run-{next(asked)}")
            await world.run(world.planner)
            return await ask(*filters, after=after, upto=upto)

        world.log.has_newer = busy  # type: ignore[method-assign]
        await scene.end("load", last)
        await scene.passes(3)
        assert next(asked) > 1
        assert await scene.status("report", held) is Status.ADMITTED


class Slow(InMemoryStoredLog):
    """A log whose archive is read slowly."""

    gate: asyncio.Event | None = None

    @override
    async def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncGenerator[Sequence[StoredMessage], None]:
        if self.gate is not None:
            await self.gate.wait()
        async for portion in super().messages(stream, *filters, after=after, upto=upto):
            yield portion


async def test_runs_during_a_long_read_count(world: World) -> None:
    go_to(world, MIDNIGHT)
    scene, stored = Scene(world), Slow(world.log)
    async with keeping(world, stored):
        for name in ("load", "other", "late"):
            await scene.define({**UP, "name": name})
        await scene.define({**DOWN, "schedule": "30 * * * *", "depends_on": [{"job": "load", "within": "6h"}]})
        waits = [{"job": "load", "within": "7h"}, {"job": "other", "within": "1m"}]
        await scene.define({**DOWN, "name": "keeps", "schedule": "0 * * * *", "depends_on": waits})
        await scene.define({**DOWN, "name": "reads", "schedule": "10 * * * *", "depends_on": ["late"]})
        first = await scene.due("load", MIDNIGHT + HOUR)
        await scene.end("load", first)
        await scene.due("keeps", MIDNIGHT + HOUR)  # it waits for `other`, so that `load` is followed
        stored.gate = asyncio.Event()
        await scene.due("reads", MIDNIGHT + HOUR + timedelta(minutes=10))
        request = (await scene.state("load", first)).request
        run = Admitted(
            job="load",
            execution_id="7",
            scheduled_time=request.scheduled_time + HOUR / 3,
            trigger="api",
            plan=request.plan,
        )
        await world.given(run)
        await scene.end("load", "7", Failed)
        held = await scene.due("report", MIDNIGHT + HOUR + timedelta(minutes=30))
        assert await scene.status("report", held) is Status.PLANNED
        stored.gate.set()
        await scene.passes(5)
        assert await scene.status("report", held) is Status.PLANNED


class Flawed(InMemoryStoredLog):
    """A log whose first reads fail."""

    def __init__(self, log: InMemoryEventLog) -> None:
        super().__init__(log)
        self.errors: list[Exception] = [StaleRead.of("execution"), LogUnavailable("no answer"), ValueError("a bug")]

    @override
    async def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncGenerator[Sequence[StoredMessage], None]:
        if self.errors:
            raise self.errors.pop()
        async for portion in super().messages(stream, *filters, after=after, upto=upto):
            yield portion


async def test_failed_read_of_runs_is_repeated(world: World) -> None:
    go_to(world, MIDNIGHT)
    scene, flawed = Scene(world), Flawed(world.log)
    async with keeping(world, flawed):
        await scene.define(UP, DOWN)
        await scene.end("load", await scene.due("load", AT))
        held = await scene.due("report", AT)
        await scene.passes(10)
    assert flawed.errors == []
    assert await scene.status("report", held) is Status.ADMITTED


async def test_restart_reads_from_the_oldest_dependent(world: World) -> None:
    go_to(world, MIDNIGHT)
    scene = Scene(world)
    async with keeping(world) as keeper:
        await scene.define(UP, DOWN)
        last = await scene.due("load", AT)
        await scene.end("load", last)
        await scene.due("report", AT)
        await scene.passes(60)
        assert len(keeper.dependents) == 0
        await scene.due("report", AT + 24 * HOUR)
        await scene.passes(60)
        oldest = keeper.dependents.oldest
    entry = await world.projections.get(Bucket.CURSORS, CURSOR)
    assert entry is not None
    assert oldest is not None
    assert int(entry[0]) == oldest - 1
    async with keeping(world) as keeper:
        await scene.play()
        assert keeper.dependents.oldest == oldest


async def test_execution_that_cannot_be_examined_delays_no_other(scene: Scene) -> None:
    await scene.define(UP, DOWN)
    last = await scene.due("load", AT)
    held = await scene.due("report", AT)
    state = await scene.state("report", held)
    plan = state.request.plan.changed(definition=999)  # no such definition is stored
    await scene.world.given(
        Planned(job="broken", execution_id="1", scheduled_time=AT, trigger="manual", plan=plan),
    )
    await scene.end("load", last)
    assert await scene.status("report", held) is Status.ADMITTED


async def test_two_keepers_end_a_wait_once(scene: Scene) -> None:
    async with keeping(scene.world) as other:
        other._leadership.time = lambda: asyncio.sleep(0, scene.world.clock.now())  # type: ignore[method-assign]
        await scene.define(UP, DOWN)
        last = await scene.due("load", AT)
        await scene.due("report", AT)
        await scene.end("load", last)
    assert len(await scene.world.stored(DependenciesSettled)) == 1
    assert len([task for task in await scene.world.stored(Dispatched) if task.job == "report"]) == 1


async def run_of(scene: Scene, job: str, at: datetime, *, trigger: TriggerKind = "backfill") -> str:
    """A run of a job for an instant that no schedule fired."""
    if trigger == "replay":
        execution_id = ids.replay_id(job, trigger, 1, scene.world.clock.now())
        before = await scene.state(job, ids.occurrence_id(job, at))
        admitted = Admitted(
            job=job, execution_id=execution_id, scheduled_time=at, trigger=trigger, plan=before.request.plan, fence=None
        )
        await scene.world.given(execution.admit_and_dispatch(admitted, key=KEY))
        return execution_id
    await scene.world.trigger(job, f"{trigger}-{at}", backfill="b", scheduled_time=at)
    await scene.play()
    return ids.backfill_id(job, "b", at)
