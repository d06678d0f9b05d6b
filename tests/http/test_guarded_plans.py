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
