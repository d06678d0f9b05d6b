"""Waits for other jobs: the audit judges their ends by the definition and the runs, and notices what is planted."""

from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from tests.domain.given import KEY
from tests.services.audit.test_defects import Defect, other, without, work
from tests.stages.world import World
from tests.stored_events import StoredEvents
from tocsin import subjects
from tocsin.domain import execution, ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, DependenciesSettled, DependencyRun, ExecutionFact, Planned, Skipped
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.services.audit import audit

BEGIN = World().clock.now()
RUN = DependencyRun(job="load", since=BEGIN - timedelta(hours=1), execution_id="r", ended="completed")
FAILED = RUN.changed(ended="failed")


def broken(everything: StoredEvents) -> set[str]:
    """The invariants that a log breaks."""
    return {violation.invariant for violation in everything.audited().violations}


def reasons(everything: StoredEvents) -> list[str]:
    """The reasons of the violations of a log."""
    return [violation.reason for violation in everything.audited().violations]


@dataclass
class Scene:
    """The log of a job that waits for another."""

    world: World = field(default_factory=World)

    async def ran(self, job: str, message_id: str, **fields: object) -> str:
        """Trigger a job, and work until nothing is left to do; the id of its execution."""
        before = {fact.execution_id for fact in await self._begun(job)}
        await self.world.trigger(job, message_id, **fields)
        await work(self.world)
        [execution_id] = {fact.execution_id for fact in await self._begun(job)} - before
        return execution_id

    async def settle(self, execution_id: str, outcome: str, *runs: DependencyRun) -> StoredEvents:
        """End the wait of an execution, and work until nothing is left to do; the log."""
        state = execution.fold(await self.world.log.load(subjects.execution("report", execution_id)))
        await self.world.given(*execution.settle(state, outcome, runs))  # type: ignore[arg-type]
        await work(self.world)
        return await StoredEvents.of(self.world.log)

    async def _begun(self, job: str) -> list[ExecutionFact]:
        events = [recorded.message for recorded in await self.world.log.read(f"execution.{job}.>")]
        return [event for event in events if isinstance(event, ExecutionFact)]


async def begun(*, function: str = "f") -> Scene:
    """The jobs are defined."""
    scene = Scene()
    await scene.world.define({"name": "load", "function": function, "retry": {"max_attempts": 1}})
    await scene.world.define({"name": "report", "function": "f", "depends_on": [{"job": "load", "within": "1h"}]})
    return scene


async def waited(*, outcome: str = "met", run: DependencyRun | None = RUN) -> StoredEvents:
    """The log after a wait; `run` with the id of the run of the other job."""
    scene = await begun(function="broken" if run is not None and run.ended == "failed" else "f")
    loaded = await scene.ran("load", "one")
    held = await scene.ran("report", "two")
    runs = () if run is None else (run.changed(execution_id=loaded),)
    return await scene.settle(held, outcome, *runs)


@pytest.mark.parametrize(
    ("outcome", "run"),
    [
        ("met", RUN),
        ("dependency_failed", FAILED),
        ("dependency_missing", RUN.changed(ended=None)),
        ("queue_full", None),
    ],
)
async def test_wait_breaks_no_invariant(outcome: str, run: DependencyRun | None) -> None:
    assert broken(await waited(outcome=outcome, run=run)) == set()


@pytest.mark.parametrize(
    ("invariant", "defect"),
    [
        ("I6", without(DependenciesSettled)),
        ("I6", other(DependenciesSettled, runs=())),
        ("I6", other(DependenciesSettled, runs=(FAILED,))),
        ("I6", other(DependenciesSettled, runs=(RUN.changed(job="other"),))),
        ("I6", other(DependenciesSettled, outcome="dependency_missing")),
        ("I6", other(DependenciesSettled, outcome="queue_full")),
    ],
)
async def test_defect_of_a_wait_is_noticed(invariant: str, defect: Defect) -> None:
    assert invariant in broken(defect(await waited()))


async def test_run_that_is_not_there_is_noticed() -> None:
    scene = await begun()
    await scene.ran("load", "one")
    everything = await scene.settle(await scene.ran("report", "two"), "met", RUN)
    assert reasons(everything) == ["it rests on run r of load, which is not there"]


async def test_run_outside_the_window_is_noticed() -> None:
    scene = await begun()
    loaded = await scene.ran("load", "one")
    scene.world.clock.advance(120)
    run = RUN.changed(execution_id=loaded, since=BEGIN + timedelta(minutes=1))
    everything = await scene.settle(await scene.ran("report", "two"), "met", run)
    assert reasons(everything) == [f"it rests on run {loaded} of load, whose time is outside of the window"]


async def test_false_end_of_a_run_is_noticed() -> None:
    scene = await begun(function="broken")
    loaded = await scene.ran("load", "one")
    run = RUN.changed(execution_id=loaded)
    everything = await scene.settle(await scene.ran("report", "two"), "met", run)
    assert reasons(everything) == [f"it says that run {loaded} of load had completed, and it had not"]


@pytest.mark.parametrize(("minutes", "is_noticed"), [(2, True), (0, False)])
async def test_earlier_run_than_the_last_is_noticed(minutes: int, *, is_noticed: bool) -> None:
    scene = await begun()
    first = await scene.ran("load", "one")
    last = await scene.ran("load", "two")
    held = await scene.ran("report", "three")
    scene.world.clock.advance(60 * minutes)
    everything = await scene.settle(held, "met", RUN.changed(execution_id=first))
    expected = [f"it rests on run {first} of load, and run {last} came after that"]
    assert reasons(everything) == (expected if is_noticed else [])


MISSED = [
    ("dependency_missing", {"execution_id": None}, "it rests on no run of load, and run {} came after that"),
    (
        "dependency_missing",
        {"execution_id": None, "since": BEGIN + timedelta(days=1)},
        "its window of runs of load is empty",
    ),
    ("dependency_missing", {}, "it says that run {} of load had not ended, and it had completed"),
]


@pytest.mark.parametrize(("outcome", "named", "reason"), MISSED, ids=["no run", "no window", "no end"])
@pytest.mark.parametrize("minutes", [2, 0])
async def test_skip_although_the_run_completed_is_noticed(
    outcome: str, named: dict[str, object], reason: str, minutes: int
) -> None:
    scene = await begun()
    loaded = await scene.ran("load", "one")
    held = await scene.ran("report", "two")
    scene.world.clock.advance(60 * minutes)
    run = RUN.changed(**({"execution_id": loaded, "ended": None} | named))
    everything = await scene.settle(held, outcome, run)
    is_noticed = minutes or "window" in reason
    assert reasons(everything) == ([reason.format(loaded)] if is_noticed else [])


async def test_skip_before_an_instant_is_noticed() -> None:
    """The wait ended while it was not known whether the job would run."""
    scene = Scene()
    await scene.world.define({"name": "load", "function": "f", "schedule": "0 * * * *"})
    await scene.world.define({"name": "report", "function": "f", "depends_on": [{"job": "load", "within": "2h"}]})
    scene.world.clock.advance(3_700)
    held = await scene.ran("report", "two")
    everything = await scene.settle(held, "dependency_missing", RUN.changed(execution_id=None, ended=None))
    assert "I6" not in broken(everything)
    state, _ = await LedgerReader(scene.world.log).load("load")
    [due] = ledger.decide_instants(state, BEGIN + timedelta(hours=1))
    await scene.world.given(due)
    await work(scene.world)
    [reason] = reasons(await StoredEvents.of(scene.world.log))
    assert reason.startswith("its wait ended before run")


async def test_skip_before_a_late_definition_is_right() -> None:
    """A definition holds from its request on. If it is decided late, no stage knew of its past instants."""
    scene = Scene()
    await scene.world.define({"name": "report", "function": "f", "depends_on": [{"job": "load", "within": "2h"}]})
    scene.world.clock.advance(3_700)
    held = await scene.ran("report", "two")
    await scene.settle(held, "dependency_missing", RUN.changed(execution_id=None, ended=None))
    load = JobDefinition(name="load", function="f", schedule="0 * * * *")
    await scene.world.given(Defined(job="load", definition=load, since=BEGIN))
    state, _ = await LedgerReader(scene.world.log).load("load")
    [due] = ledger.decide_instants(state, BEGIN + timedelta(hours=1))
    await scene.world.given(due)
    await work(scene.world)
    assert not reasons(await StoredEvents.of(scene.world.log))


async def test_run_of_before_is_not_judged() -> None:
    """A definition that is read after the log proves nothing about the runs before."""
    scene = await begun()
    loaded = await scene.ran("load", "one")
    held = await scene.ran("report", "two")
    everything = await scene.settle(held, "met", RUN.changed(execution_id=loaded))
    of_log = [recorded for recorded in everything.in_order if not recorded.subject.startswith("ledger.")]
    of_ledger = [recorded for recorded in everything.in_order if recorded.subject.startswith("ledger.")]
    found = audit([*of_log, *of_ledger], key=KEY).violations
    assert [violation.reason for violation in found if violation.invariant == "I6"] == []


async def test_skip_without_its_decision_is_noticed() -> None:
    everything = await waited(outcome="dependency_failed", run=FAILED)
    assert "I6" in broken(without(DependenciesSettled)(everything))
    assert "I6" in broken(other(Skipped, reason="dependency_missing")(everything))
    assert "I6" in broken(other(DependenciesSettled, runs=(RUN,))(everything))


async def test_end_of_a_wait_is_owed_later() -> None:
    world = World()
    await world.define(
        {"name": "report", "function": "f", "depends_on": [{"job": "load", "within": "1h"}], "dependency_timeout": "1h"}
    )
    await world.trigger("report", "two")
    await work(world)
    [debt] = (await StoredEvents.of(world.log)).audited().debts
    [planned] = await world.recorded(Planned)
    assert debt.since == planned.time + timedelta(hours=1)


HIDDEN = DependencyRun(job="load", since=BEGIN - timedelta(hours=1), hidden=True)


@pytest.mark.parametrize(
    ("viewers", "outcome", "run", "expected"),
    [
        (["user:ada"], "dependency_missing", HIDDEN, []),
        ([], "dependency_missing", HIDDEN, ["it says that load is hidden, which never named viewers"]),
        (["user:ada"], "met", HIDDEN, ["the last run of load had not completed"]),
        (
            ["user:ada"],
            "dependency_missing",
            HIDDEN.changed(execution_id="r"),
            ["it names a run of load, which is hidden from its job"],
        ),
    ],
    ids=["hidden", "not-hidden", "met", "named"],
)
async def test_wait_for_a_hidden_job_is_judged(
    viewers: list[str], outcome: str, run: DependencyRun, expected: list[str]
) -> None:
    scene = await begun()
    await scene.ran("load", "one")
    await scene.world.define({"name": "load", "function": "f", "viewers": viewers})
    held = await scene.ran("report", "two")
    scene.world.clock.advance(60)
    everything = await scene.settle(held, outcome, run)
    scene.world.clock.advance(60)
    await scene.ran("load", "three")  # what is after the wait shows that no definition is missing
    everything = await StoredEvents.of(scene.world.log)
    assert reasons(everything) == expected
