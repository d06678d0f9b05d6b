"""The time for which limits and pauses hold back open tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

HoldUpCause: TypeAlias = Literal[
    "queue_paused", "queue_limit", "namespace_limit", "queue_rate", "job_limit", "key_limit", "start_rate"
]
"""What holds back a task although a worker may have a slot for it: a paused queue, a concurrency limit, or a rate."""
HoldUpTimes: TypeAlias = Mapping[HoldUpCause, float]
NO_TIMES: Final[HoldUpTimes] = MappingProxyType({})


def no_times() -> HoldUpTimes:
    return NO_TIMES


def stopped() -> float:
    """Return 0: the time of a clock that stands still."""
    return 0.0


@dataclass(slots=True, eq=False)
class Gate:
    """A gate before tasks, and the seconds for which each cause closed it.

    A task notes the seconds when it comes; the difference when it goes is the time for which the gate held it back.
    """

    cause: HoldUpCause | None = None
    """What closes it; None: it is open."""
    _since: float = 0.0
    _times: HoldUpTimes = field(default_factory=no_times)

    def change(self, cause: HoldUpCause | None, now: float) -> None:
        """Close it, or open it if there is no cause; `now` is in seconds."""
        if cause != self.cause:
            self._times = self.times(now)
            self.cause, self._since = cause, now

    def times(self, now: float) -> HoldUpTimes:
        """Return the seconds up to now, in one mapping while it is open."""
        if self.cause is None:
            return self._times
        return {**self._times, self.cause: self._times.get(self.cause, 0.0) + now - self._since}


def added(times: HoldUpTimes, before: HoldUpTimes, after: HoldUpTimes) -> HoldUpTimes:
    """Return times with what a gate counted between two moments."""
    if before is after:
        return times
    counted = {cause: seconds - before.get(cause, 0.0) for cause, seconds in after.items()}
    return {**times, **{cause: times.get(cause, 0.0) + seconds for cause, seconds in counted.items() if seconds > 0}}
