"""Fixtures of tests on whole processes and on the state of a server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.worlds import fresh_names
from tests.system.processes import Site, site
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


@pytest.fixture
async def ojs_site(nats_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    """An installation whose queue `work` is for workers of the Open Job Spec."""
    async with site(
        nats_url,
        tmp_path,
        metrics={"enabled": False},
        server={"rate": 100_000, "burst": 100_000, "host": "127.0.0.1"},
        queues={"work": {"transport": "matched"}},
    ) as it:
        yield it
