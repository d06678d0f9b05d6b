from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.stages.notifier.sender import FIRST_DELAY, GIVE_UP_AFTER, LONGEST_DELAY, next_attempt

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


@given(st.integers(1, 10_000), st.timedeltas(timedelta(), timedelta(days=2)))
def test_attempts_come_later_for_a_day(attempts: int, age: timedelta) -> None:
    now = NOON + age
    at = next_attempt(attempts, NOON, now)
    if at is None:
        assert now + LONGEST_DELAY > NOON + GIVE_UP_AFTER
    else:
        assert now + FIRST_DELAY <= at <= now + LONGEST_DELAY
        assert at <= NOON + GIVE_UP_AFTER


@pytest.mark.parametrize(("wait", "delay"), [(0, 5), (3, 5), (60, 60), (1e9, 3_600)])
def test_receiver_names_the_delay(wait: float, delay: float) -> None:
    assert next_attempt(1, NOON, NOON, wait) == NOON + timedelta(seconds=delay)


def test_delay_doubles() -> None:
    delays = [(next_attempt(n, NOON, NOON) or NOON) - NOON for n in range(1, 10)]
    assert [delay.total_seconds() for delay in delays] == [5, 10, 20, 40, 80, 160, 320, 640, 900]
