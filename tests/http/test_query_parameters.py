"""Query parameters that no endpoint knows are rejected, because a filter that is ignored returns too much."""

from typing import Any

import pytest

from tests.http.conftest import World
from tocsin.adapters.http.api import app
from tocsin.adapters.http.api.problems import MAX_REPORTED, parameters
from tocsin.domain.access import Role
from tocsin.settings import Queue, Settings


def errors_of(answer: Any) -> list[dict[str, str]]:  # noqa: ANN401 - JSON
    """The invalid fields of an answer in either shape."""
    errors: list[dict[str, str]] = answer["error"]["details"]["errors"] if "error" in answer else answer["errors"]
    return errors


@pytest.mark.parametrize(
    ("path", "field", "value", "allowed"),
    [
        ("/v1/jobs?limt=1", "limt", '"1"', ["`limit`"]),
        ("/v1/jobs?x", "x", '""', ["`after`", "`details`", "`limit`", "`owner`", "`tag`"]),
        ("/v1/jobs?limit=1&offset=2", "offset", '"2"', []),
        ("/v1/executions?state=failed", "state", '"failed"', []),
        ("/v1/dead-letters?sotr=x", "sotr", '"x"', ["`sort`"]),
        ("/v1/jobs/job?details=1", "details", '"1"', []),
        ("/v1/events?jobs=a", "jobs", '"a"', ["`job`"]),
        ("/v1/events?reset=1", "reset", '"1"', ["`after`", "`job`", "`type`"]),
    ],
)
async def test_unknown_parameter_is_named(path: str, field: str, value: str, allowed: list[str], world: World) -> None:
    await world.given()
    answer = await world.ask("GET", path)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:tocsin:problem:invalid-request")
    [error] = errors_of(answer.json())
    assert (error["field"], error["value"]) == (field, value)
    assert [name for name in allowed if name not in error["right"]] == []


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/ojs/v1/cron?enabld=true", "enabld"),
        ("GET", "/ojs/v1/queues?page=x", "page"),
        ("GET", "/ojs/v1/events?type=a", "type"),
        ("POST", "/ojs/v1/workers/fetch?queue=a", "queue"),
        ("POST", "/ojs/v1/workers/heartbeat?worker_id=a", "worker_id"),
        ("DELETE", "/ojs/v1/cron/none?force=1", "force"),
    ],
)
async def test_unknown_parameter_of_ojs_is_400(method: str, path: str, field: str, world: World) -> None:
    answer = await world.ask(method, path, {"queues": ["default"], "wait_ms": 0} if method == "POST" else None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert [error["field"] for error in errors_of(answer.json())] == [field]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/jobs?limt=1&limit=0", {"limt": '"1"', "limit": '"0"'}),
        ("/v1/jobs?limit=many&details=perhaps&x=1", {"x": '"1"', "limit": '"many"', "details": '"perhaps"'}),
        (
            "/v1/executions?state=failed&limit=0&status=failing",
            {"state": '"failed"', "limit": '"0"', "status": '"failing"'},
        ),
        ("/v1/executions?limit=5&stat=x", {"stat": '"x"'}),
        ("/v1/events?jobs=a&type=defined&type=due", {"jobs": '"a"'}),
        ("/v1/stats?snce=1d&since=soon", {"snce": '"1d"', "since": '"soon"'}),
        ("/ojs/v1/queues?page=x&limit=-1", {"page": '"x"', "limit": '"-1"'}),
    ],
)
async def test_unknown_and_invalid_parameters_are_reported_together(
    path: str, fields: dict[str, str], world: World
) -> None:
    answer = await world.ask("GET", path)
    assert answer.status_code in {400, 422}
    assert {error["field"]: error["value"] for error in errors_of(answer.json())} == fields
    assert all(error["right"] for error in errors_of(answer.json()))


async def test_invalid_value_has_the_same_text_alone(world: World) -> None:
    [alone] = errors_of((await world.ask("GET", "/v1/jobs?limit=0")).json())
    [_, beside] = errors_of((await world.ask("GET", "/v1/jobs?limt=1&limit=0")).json())
    assert beside == alone


async def test_rejected_request_has_no_effect(world: World) -> None:
    await world.given()
    for method, path in (("POST", "/v1/jobs/job/trigger"), ("POST", "/v1/jobs/job/pause"), ("DELETE", "/v1/jobs/job")):
        assert (await world.ask(method, f"{path}?dry_run=true")).status_code == 422
    assert await world.facts("trigger.>") == []
    assert (await world.ask("GET", "/v1/jobs/job")).json()["paused"] is False


async def test_number_of_reported_parameters_is_limited(world: World) -> None:
    query = "&".join(f"{'p' * 400}{number}={'v' * 400}" for number in range(60))
    answer = await world.ask("GET", f"/v1/jobs?{query}")
    assert answer.status_code == 422
    assert len(errors_of(answer.json())) == MAX_REPORTED
    assert len(answer.content) < 10_000


async def test_authentication_comes_before_the_query(world: World) -> None:
    token = await world.token("ada", Role.VIEWER)
    assert (await world.ask("GET", "/v1/jobs?x=1")).status_code == 401
    assert (await world.ask("GET", "/v1/jobs?x=1", Authorization=f"Bearer {token}")).status_code == 422
    assert (await world.ask("DELETE", "/v1/jobs/a?x=1", Authorization=f"Bearer {token}")).status_code == 403
    assert (await world.ask("GET", "/v1/health?probe=1")).status_code == 200


async def test_lists_of_ojs_have_pages(world: World) -> None:
    for name in ("a", "b", "c"):
        cron = {"name": name, "cron": "0 3 * * *", "type": "f"}
        assert (await world.ask("POST", "/ojs/v1/cron", cron)).status_code == 201
    page = (await world.ask("GET", "/ojs/v1/cron?limit=1&offset=1")).json()
    assert [cron["name"] for cron in page["crons"]] == ["b"]
    queues = (await world.ask("GET", "/ojs/v1/queues")).json()
    total = queues["pagination"]["total"]
    assert total == len(queues["queues"])
    page = (await world.ask("GET", f"/ojs/v1/queues?limit=1&offset={total}")).json()
    assert (page["queues"], page["pagination"]["has_more"]) == ([], False)
    page = (await world.ask("GET", "/ojs/v1/queues?limit=1")).json()
    assert (page["queues"], page["pagination"]["has_more"]) == (queues["queues"][:1], total > 1)


def test_known_parameters_are_those_of_openapi() -> None:
    paths = app.openapi("0")["paths"]
    documented, known = {}, {}
    for route in app.routes():
        for method in route.methods or ():
            fields = paths[route.path][method.lower()].get("parameters", ())
            documented[method, route.path] = sorted(field["name"] for field in fields if field["in"] == "query")
            known[method, route.path] = list(parameters(route.endpoint))
    assert known == documented
    assert sum(map(bool, known.values())) > 10


async def test_pages_of_queues_end(world: World) -> None:
    world.settings = Settings(queues={name: Queue() for name in "abcde"})
    world.client = world.copy()
    page = (await world.ask("GET", "/ojs/v1/queues?limit=2&offset=2")).json()
    assert [queue["name"] for queue in page["queues"]] == ["c", "d"]
    assert page["pagination"] == {"total": 5, "limit": 2, "offset": 2, "has_more": True, "next_cursor": "d"}
    end = (await world.ask("GET", "/ojs/v1/queues?limit=2&offset=4")).json()
    assert ([queue["name"] for queue in end["queues"]], end["pagination"]["has_more"]) == (["e"], False)
    beyond = (await world.ask("GET", "/ojs/v1/queues?limit=2&offset=1000000")).json()
    assert (beyond["queues"], beyond["pagination"]["has_more"]) == ([], False)
