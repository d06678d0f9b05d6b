"""A server of its own for each module."""

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.ojs.served import Server, server


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(
        tmp_path_factory.mktemp("gateway"),
        TOCSIN_SERVER__RATE="100000",
        TOCSIN_SERVER__BURST="100000",
        TOCSIN_QUEUES__TEAMS__TRANSPORT="matched",
        TOCSIN_QUEUES__OUTSIDE__TRANSPORT="mq",
    ) as it:
        yield it


@pytest.fixture
async def client(gateway: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client() as it:
        yield it
