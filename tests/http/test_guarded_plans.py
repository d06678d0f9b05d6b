"""Plans that are carried out only as they were planned, over HTTP."""

from dataclasses import replace
from typing import Any

import pytest

from tests.http.conftest import World
from tocsin.adapters.http.api_client import ApiClient
from tocsin.adapters.http.client import HttpOperator
from tocsin.domain.definition import JobDefinition
from tocsin.ports import SequenceConflict


def job(schedule: str, **more: Any) -> JobDefinition:  # noqa: ANN401 - fields of a job
    return JobDefinition(name="nightly", schedule=schedule, function="f", timezone="UTC", **more)


@pytest.mark.parametrize("first", [None, "@weekly"])
async def test_outdated_plan_changes_nothing(world: World, first: str | None) -> None:
    operator = HttpOperator(ApiClient(world.client), world.clock)
    if first is not None:
        await world.registry.apply([job(first)])
    plan = replace(await operator.plan([job("@daily")]), is_guarded=True)
    same = replace(await operator.plan([job("@hourly")]), is_guarded=True)
    await operator.carry_out(same)
    with pytest.raises(SequenceConflict):
        await operator.carry_out(plan)
    await operator.carry_out(same)  # another copy of the program made the change
    assert (await operator.job("nightly")).definition.schedule == "@hourly"
    await operator.carry_out(replace(await operator.plan([job("@daily")]), is_guarded=True))
    assert (await operator.job("nightly")).definition.schedule == "@daily"


async def test_guarded_deletion_leaves_a_newer_definition(world: World) -> None:
    operator = HttpOperator(ApiClient(world.client), world.clock)
    await world.registry.apply([job("@weekly", owner="app:billing")])
    plan = replace(await operator.plan([], prune=("app:billing",)), is_guarded=True)
    assert [change.verb for change in plan.changes] == ["delete"]
    await world.registry.apply([job("@daily", owner="app:billing")])  # a newer version of the application
    with pytest.raises(SequenceConflict, match="was changed since this change was planned"):
        await operator.carry_out(plan)
    assert (await operator.job("nightly")).definition.schedule == "@daily"

    again = replace(await operator.plan([], prune=("app:billing",)), is_guarded=True)
    for _ in range(2):  # another copy of the program deletes it, too
        await operator.carry_out(again)
    assert await operator.jobs() == ()
