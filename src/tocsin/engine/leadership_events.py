"""The events that record each leader's term (ojs-cron §7)."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from .. import telemetry
from ..domain.events import LeadershipFact, LeadershipGained, LeadershipLost, LeadershipReleased
from ..ports import Clock, EventLog, LogUnavailable
from ..subjects import DecodeError, filter_for, subject_of

TERM_EVENTS: Final = (LeadershipGained, LeadershipReleased, LeadershipLost)
"""The events that record the terms of leaders."""
TICKER_SIGNS: Final = (filter_for("ledger.due"), filter_for("ledger.passed"))
"""Filters over events that only a leading ticker stores."""
_MAX_PENDING: Final = 100

_log = telemetry.get_logger("tocsin.leadership")


class LeadershipEvents:
    """Records the terms of one holder of one leader lease, for diagnosing missed instants.

    There are a few events for each term, and none for a renewal. No decision depends on them, so they are stored without a
    guard. An event that cannot be stored now is stored before the next event.
    """

    def __init__(self, log: EventLog, clock: Clock, *, lease: str, holder: str, signs: Sequence[str] = ()) -> None:
        """`signs`: filters over events that only a leader stores."""
        self._log = log
        self._clock = clock
        self._lease = lease
        self._holder = holder
        self._signs = signs
        self._pending: deque[LeadershipFact] = deque(maxlen=_MAX_PENDING)
        self._number = 0
        self._storing = asyncio.Lock()

    async def gained(self) -> None:
        """Record that the holder leads from now on."""
        event = LeadershipGained(lease=self._lease, holder=self._holder, at=self._clock.now())
        self._pending.append(event.changed(last_sign=await self._last_sign()))
        await self.store()

    async def released(self) -> None:
        """Record that the holder released the lease."""
        self._pending.append(LeadershipReleased(lease=self._lease, holder=self._holder, at=self._clock.now()))
        await self.store()

    async def lost(self, last_sign: datetime) -> None:
        """Record that the holder lost the lease, which it certainly held at `last_sign` (UTC)."""
        at = self._clock.now()
        self._pending.append(LeadershipLost(lease=self._lease, holder=self._holder, at=at, last_sign=last_sign))
        await self.store()

    async def store(self) -> None:
        """Store the pending events in order.

        The election's loop and the stage that reads the time may both record a change.
        """
        async with self._storing:
            while self._pending:
                event = self._pending[0]
                message_id = f"{self._lease}-{self._holder}-{self._number}"
                try:
                    await self._log.publish(subject_of(event), event, message_id=message_id)
                except LogUnavailable as error:
                    _log.warning(
                        "leadership event not stored; retrying with the next event",
                        action="leadership-not-recorded",
                        lease=self._lease,
                        error=str(error),
                    )
                    return
                self._number += 1
                if self._pending[0] is event:  # else it was the oldest of too many
                    self._pending.popleft()

    async def _last_sign(self) -> datetime | None:
        times = []
        for sign in self._signs:
            with suppress(LogUnavailable, DecodeError):
                if (recorded := await self._log.last(sign)) is not None:
                    times.append(recorded.time)
        return max(times, default=None)
