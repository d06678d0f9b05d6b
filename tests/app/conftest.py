"""Fixtures of the tests of applications."""

import pytest

from tests.worker.given import Bench


@pytest.fixture
async def bench() -> Bench:
    """Return a bench without a matcher: the test claims tasks by `assigned`."""
    return Bench()
