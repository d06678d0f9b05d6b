"""Fixtures of the tests of built-in functions."""

from pathlib import Path

import pytest

from tests.worker.builtin.given import CommandBench


@pytest.fixture
async def commands(tmp_path: Path) -> CommandBench:
    """Return a bench whose worker runs commands in the test's folder."""
    return CommandBench(tmp_path)
