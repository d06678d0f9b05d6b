"""Extreme numbers, cursors and times are refused with 4xx by every endpoint that takes one."""

import json
from base64 import urlsafe_b64encode
from typing import Any, Final, get_args
from urllib.parse import quote

import pytest

from tests.http.conftest import World
from tocsin.ports.queries import DeadLetterSort, ExecutionSort

TIMES: Final = (
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "0001-01-01",
    "9999-12-31T23:59:59",
)
VALUES: Final = (
    *TIMES,
    str(10**40),
    str(-(10**40)),
    "1e400",
    "-1",
    "nan",
    "inf",
    "9" * 5_000,
    "999999999999999999.999999999999999999",
    "18446744073709551616",
    "253402300800",
    "\x00",
)
ENDLESS: Final = "streamEvents"


@pytest.mark.timeout(480)  # every parameter of every endpoint
async def test_parameters_of_every_endpoint(world: World) -> None:
    await world.given()
    answer = await world.ask("POST", "/v1/jobs/job/trigger", {})
    filled = {"id": answer.json()["execution_id"], "name": "job"}
    played = 0
    for path, operations in world.app().openapi()["paths"].items():
        for method, operation in operations.items():
            parameters = operation.get("parameters", [])
            for parameter in parameters if operation["operationId"] != ENDLESS else ():
                for value in VALUES:
                    await _play(world, method.upper(), path, parameters, parameter, value, filled)
                    played += 1
    assert played > 1_000


async def _play(
    world: World,
    method: str,
    path: str,
    parameters: list[dict[str, Any]],
    parameter: dict[str, Any],
    value: str,
    filled: dict[str, str],
) -> None:
    name, place = parameter["name"], parameter["in"]
    for other in parameters:
        if other["in"] == "path":
            text = value if other is parameter else filled.get(other["name"], "1")
            path = path.replace(f"{{{other['name']}}}", quote(text, safe=""))
    options: dict[str, Any] = {}
    if place == "query":
        options["params"] = {name: value}
    elif place == "header":
        if not value.isprintable():
            return
        options["headers"] = {name: value}
    answer = await world.client.request(method, path, **options)
    assert answer.status_code < 500, (method, path[:100], name, value[:40], answer.text)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("path", ["/v1/executions?since=", "/v1/dead-letters?until=", "/v1/stats?since="])
async def test_time_beyond_the_calendar_is_explained(path: str, time: str, world: World) -> None:
    answer = await world.ask("GET", path + quote(time))
    if answer.status_code != 200:  # times without an offset are accepted by some
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] in {"since", "until"}
    else:
        assert time in TIMES[2:]


@pytest.mark.parametrize("time", TIMES[:2])
@pytest.mark.parametrize("field", ["delay_until", "scheduled_at", "expires_at"])
async def test_time_of_a_pushed_job_is_checked(field: str, time: str, world: World) -> None:
    for body in ({"options": {field: time}}, {field: time}):
        answer = await world.ask("POST", "/ojs/v1/jobs", {"type": "t", "args": [], **body})
        assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("time", TIMES)
async def test_time_of_a_backfill_is_checked(time: str, world: World) -> None:
    await world.given()
    for body in ({"start": time}, {"start": "2020-01-01T00:00:00Z", "end": time}):
        answer = await world.ask("POST", "/v1/jobs/job/backfill", {**body, "dry_run": True})
        assert 400 <= answer.status_code < 500, answer.text


@pytest.mark.parametrize("number", [10**40, -(10**40), 1e308, 0, -1])
async def test_numbers_in_bodies_are_checked(number: float, world: World) -> None:
    job = {"schedule": "@daily", "function": "f"}
    bodies: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/v1/explain", {"schedule": "@daily", "count": number}),
        ("POST", "/v1/jobs:apply", {"jobs": [], "days": number, "dry_run": True}),
        ("PUT", "/v1/jobs/job", {**job, "timeout": number}),
        ("PUT", "/v1/jobs/job", {**job, "retry": {"max_attempts": number}}),
        ("POST", "/ojs/v1/workers/fetch", {"queues": ["default"], "worker_id": "w", "count": number}),
    ]
    for method, path, body in bodies:
        answer = await world.ask(method, path, body)
        assert answer.status_code < 500, (path, body, answer.text)


KEYS: Final = (10**40, -(10**40), 2**63, -(2**63) - 1, 2**53, 253_402_300_800_000_000, 253_402_300_799_999_999, 0, -1)
"""Keys of cursors: far beyond the calendar, beyond 64 bits, and at the edges."""


async def test_forged_cursor_is_refused_or_read(world: World) -> None:
    lists = [
        *((f"/v1/executions?sort={sort}&", sort) for sort in get_args(ExecutionSort)),
        *((f"/v1/dead-letters?sort={sort}&", sort) for sort in get_args(DeadLetterSort)),
        ("/ojs/v1/dead-letter?", "newest"),
        ("/ojs/v1/dead-letter?queue=a&", "newest"),
    ]
    for path, sort in lists:
        for key, id in [*((key, "x") for key in KEYS), (0, ""), (0, "\x00"), (0, "x" * 1_000)]:  # noqa: A001 - the field's name
            cursor = urlsafe_b64encode(json.dumps([sort, key, id]).encode()).decode()
            answer = await world.ask("GET", f"{path}cursor={cursor}")
            is_beyond = abs(key) >= KEYS[5] or id == "\x00"
            assert answer.status_code == ((400 if "ojs" in path else 422) if is_beyond else 200), answer.text


async def test_text_that_is_no_cursor_is_named(world: World) -> None:
    for path in ("/v1/executions", "/v1/dead-letters", "/ojs/v1/dead-letter"):
        for cursor in (str(10**40), "", "%00", "a", "=", "W10", "%F0%9F%98%80", "9" * 5_000):
            answer = await world.ask("GET", f"{path}?cursor={cursor}")
            problem = answer.json()
            assert answer.status_code == (400 if path.startswith("/ojs") else 422), answer.text
            errors = problem["error"]["details"]["errors"] if "error" in problem else problem["errors"]
            assert [error["field"] for error in errors] == ["cursor"]
