"""What the tests on whole processes need."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than a few seconds; `-m 'not slow'` leaves it out")
