"""What all tests share: one throw-away nats-server per test process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.servers import REPLICAS, SERVER
from tocsin.adapters.nats.cluster import EmbeddedCluster
from tocsin.adapters.nats.server import ANY_PORT, EmbeddedServer


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address a server of this xdist worker's own; tests keep apart by the names of their streams and buckets."""
    named = os.environ.get(SERVER)
    binary = Path(named) if named else None
    if REPLICAS is None:
        with EmbeddedServer(port=ANY_PORT, binary=binary).start() as server:
            yield server.url
        return
    folder = tmp_path_factory.mktemp("cluster")
    with EmbeddedCluster(folder, REPLICAS, ANY_PORT, binary=binary).start() as cluster:
        yield cluster.nodes[0].server.url


@pytest.fixture(autouse=True)
def _logging_as_at_first() -> None:
    """No test sees the log level that another one has set for the whole process."""
    structlog.reset_defaults()
