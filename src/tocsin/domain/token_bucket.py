"""A bucket of tokens, kept as one instant."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """A number of tokens in a time, and at once."""

    limit: int
    per: float
    """Seconds."""
    burst: int

    def credible(self, used_until: float, now: float) -> float:
        """Limit the instant of a bucket to that of an empty bucket.

        A clock may have been wrong, or the entry is unreadable.
        """
        return min(used_until, now + self._full)

    def available(self, used_until: float, now: float) -> int:
        """Return the number of tokens in the bucket; both times are seconds of one clock."""
        return max(int((self._full - max(used_until - now, 0)) / self._interval + _ROUNDING), 0)

    def used(self, used_until: float, now: float, number: int) -> float:
        """Return the instant of the bucket after a number of tokens is taken."""
        return max(used_until, now) + number * self._interval

    def next_at(self, used_until: float) -> float:
        """Return the time (seconds) from which the bucket has a token."""
        return used_until - self._full + self._interval

    @property
    def _interval(self) -> float:
        return self.per / self.limit

    @property
    def _full(self) -> float:
        return self.burst * self._interval


_ROUNDING = 1e-6
