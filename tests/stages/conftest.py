"""A new world for each test."""

from collections import Counter as Counts
from collections.abc import Awaitable, Callable

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.stages.world import Reads, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def reads(world: World, monkeypatch: pytest.MonkeyPatch) -> Reads:
    """The number of requests to the log, by method."""
    counted: Reads = Counts()

    def counting(verb: str, ask: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def counted_ask(*args: object, **options: object) -> object:
            counted[verb] += 1
            return await ask(*args, **options)

        return counted_ask

    for verb in ("write", "tails", "load_each", "load", "get", "last", "read", "tail"):
        monkeypatch.setattr(world.log, verb, counting(verb, getattr(world.log, verb)))
    return counted


@pytest.fixture
def metrics(instruments: InMemoryMetricReader) -> InMemoryMetricReader:
    """Return the counts of instruments from now on."""
    instruments.get_metrics_data()
    return instruments
