"""A new world for each test."""

import pytest
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import Counter, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader

from tests.stages.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def _reader() -> InMemoryMetricReader:
    """One for the process: an SDK can be installed once only."""
    reader = InMemoryMetricReader(preferred_temporality={Counter: AggregationTemporality.DELTA})
    set_meter_provider(MeterProvider([reader]))
    return reader


@pytest.fixture
def metrics(_reader: InMemoryMetricReader) -> InMemoryMetricReader:
    """Return the counts of instruments from now on."""
    _reader.get_metrics_data()
    return _reader
