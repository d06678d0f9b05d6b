"""A decision that is too large for one commit goes on in the next."""

from datetime import datetime
from typing import Any

import msgspec
import pytest

from tests.commits.processes import Installation, Process, Runner
from tests.commits.test_decide_again import differences
from tests.commits.test_memory import Work
from tests.domain.given import NOON
from tocsin import subjects
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Admitted,
    Advanced,
    Cancelled,
    CancelRequest,
    Completed,
    CronTriggered,
    DeadLettered,
    Defined,
    Dispatched,
    Due,
    PoisonMessage,
    Recorded,
    Replayed,
    Shard,
    ShardsDefined,
    unfold,
)
from tocsin.domain.ids import occurrence_id
from tocsin.engine import decider
from tocsin.engine import fan_out as fan_out_module
from tocsin.engine.decider import PART_EVENTS
from tocsin.engine.kinds import execution_state
from tocsin.engine.stage import BoundStage, BoundSubscription
from tocsin.engine.step import Events, States, Step, again
from tocsin.subjects import Stream

SHARDS = 1_000
JOB: dict[str, Any] = {"name": "wide", "function": "f", "partition": "all_shards", "schedule": "0 * * * *"}


async def fan_out(installation: Installation, shards: int = SHARDS) -> None:
    """Store an instant of a job with an execution on each of many shards."""
    await installation.store(ShardsDefined(shards=tuple(Shard(shard_id=f"s{n:04}") for n in range(shards))))
    await installation.store(Defined(job="wide", definition=JobDefinition.model_validate(JOB)))
    await installation.store(Due(job="wide", scheduled_time=NOON, definition=2, shards=1))


async def decided(installation: Installation, kind: type[Any]) -> list[Any]:
    return [recorded.message for recorded in unfold(await installation.events()) if isinstance(recorded.message, kind)]


async def assert_complete(installation: Installation) -> None:
    admitted = await decided(installation, Admitted)
    counts = [event.data.run_count for event in await decided(installation, CronTriggered)]
    assert len({each.execution_id for each in admitted}) == len(admitted) == SHARDS
    assert counts == list(range(1, SHARDS + 1))
    assert await decided(installation, PoisonMessage) == []


async def test_wide_fan_out_takes_several_commits() -> None:
    installation = Installation()
    await fan_out(installation)
    await installation.process(["planner"]).run()
    await assert_complete(installation)
    commits = await installation.commits()
    assert len(commits) > 6
    assert not differences(installation, commits)


async def test_fan_out_of_large_plans_takes_several_commits() -> None:
    installation = Installation()
    await installation.store(ShardsDefined(shards=tuple(Shard(shard_id=f"s{n}") for n in range(32))))
    definition = JobDefinition.model_validate(JOB | {"input": {"a": "x" * 60_000}})
    await installation.store(Defined(job="wide", definition=definition))
    await installation.store(Due(job="wide", scheduled_time=NOON, definition=2, shards=1))
    await installation.process(["planner"]).run()
    assert len({each.execution_id for each in await decided(installation, Admitted)}) == 32
    assert await decided(installation, PoisonMessage) == []


async def test_fresh_processes_go_on_with_a_decision() -> None:
    installation = Installation()
    await fan_out(installation)
    await Runner(installation, [["planner"]], restarts=True).run()
    await assert_complete(installation)


async def test_refused_part_is_decided_again() -> None:
    installation = Installation()
    await fan_out(installation)
    process = installation.process(["planner"])
    await process.read_on()
    await process.loop.run_once()
    other = Defined(job="other", definition=JobDefinition(name="other", function="f"))
    await installation.store(other)  # the next part is refused
    await process.run()
    await assert_complete(installation)


@pytest.mark.parametrize("size", [1, 1_200])
async def test_wide_graph_is_dispatched_in_parts(size: int) -> None:
    work = Work()
    steps = [
        {"name": f"s{n:03}", "function": "f", "depends_on": ["root"], "input": {"a": "x" * size}} for n in range(400)
    ]
    await work.define("wide", dag=[{"name": "root", "function": "f"}, *steps])
    await work.trigger("wide", "m")
    await work.finish()
    events = [one.message for one in unfold(await work.installation.events())]
    assert len({event.step for event in events if isinstance(event, Dispatched)}) == 401
    assert [event.type for event in events if isinstance(event, Completed | PoisonMessage)] == ["completed"]


async def test_large_results_are_passed_on_and_adopted() -> None:
    """Nine results are more than one task, and one commit, may have."""
    work = Work()
    names = [f"s{n}" for n in range(9)]
    last = {"name": "last", "function": "f", "depends_on": names}
    await work.define("wide", dag=[*({"name": name, "function": "f"} for name in names), last], dead_letter=True)
    await work.trigger("wide", "m")
    while reports := await work.claim():
        for report in reports:
            large = msgspec.structs.replace(report, result="x" * 65_000)
            await work.report(report if report.step == "last" else large, fails=report.step == "last")
    [letter] = await decided(work.installation, DeadLettered)
    await work.installation.store(Replayed(job="wide", id=letter.id, number=1, failed_only=True, ledger=2))
    await work.runner.run()
    adopted = [event.step for event in await decided(work.installation, Advanced) if event.adopted_from]
    assert sorted(adopted) == names
    tasks = [event for event in await decided(work.installation, Dispatched) if event.step == "last"]
    assert [len(task.upstream) for task in tasks] == [6, 6]
    commits = await work.installation.commits()
    assert not [event for commit in commits for event in commit.events if event.subject == "log.poison"]


async def test_long_reason_cancels_each_shard() -> None:
    installation = Installation()
    await fan_out(installation, 100)
    process = installation.process(["planner", "dag_advancer"])
    await process.run()
    request = CancelRequest(reason="x" * 100_000)
    installation.publish(Stream.REQUESTS, request, subjects.cancel("wide", occurrence_id("wide", NOON)), "c")
    await process.run()
    assert len(await decided(installation, Cancelled)) == 100
    assert await decided(installation, PoisonMessage) == []


async def test_each_of_many_shards_may_fill_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan_out_module, "BYTES_AT_ONCE", 1)
    monkeypatch.setattr(decider, "PART_BYTES", 1)
    installation = Installation()
    await fan_out(installation, 120)
    await installation.process(["planner"]).run()
    assert len(await decided(installation, Admitted)) == 120
    assert await decided(installation, PoisonMessage) == []


async def test_decision_without_an_end_is_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decider, "MAX_PARTS", 10)
    installation = Installation()

    def decide(_: Recorded[Any], states: States, __: datetime) -> Step:
        ref = execution_state("wide", occurrence_id("wide", NOON))
        skipped = Due(job="wide", scheduled_time=NOON, definition=states.at(ref))
        return again(Events(ref, (skipped,) * 200))

    stage = BoundStage("planner", (BoundSubscription("planner", Stream.LEDGER, ("ledger.*.defined",), decide),))
    await installation.store(Defined(job="wide", definition=JobDefinition(name="wide", function="f")))
    process = Process(installation, ["planner"], stages=[stage])
    await process.run()
    commits = await installation.commits()
    assert any(event.subject == "log.poison" for event in commits[-1].events)
    assert len(commits) <= decider.MAX_PARTS + 2
    assert all(len(commit.events) <= PART_EVENTS + 200 for commit in commits)
