"""Waits for other jobs: the audit judges their ends by the definition, and notices what is planted."""

from datetime import timedelta

import pytest

from tests.domain.given import NOON
from tests.services.audit.test_defects import Defect, other, without, work
from tests.stages.world import World
from tests.stored_events import StoredEvents
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.events import DependenciesSettled, DependencyRun, Planned, Skipped

RUN = DependencyRun(job="load", since=NOON, execution_id="r", ended="completed")
FAILED = RUN.model_copy(update={"ended": "failed"})


def broken(everything: StoredEvents) -> set[str]:
    """The invariants that a log breaks."""
    return {violation.invariant for violation in everything.audited().violations}


async def waited(*, outcome: str = "met", run: DependencyRun | None = RUN) -> StoredEvents:
    """The log of a job that waited for another."""
    world = World()
    await world.define({"name": "load", "function": "f"})
    await world.define({"name": "report", "function": "f", "depends_on": [{"job": "load", "within": "1h"}]})
    await world.trigger("load", "one")
    await work(world)
    await world.trigger("report", "two")
    await work(world)
    [planned] = await world.stored(Planned)
    state = execution.fold(await world.log.load(subjects.execution("report", planned.execution_id)))
    await world.given(*execution.settle(state, outcome, () if run is None else (run,)))  # type: ignore[arg-type]
    await work(world)
    return await StoredEvents.of(world.log)


@pytest.mark.parametrize(
    ("outcome", "run"),
    [
        ("met", RUN),
        ("dependency_failed", FAILED),
        ("dependency_missing", RUN.model_copy(update={"ended": None})),
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
        ("I6", other(DependenciesSettled, runs=(RUN.model_copy(update={"job": "other"}),))),
        ("I6", other(DependenciesSettled, outcome="dependency_missing")),
        ("I6", other(DependenciesSettled, outcome="queue_full")),
    ],
)
async def test_defect_of_a_wait_is_noticed(invariant: str, defect: Defect) -> None:
    assert invariant in broken(defect(await waited()))


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
