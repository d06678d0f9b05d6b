"""The leader leases of the stages of one process.

Each stage has a lease, in a fixed order.

A lease only saves work, because the guard of the log decides. A process that lost a lease renews it first, and goes on if no other process began a
term meanwhile.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from ..domain.log_events import Began, Left, LogEvent
from .clock_guard import ClockGuard
from .leader_election import ACQUIRE_INTERVAL_S, LeaderElection
from .stage import woken

SOON_S: Final = 0.02
"""The time between two tries while leases are being freed, or taken by another process."""
SOON_FOR_S: Final = 0.5
"""How long a process tries so often after another left, or after it took a lease."""


def lease_of(stage: str) -> str:
    """Return the key of the lease of a stage."""
    return stage.replace("_", "-")


def follower_of(stage: str) -> str:
    """Return the key of the lease under which a stage at the edge follows decisions.

    The notifier's sender has another lease, and another process may hold it.
    """
    return f"{lease_of(stage)}-follower"


class StageLeases:
    """Candidates for the leases of stages. Times are seconds."""

    def __init__(
        self,
        elections: Mapping[str, LeaderElection],
        time: ClockGuard,
        *,
        renew_interval: float,
        is_answered: Callable[[], bool] = lambda: True,
    ) -> None:
        """`elections` by stage, in the order in which they are held.

        `is_answered`: whether the log and its readers answered within the lifetime of a lease; if not, the leases are given up.
        """
        self._elections = elections
        self._time = time
        self._clock = time.clock
        self._renew_interval = renew_interval
        self._is_answered = is_answered
        self._entered: frozenset[str] = frozenset()
        """Stages with leases that were taken by the end of the last round."""
        self._others: set[str] = set()
        """Stages with leases that other processes were seen to hold."""
        self._soon_until = float("-inf")
        self._woken = asyncio.Event()
        self.is_leaving = False
        self.on_change: Callable[[], None] = lambda: None
        """Called after each round in which the leases or the judgement on the clock may have changed."""

    @property
    def held(self) -> frozenset[str]:
        """The stages with leases that this process certainly holds."""
        if self.is_leaving:
            return frozenset()
        now = self._clock.monotonic()
        return frozenset(stage for stage in self._entered if now < self._elections[stage].until)

    async def time(self) -> datetime | None:
        """Return the time (UTC) up to which this process may decide.

        None: it leads nothing, or the time is unknown.
        """
        for stage, election in self._elections.items():
            if stage in self._entered and election.is_leading:
                return await election.time()
        return None

    def now(self) -> datetime:
        """Return the time (UTC) by the log's clock, or else by this machine's."""
        return self._time.now() or self._clock.now()

    def take(self, event: LogEvent | None) -> None:
        """Try at once if another process leaves; doubt leases of stages that it leads."""
        if isinstance(event, Began):
            self._entered -= frozenset(event.stages)
        elif isinstance(event, Left) and not self._elections.keys().isdisjoint(event.terms):
            self._soon_until = self._clock.monotonic() + SOON_FOR_S
            self._others.clear()
            self._woken.set()

    async def run(self) -> None:
        """Acquire and renew the leases until cancelled, or until this process leaves."""
        while not self.is_leaving:
            self._woken.clear()
            await self.run_once()
            if not self.is_leaving:
                await woken(self._woken, self._clock, self._pause())

    def leave(self) -> None:
        """Hold no lease any more, and end `run` after its round.

        A lease with a renewal that is not awaited could not be freed.
        """
        self.is_leaving = True
        self._woken.set()
        self.on_change()

    async def run_once(self) -> None:
        """Renew the leases that are held, together, and try to acquire the others, in order."""
        if not self._is_answered():
            await self.release()
            return
        led = [stage for stage in self._elections if self._elections[stage].is_leading]
        await asyncio.gather(*(self._elections[stage].run_once() for stage in led))
        for stage, election in self._elections.items():
            if stage in led:
                continue
            await election.run_once()
            if election.is_leading:
                self._others.discard(stage)
                self._soon_until = self._clock.monotonic() + SOON_FOR_S  # a dead holder's other leases end now too
            elif stage not in self._others:
                # The holder takes its leases at this moment. It shall have the rest, so that cascades stay in one process.
                self._others.add(stage)
                self._soon_until = max(self._soon_until, self._clock.monotonic() + 2 * SOON_S)
                break
        self._entered = frozenset(stage for stage, election in self._elections.items() if election.is_leading)
        self.on_change()

    async def release(self) -> None:
        """Free all leases, so that other processes can lead at once."""
        self._entered = frozenset()
        self.on_change()
        await asyncio.gather(*(election.release() for election in self._elections.values()))

    def _pause(self) -> float:
        if len(self._entered) == len(self._elections):
            return self._renew_interval
        if self._clock.monotonic() < self._soon_until:
            return SOON_S
        return min(self._renew_interval, ACQUIRE_INTERVAL_S)
