"""The time after which a leader that stores nothing shows."""

from datetime import timedelta

import pytest

from tests.domain.given import NOON
from tocsin.services.health.coordination import Lease
from tocsin.settings import Leader


@pytest.mark.parametrize("seconds", range(16))
def test_late_renewal_shows_within_ten_seconds(seconds: int) -> None:
    """By the default settings, such as on a server whose disk is full since the last renewal."""
    usual, now = Leader(), NOON + timedelta(seconds=seconds)
    lease = Lease("ticker", "a", renewed_at=NOON, said_at=NOON, ends_at=NOON + timedelta(seconds=usual.ttl))
    is_ended = seconds >= usual.ttl  # another finding says so
    is_late = not is_ended and seconds > usual.renew_interval + 2  # two more seconds may be a pause of the process
    assert lease.lateness(now) == (timedelta(seconds=seconds) if is_late else None)
    assert is_late or is_ended or seconds < 10
