"""`POST /v1/what-if`: the caller's own jobs alone, nothing registered, and errors that name the field."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.http.conftest import LOCAL, World
from tocsin.adapters.http.api.app import api
from tocsin.adapters.http.auth.authentication import Authentication
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.domain.access import Role
from tocsin.services import what_if

NIGHTLY = {"name": "job", "schedule": "0 3 * * *", "function": "f"}
WEEK = "2026-01-08T00:00:00Z"


async def forecast(world: World, token: str | None = None, **fields: object) -> dict[str, Any]:
    """Return the forecast of a week, under other definitions."""
    body = {"until": WEEK, **fields}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = await world.ask("POST", "/v1/what-if", body, **headers)
    assert answer.status_code == 200, answer.text
    report: dict[str, Any] = answer.json()
    return report


async def test_forecast_compares_with_the_registered_definition(world: World) -> None:
    await world.given()
    report = await forecast(world, jobs=[{**NIGHTLY, "schedule": "0 3,4 * * *"}])
    [job] = report["jobs"]
    assert (report["is_forecast"], report["before"]["fired"], report["after"]["fired"]) == (True, 7, 14)
    assert (job["came"]["count"], job["went"]["count"], job["tried"]) == (7, 0, True)
    assert job["came"]["first"][0] == "2026-01-01T04:00:00Z"


async def test_question_registers_and_stores_nothing(world: World) -> None:
    await world.given()
    before = len(await world.facts("ledger.>"))
    await forecast(world, jobs=[{**NIGHTLY, "schedule": "0 4 * * *"}, {**NIGHTLY, "name": "other"}])
    assert [job.name for job in await world.registry.jobs()] == ["job"]
    assert len(await world.facts("ledger.>")) == before


async def test_hidden_job_has_no_past_and_no_slots(world: World) -> None:
    await world.given(name="open")
    await world.given(name="job", viewers=["token:ada"])
    ada, eve = await world.token("ada", Role.VIEWER), await world.token("eve", Role.VIEWER)
    seen, hidden = [await forecast(world, token, jobs=[NIGHTLY]) for token in (ada, eve)]
    assert (seen["before"]["fired"], hidden["before"]["fired"]) == (7, 0)
    shared = [await forecast(world, token, capacity={"default": 1}) for token in (ada, eve)]
    assert [[job["job"] for job in report["jobs"]] for report in shared] == [["job", "open"], ["open"]]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"since": "2025-01-01T00:00:00Z"}, "since"),
        ({"since": "2025-12-31T00:00:00"}, "since"),
        ({"since": "2025-12-31T00:00:00Z", "until": WEEK}, "until"),
        ({"capacity": {"default": -1}}, "capacity.default"),
        ({"capacity": {"a b": 1}}, "capacity"),
        ({"jobs": []}, "jobs"),
    ],
)
async def test_error_names_the_field(world: World, body: dict[str, Any], field: str) -> None:
    await world.given()
    answer = await world.ask("POST", "/v1/what-if", {"jobs": [NIGHTLY], **body})
    assert answer.status_code == 422
    assert answer.json()["type"].endswith("invalid-request")
    assert answer.json()["errors"][0]["field"] == field


async def test_too_many_instants_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "MAX_INSTANTS", 1_000)
    rule = {**NIGHTLY, "schedule": "* * * * * *"}
    answer = await world.ask("POST", "/v1/what-if", {"jobs": [rule], "until": WEEK})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "since")
    assert "1,000 instants" in answer.json()["errors"][0]["right"]


async def test_invalid_definition_is_refused(world: World) -> None:
    answer = await world.ask("POST", "/v1/what-if", {"jobs": [{**NIGHTLY, "schedule": "61 * * * *"}]})
    assert answer.status_code == 422
    assert answer.json()["type"].endswith("invalid-definition")


async def test_replays_of_two_teams_take_turns(world: World) -> None:
    parts = world.parts()
    authentication = Authentication(Tokens(parts.projections, parts.clock), None, parts.clock)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(api(parts, authentication, world.rate)), base_url=LOCAL)
    ours, others = [await world.token(name, Role.VIEWER, namespaces=(name,)) for name in ("a", "b")]

    async def ask(token: str) -> httpx.Response:
        body = {"until": WEEK, "jobs": [{**NIGHTLY, "queue": "q"}]}
        return await client.post("/v1/what-if", json=body, headers={"Authorization": f"Bearer {token}"})

    async with parts.what_ifs.turn("@a"):
        waiting = [asyncio.create_task(ask(ours)) for _ in range(5)]
        assert (await ask(others)).status_code == 200
        assert not any(task.done() for task in waiting)
    assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
