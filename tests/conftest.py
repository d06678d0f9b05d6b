"""What all tests share: one throw-away nats-server per test process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.adapters.nats.server import ANY_PORT, EmbeddedServer

SERVER = "TOCSIN_TEST_NATS_SERVER"
"""Names another nats-server to test with; by default the one that is installed."""


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """Address a server of this xdist worker's own; tests keep apart by the names of their streams and buckets."""
    named = os.environ.get(SERVER)
    with EmbeddedServer(port=ANY_PORT, binary=Path(named) if named else None).start() as server:
        yield server.url
