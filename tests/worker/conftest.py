"""Fixtures of the worker tests."""

from collections.abc import AsyncIterator

import pytest

from tests.worker.given import Bench


@pytest.fixture
async def bench() -> Bench:
    """Return a bench without a matcher: the test claims tasks by `assigned`."""
    return Bench()


@pytest.fixture
async def matched(bench: Bench) -> AsyncIterator[Bench]:
    """Return a bench whose matcher assigns the tasks to running workers."""
    async with bench.matching():
        yield bench
