"""The times of the attempts to send a notification."""

from datetime import datetime, timedelta
from typing import Final

FIRST_DELAY: Final = timedelta(seconds=5)
LONGEST_DELAY: Final = timedelta(minutes=15)
GIVE_UP_AFTER: Final = timedelta(hours=24)
"""Time after the newest notification of a message was raised for which the message is sent again."""
LONGEST_WAIT: Final = timedelta(hours=1)
"""The longest wait that a receiver may require."""
_MAX_DOUBLINGS: Final = 12


def next_attempt(attempts: int, raised_at: datetime, now: datetime, wait: float | None = None) -> datetime | None:
    """Return the time of the next attempt after `attempts` failed.

    `wait`: the seconds that the receiver requires. None: the notification is given up.
    """
    delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(attempts - 1, _MAX_DOUBLINGS))
    if wait is not None:
        delay = max(delay, timedelta(seconds=min(wait, LONGEST_WAIT.total_seconds())))
    at = now + delay
    return at if at <= raised_at + GIVE_UP_AFTER else None
