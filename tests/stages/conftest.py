"""A new world for each test."""

import pytest

from tests.stages.world import World


@pytest.fixture
def world() -> World:
    return World()
