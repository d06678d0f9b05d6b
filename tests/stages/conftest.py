"""A new world for each test."""

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.stages.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def metrics(instruments: InMemoryMetricReader) -> InMemoryMetricReader:
    """Return the counts of instruments from now on."""
    instruments.get_metrics_data()
    return instruments
