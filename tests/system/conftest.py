"""Fixtures of tests on whole processes and on the state of a server."""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.worlds import fresh_names
from tocsin.adapters.nats.client.connection import Connection, connect
from tocsin.adapters.nats.client.names import Names


@pytest.fixture
async def connection(nats_url: str) -> AsyncIterator[Connection]:
    """To the server that the tests share."""
    async with connect(nats_url) as connection:
        yield connection


@pytest.fixture
def names() -> Names:
    """Settings of an installation that does not exist yet."""
    return fresh_names()
