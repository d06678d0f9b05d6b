"""Fixtures of the worker tests."""

import pytest

from tests.worker.given import Bench


@pytest.fixture
async def bench() -> Bench:
    return Bench()
