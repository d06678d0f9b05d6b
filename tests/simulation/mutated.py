"""A plugin of pytest: run tests with a bug of the table (`MUTATION=<name> pytest -p tests.simulation.mutated …`)."""

import os
from contextlib import ExitStack

import pytest

from .mutations import MUTATIONS, made


def pytest_configure(config: pytest.Config) -> None:
    """Make the bug until the run ends."""
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == os.environ["MUTATION"])
    bugs = ExitStack()
    bugs.enter_context(made(mutation))
    config.add_cleanup(bugs.close)
