"""Requests made of the OpenAPI document: none is answered with a failure of ours, or with what the document does not say."""

import asyncio
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.domain.given import admitted
from tests.http.conftest import World
from tocsin.adapters.http.app import openapi
from tocsin.adapters.http.listening import listen, url_of
from tocsin.adapters.http.server import answering
from tocsin.adapters.sql import open_history
from tocsin.settings import Server

RUN = "11111111-1111-7111-8111-111111111111"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SCHEDULES = ("@daily", "*/5 * * * *", "every weekday at 7am")

DOCUMENT = schemathesis.openapi.from_dict(openapi("0"))
ENDPOINTS = [
    (path, method)
    for path, methods in openapi("0")["paths"].items()
    for method in methods
    if path != "/v1/events"  # its answer has no end
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An API on a socket, with a job and an execution, in a thread of its own: the tests' requests block theirs."""
    folder = tmp_path_factory.mktemp("api")
    listener = listen("127.0.0.1", 0)
    loop = asyncio.new_event_loop()
    ended, ready = asyncio.Event(), Event()

    async def serve() -> None:
        async with open_history(f"sqlite:///{folder}/history.db") as history:
            world = World(folder, history)
            await world.given(name="job", function="a.b")
            await world.log.append(admitted().model_copy(update={"job": "job", "execution_id": RUN}), expect=0)
            async with answering(world.app(), listener, Server()):
                ready.set()
                await ended.wait()

    thread = Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    yield url_of(listener)
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    loop.close()


@pytest.mark.parametrize(("path", "method"), ENDPOINTS)
def test_every_answer_is_one_that_the_document_describes(url: str, path: str, method: str) -> None:
    @given(case=DOCUMENT[path][method.upper()].as_strategy())
    @settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def ask(case: Any) -> None:  # noqa: ANN401 - schemathesis' own
        """Half of the requests are about what there is, so that they get further than to a 404."""
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
