"""Generated requests: every answer is one that the OpenAPI document describes."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.domain.given import admitted
from tests.http.conftest import World
from tests.http.served import served
from tests.properties import examples
from tocsin.adapters.http.api.app import openapi
from tocsin.adapters.http.ojs import workers
from tocsin.adapters.http.ojs.workers import DIRECT

RUN = "11111111-1111-7111-8111-111111111111"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SCHEDULES = ("@daily", "*/5 * * * *", "every weekday at 7am")

API = openapi("0")
DOCUMENT = schemathesis.openapi.from_dict(API)
ENDPOINTS = [
    (path, method)
    for path, methods in API["paths"].items()
    for method in methods
    if path
    not in {
        "/v1/events",  # its answer has no end
        "/ojs/v1/queues/{name}",  # its answer waits for a recorder, which does not run here
        "/ojs/v1/queues/{name}/stats",
    }
]


async def prepare(world: World) -> None:
    """A job and an execution."""
    await world.given(name="job", function="a.b")
    await world.log.append(admitted().changed(job="job", execution_id=RUN), expect=0)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("api"), prepare) as url:
        yield url


@pytest.mark.hypothesis  # its plugin marks a function with `given`, and not one that has such a function within
@pytest.mark.parametrize(("path", "method"), ENDPOINTS)
def test_every_answer_is_one_that_the_document_describes(url: str, path: str, method: str) -> None:
    @given(case=DOCUMENT[path][method.upper()].as_strategy())
    @settings(
        max_examples=examples(15),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:  # noqa: ANN401 - schemathesis' own
        """Send a request; half of them name existing resources, to get past a 404."""
        number = len(str(case.path_parameters) + str(case.body)) % 3
        for name, known in (("name", "job"), ("id", RUN)):
            if number and name in (case.path_parameters or {}):
                case.path_parameters[name] = known
        if isinstance(case.body, dict):
            for field in ("schedule", "cron"):
                if number and isinstance(case.body.get(field), str):
                    case.body[field] = SCHEDULES[number]
        for name in ("Host", "Origin", "Authorization"):
            (case.headers or {}).pop(name, None)
        case.call_and_validate(base_url=url, checks=CHECKS)

    ask()


def test_fast_routes_answer_as_declared() -> None:
    declared = {route.path: route for route in workers.router.routes if isinstance(route, APIRoute)}
    assert {path: route.endpoint for path, route in declared.items()} == DIRECT
    assert {(*(route.methods or ()), route.status_code) for route in declared.values()} == {("POST", None)}
