"""`/v1/policy`: one event for each change, versions, and the limits that requests obey."""

import pytest

from tests.http.conftest import World
from tocsin.domain.events import PolicyDefined

UNSET = dict.fromkeys(("max_concurrent_jobs", "job_timeout", "job_history_retention_days", "enable_job_history"))


async def facts(world: World) -> list[PolicyDefined]:
    return [fact.message for fact in await world.facts("policy.>") if isinstance(fact.message, PolicyDefined)]


async def given(world: World, **fields: object) -> None:
    answer = await world.ask("PUT", "/v1/policy", fields)
    assert answer.status_code == 200, answer.text


async def test_put_defines_the_whole_policy(world: World) -> None:
    assert (await world.ask("GET", "/v1/policy")).json()["policy"] == UNSET
    await given(world, job_timeout="30m", max_concurrent_jobs=5, reason="small machines")
    answer = await world.ask("GET", "/v1/policy")
    assert answer.json()["policy"] == UNSET | {"job_timeout": 1_800.0, "max_concurrent_jobs": 5}
    assert (answer.headers["ETag"], answer.json()["reason"]) == (f'"{answer.json()["version"]}"', "small machines")
    await given(world, max_concurrent_jobs=5)
    assert (await world.ask("GET", "/v1/policy")).json()["policy"] == UNSET | {"max_concurrent_jobs": 5}
    first, second = await facts(world)
    assert (first.reason, second.previous) == ("small machines", answer.json()["version"])
    assert first.by is not None


async def test_same_policy_is_stored_once(world: World) -> None:
    await given(world, enable_job_history=True)
    answer = (await world.ask("PUT", "/v1/policy", {"enable_job_history": True, "polling_interval": "10s"})).json()
    assert (answer["changed"], list(answer["unused"])) == (False, ["polling_interval"])
    assert len(await facts(world)) == 1


async def test_change_of_another_version_is_refused(world: World) -> None:
    await given(world, job_timeout=60)
    answer = await world.ask("PUT", "/v1/policy", {"job_timeout": 61}, **{"If-Match": '"0"'})
    assert (answer.status_code, answer.json()["type"]) == (412, "urn:tocsin:problem:precondition-failed")
    tag = answer.headers["ETag"]
    assert (await world.ask("PUT", "/v1/policy", {"job_timeout": 61}, **{"If-Match": tag})).status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_concurrent_jobs": 0}, "max_concurrent_jobs"),
        ({"max_concurrent_jobs": True}, "max_concurrent_jobs"),
        ({"job_timeout": "0s"}, "job_timeout"),
        ({"job_history_retention_days": 1.5}, "job_history_retention_days"),
        ({"enable_job_history": "no"}, "enable_job_history"),
        ({"job_timeouts": 5}, "job_timeouts"),
    ],
)
async def test_wrong_policy_is_refused(world: World, body: dict[str, object], field: str) -> None:
    answer = await world.ask("PUT", "/v1/policy", body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["field"] == field
    assert await facts(world) == []


LONG = {"timeout": "2h"}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/jobs", {"name": "a", "function": "f", **LONG}),
        ("PUT", "/v1/jobs/a", {"function": "f", **LONG}),
        ("POST", "/v1/jobs:apply", {"jobs": [{"name": "a", "function": "f", **LONG}]}),
        ("POST", "/v1/jobs:apply", {"jobs": [{"name": "a", "function": "f", **LONG}], "dry_run": True}),
        ("POST", "/v1/sql", {"sql": "CREATE JOB a SCHEDULE = '@daily' TIMEOUT = 2h FUNCTION 'f'"}),
    ],
)
async def test_longer_timeout_is_refused(world: World, method: str, path: str, body: dict[str, object]) -> None:
    await given(world, job_timeout="1h")
    answer = await world.ask(method, path, body)
    assert answer.status_code == 422, answer.text
    assert "above the ceiling of 1h" in answer.json()["detail"]
    [error] = answer.json()["errors"]
    assert (error["field"], error["value"]) == ("timeout", "2h")
    assert await world.facts("ledger.>") == []


@pytest.mark.parametrize(
    ("method", "path", "body", "otherwise"),
    [
        ("POST", "/v1/jobs", {"name": "a", "function": "f"}, 300.0),
        ("POST", "/v1/jobs:apply", {"jobs": [{"name": "a", "function": "f"}]}, 300.0),
        ("POST", "/ojs/v1/cron", {"name": "a", "cron": "@daily", "type": "f"}, 300.0),
        ("POST", "/v1/sql", {"sql": "CREATE JOB a SCHEDULE = '@daily' FUNCTION 'f'"}, 3_600.0),
    ],
)
@pytest.mark.parametrize("job_timeout", [None, 600.0])
async def test_policy_is_the_default_timeout(
    world: World, method: str, path: str, body: dict[str, object], otherwise: float, job_timeout: float | None
) -> None:
    if job_timeout is not None:
        await given(world, job_timeout=job_timeout)
    answer = await world.ask(method, path, body)
    assert answer.status_code in {200, 201}, answer.text
    job = (await world.ask("GET", "/v1/jobs/a")).json()
    assert job["definition"]["timeout"] == (job_timeout or otherwise)


async def test_registered_job_keeps_its_timeout_until_changed(world: World) -> None:
    await world.given(name="a", function="f", timeout=7_200.0)
    await given(world, job_timeout="1h")
    assert (await world.ask("POST", "/v1/jobs/a/pause")).status_code == 200
    assert (await world.ask("POST", "/v1/jobs/a/trigger")).status_code == 202
    for sql, status in (("DESCRIPTION = 'd'", 422), ("TIMEOUT = 30m", 200)):
        answer = await world.ask("POST", "/v1/sql", {"sql": f"ALTER JOB a SET {sql}"})
        assert answer.status_code == status, answer.text


async def test_pushed_job_obeys_the_ceiling(world: World) -> None:
    await given(world, job_timeout="1h")
    answer = await world.ask("POST", "/ojs/v1/jobs", {"type": "a.b", "args": [], "timeout": 3_601})
    assert (answer.status_code, "at most 1h" in answer.text) == (400, True), answer.text
