"""Each behaviour runs in every world."""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.worlds import MemoryWorld, NatsWorld, World, nats_world


@pytest.fixture(params=["memory", "nats"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        async with MemoryWorld().running() as memory:
            yield memory
        return
    async with nats_world(request.getfixturevalue("nats_url")) as nats:
        yield nats


@pytest.fixture
async def nats(nats_url: str) -> AsyncIterator[NatsWorld]:
    """The real server, for what only it does."""
    async with nats_world(nats_url) as world:
        yield world
