"""The bytes that registrations of agents may add to the ledger.

A worker account may start processes and change what they announce as often as it likes, and each registration stays in the ledger. So the bytes
are limited: those of each name that has an account of its own, and those of all other names together.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from ...domain.events import AgentFact
from ...domain.token_bucket import TokenBucket

BYTES_AT_ONCE: Final = 16 * 1_048_576
"""Enough to register each of 5,000 processes with 3 KB."""
BYTES_PER_S: Final = 4_096
"""350 MB a day: six ordinary registrations in each second."""
_SHARED: Final = ""
"""In place of a name: all names without an account of their own."""


class RegistrationBudget:
    """The bytes that may still be registered."""

    def __init__(self, reserved: Collection[str], monotonic: Callable[[], float]) -> None:
        """`reserved`: the names of agents with an account of their own."""
        self._reserved = frozenset(reserved)
        self._monotonic = monotonic
        self._bucket = TokenBucket(limit=BYTES_PER_S, per=1.0, burst=BYTES_AT_ONCE)
        self._used_until: dict[str, float] = {}

    def take(self, name: str, facts: Sequence[AgentFact]) -> bool:
        """Count the bytes of events, and return whether they fit; if not, nothing is counted."""
        account = name if name in self._reserved else _SHARED
        used_until, now = self._used_until.get(account, float("-inf")), self._monotonic()
        size = sum(len(fact.encode()) for fact in facts)
        if size > self._bucket.available(used_until, now):
            return False
        self._used_until[account] = self._bucket.used(used_until, now, size)
        return True
