"""What all tests share: one throw-away nats-server per test process."""

from collections.abc import Iterator

import pytest

from tocsin.adapters.nats.server import ANY_PORT, EmbeddedServer


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """Address a server of this xdist worker's own; tests keep apart by the names of their streams and buckets."""
    with EmbeddedServer(port=ANY_PORT).start() as server:
        yield server.url
