"""A plugin of pytest: run each test of `CAUGHT_BY_TESTS` with its bug (`pytest -n 0 -p tests.simulation.mutated TEST`)."""

from collections.abc import Generator

import pytest

from .mutation import made
from .mutations import CAUGHT_BY_TESTS, MUTATIONS

BUGS = {test: name for name, test in CAUGHT_BY_TESTS.items()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Make the bug before the fixtures of its test, until they are gone."""
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == BUGS[item.nodeid])
    with made(mutation):
        return (yield)
