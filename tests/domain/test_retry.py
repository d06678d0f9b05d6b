"""Retry delays, by hip-62's formula."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain import retry
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import Failure


def test_delays_of_hip_62_grow_to_the_cap() -> None:
    policy = RetryPolicy(max_attempts=6, initial_delay=30, multiplier=2, max_delay=300, jitter=0)
    assert [retry.delay(policy, attempt, 0) for attempt in range(1, 6)] == [30, 60, 120, 240, 300]


@given(
    st.floats(0, 1e5), st.floats(1, 1e3), st.floats(0, 1e6), st.floats(0, 1), st.integers(1, 100), st.floats(-1, 0.999)
)
def test_i7_delay_is_the_formula_within_its_jitter(
    initial: float, multiplier: float, longest: float, jitter: float, attempt: int, draw: float
) -> None:
    policy = RetryPolicy(initial_delay=initial, multiplier=multiplier, max_delay=longest, jitter=jitter)
    plain = retry.delay(policy, attempt, 0)
    assert 0 <= plain <= longest
    delay = retry.delay(policy, attempt, draw)
    assert plain * (1 - jitter) <= delay * (1 + 1e-9)
    assert delay <= plain * (1 + jitter) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("patterns", "error", "retryable"),
    [
        ((), Failure(type="X"), True),
        ((), Failure(type="X", retryable=False), False),
        (("X",), Failure(type="X"), False),
        (("X",), Failure(type="XY"), True),
        (("auth.*",), Failure(type="auth.expired"), False),
        (("auth.*",), Failure(type="authentic"), True),
    ],
)
def test_what_is_not_tried_again(patterns: tuple[str, ...], error: Failure, *, retryable: bool) -> None:
    assert retry.is_retryable(RetryPolicy(non_retryable_errors=patterns), error) is retryable


@pytest.mark.parametrize(
    ("backoff", "multiplier", "delays"),
    [
        ("exponential", 2.0, [10, 20, 40, 80, 100]),
        ("exponential", 1.0, [10, 10, 10, 10, 10]),
        ("linear", 2.0, [10, 20, 30, 40, 50]),
        ("polynomial", 2.0, [10, 40, 90, 100, 100]),
        ("polynomial", 1.0, [10, 20, 30, 40, 50]),
        ("none", 9.0, [10, 10, 10, 10, 10]),
    ],
)
def test_how_delays_grow(backoff: Any, multiplier: float, delays: list[float]) -> None:  # noqa: ANN401 - a literal
    policy = RetryPolicy(initial_delay=10, multiplier=multiplier, max_delay=100, jitter=0, backoff=backoff)
    assert [retry.delay(policy, attempt, 0) for attempt in range(1, 6)] == delays


STRATEGIES = st.sampled_from(["exponential", "linear", "polynomial", "none"])


@given(STRATEGIES, st.floats(0, 1e5), st.floats(1, 1e3), st.floats(0, 1e6), st.integers(1, 100), st.floats(-1, 0.999))
def test_ojs_retry_5_3_max_delay_bounds_the_jitter(
    backoff: Any,  # noqa: ANN401 - a literal
    initial: float,
    multiplier: float,
    longest: float,
    attempt: int,
    draw: float,
) -> None:
    policy = RetryPolicy(
        initial_delay=initial, multiplier=multiplier, max_delay=longest, jitter=0.5, backoff=backoff,
        max_delay_with_jitter=True,
    )  # fmt: skip
    plain = retry.delay(policy, attempt, 0)
    delay = retry.delay(policy, attempt, draw)
    assert plain / 2 * (1 - 1e-9) <= delay <= min(longest, plain * 1.5 * (1 + 1e-9))
    assert retry.delay(policy.model_copy(update={"max_delay_with_jitter": False}), attempt, draw) >= delay


@pytest.mark.parametrize(("asked", "delay"), [(None, 30), (5, 30), (60, 60), (10**9, 300), (-1, 30)])
def test_failure_may_name_a_longer_delay(asked: float | None, delay: float) -> None:
    policy = RetryPolicy(initial_delay=30, max_delay=300, jitter=0)
    failure = Failure(type="http_status_429", retry_after=asked)
    assert retry.delay_after(failure, policy, 1, 0) == delay
