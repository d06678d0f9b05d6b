from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from tests.worker.builtin.http_given import Server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server().running() as running:
        yield running


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path
