"""In which direction jitter moves a delay, and what bounds it."""

import pytest

from tocsin.domain import retry
from tocsin.domain.definition import RetryPolicy


@pytest.mark.parametrize(("draw", "delay"), [(-1.0, 5.0), (-0.5, 7.5), (0.0, 10.0), (0.5, 12.5), (0.9, 14.5)])
def test_a_greater_draw_makes_a_longer_delay(draw: float, delay: float) -> None:
    policy = RetryPolicy(initial_delay=10, jitter=0.5, max_delay=100)
    assert retry.delay(policy, 1, draw) == pytest.approx(delay)


@pytest.mark.parametrize(("with_jitter", "delay"), [(False, 15.0), (True, 12.0)])
def test_the_longest_delay_bounds_jitter_on_request(*, with_jitter: bool, delay: float) -> None:
    policy = RetryPolicy(initial_delay=10, jitter=0.5, max_delay=12, max_delay_with_jitter=with_jitter, backoff="none")
    assert retry.delay(policy, 3, 1.0) == pytest.approx(delay)


def test_a_delay_beyond_all_numbers_is_the_longest() -> None:
    policy = RetryPolicy(initial_delay=10, multiplier=1e300, jitter=0, max_delay=60)
    assert retry.delay(policy, 90, 0.0) == 60
