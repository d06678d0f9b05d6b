"""Fixtures of the tests of built-in functions."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.worker.builtin.given import CommandBench
from tests.worker.builtin.http_given import HttpBench, Server


@pytest.fixture
async def commands(tmp_path: Path) -> CommandBench:
    """Return a bench whose worker runs commands in the test's folder."""
    return CommandBench(tmp_path)


@pytest.fixture
async def requests() -> AsyncIterator[HttpBench]:
    """Return a bench whose worker sends requests to a server of the test."""
    async with Server().running() as server:
        yield HttpBench(server)
