"""The answers for unknown paths."""

import pytest

from tests.http.conftest import World

ALL = "/v1/openapi.json lists every path"


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("/v1/job", "did you mean /v1/jobs?"),
        ("/jobs", "did you mean /v1/jobs?"),
        ("/v1/jobs/", "did you mean /v1/jobs?"),
        ("/api/v1/jobs", "did you mean /v1/jobs?"),
        ("/v1/jobs/nightly/puase", "did you mean /v1/jobs/nightly/pause?"),
        ("/v1/deadletters", "did you mean /v1/dead-letters?"),
        ("/favicon.ico", ALL),
        (f"/{'v' * 5_000}", ALL),
    ],
)
async def test_unknown_path_suggests_the_nearest(asked: str, hint: str, world: World) -> None:
    answer = await world.ask("GET", asked)
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (404, "urn:tocsin:problem:not-found")
    assert problem["detail"].startswith('nothing is served at "/')
    assert problem["detail"].endswith(f": {hint}")


async def test_unknown_ojs_path_has_the_ojs_shape(world: World) -> None:
    answer = await world.ask("GET", "/ojs/v1/job")
    error = answer.json()["error"]
    text = 'nothing is served at "/ojs/v1/job": did you mean /ojs/v1/jobs?'
    assert (answer.status_code, error["code"], error["message"]) == (404, "not_found", text)
