"""The labels under which the API counts its requests."""

from typing import Any

import pytest

from tests.http.conftest import World
from tocsin.adapters.http.api import app


class Recorded(list[tuple[str, str, int]]):
    """A histogram that keeps the labels of each value."""

    def record(self, _: float, labels: dict[str, Any]) -> None:
        self.append((labels["route"], labels["method"], labels["status"]))


@pytest.mark.parametrize(
    ("method", "path", "labels"),
    [
        ("GET", "/v1/jobs/nightly", ("/v1/jobs/{name}", "GET", 404)),
        ("POST", "/ojs/v1/workers/fetch", ("/ojs/v1/workers/fetch", "POST", 200)),
        ("BREW", "/v1/jobs/nightly", ("/v1/jobs/{name}", "(none)", 405)),
        ("BREW", "/ojs/v1/workers/fetch", ("/ojs/v1/workers/fetch", "(none)", 405)),
        ("GET", "/nothing", ("(none)", "(none)", 404)),
    ],
)
async def test_labels_are_those_of_a_route(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str, path: str, labels: tuple[str, str, int]
) -> None:
    recorded = Recorded()
    monkeypatch.setattr(app, "_latency", recorded)
    await world.ask(method, path, {"queues": ["default"]} if method == "POST" else None)
    assert recorded == [labels]
