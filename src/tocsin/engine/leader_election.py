"""Leader leases and the events that record each leader's term (hip-62, Architecture; ojs-cron §7).

A leader lease is a key with a time to live that its holder renews. The lease only saves work: a leader that was paused until
its lease ended stops leading by itself, and the guards of the log would refuse its appends.
"""

import json
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from .. import telemetry
from ..domain.events import LeadershipFact, LeadershipGained, LeadershipLost, LeadershipReleased
from ..domain.text import utc_text
from ..ports import Clock, EventLog, LogUnavailable, Projections, SequenceConflict
from ..subjects import Bucket, DecodeError, filter_for, subject_of

TTL_S: Final = 15.0
RENEW_INTERVAL_S: Final = 5.0
ACQUIRE_INTERVAL_S: Final = 1.0
"""Time between two tries to take a lease that another process holds; shorter if renewals are more frequent."""

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

    async def gained(self) -> None:
        """Record that the holder leads from now on."""
        event = LeadershipGained(lease=self._lease, holder=self._holder, at=self._clock.now())
        self._pending.append(event.model_copy(update={"last_sign": await self._last_sign()}))
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
        """Store the pending events in order."""
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
            self._pending.popleft()

    async def _last_sign(self) -> datetime | None:
        times = []
        for sign in self._signs:
            with suppress(LogUnavailable, DecodeError):
                if (recorded := await self._log.last(sign)) is not None:
                    times.append(recorded.time)
        return max(times, default=None)


class LeaderElection:
    """A candidate for one leader lease. Times are seconds."""

    def __init__(
        self,
        projections: Projections,
        clock: Clock,
        *,
        key: str,
        holder: str,
        ttl: float = TTL_S,
        renew_interval: float = RENEW_INTERVAL_S,
        events: LeadershipEvents | None = None,
    ) -> None:
        """`events` records the terms of this candidate; None: they are not recorded."""
        self._projections = projections
        self._clock = clock
        self._key = key
        self._holder = holder
        self._ttl = ttl
        self._renew_interval = renew_interval
        self._revision = 0
        self._until = float("-inf")
        self._events = events
        self._is_known_to_lead = False
        self._last_sign = clock.now()

    @property
    def is_leading(self) -> bool:
        """Return whether this candidate certainly holds the lease.

        The time to live counts from before the request was sent, on a clock that never steps back.
        """
        return self._clock.monotonic() < self._until

    async def run(self) -> None:
        """Acquire and renew the lease until cancelled, then release it."""
        try:
            while True:
                await self.run_once()
                interval = self._renew_interval
                await self._clock.sleep(interval if self.is_leading else min(interval, ACQUIRE_INTERVAL_S))
        finally:
            await self.release()

    async def run_once(self) -> None:
        """Try to acquire the lease, or renew it."""
        await self._record_change()  # the lease may have ended while this process slept
        try:
            try:
                await self._put(expect=self._revision if self.is_leading else 0)
            except SequenceConflict:
                self._until = float("-inf")
                await self._renew_own_lease()
        except LogUnavailable:
            pass  # the rest of the lease stays valid and ends by itself
        await self._record_change()

    async def _record_change(self) -> None:
        """Log and record a gained or lost leadership."""
        leads = self.is_leading
        if leads == self._is_known_to_lead:
            return
        self._is_known_to_lead = leads
        change = "gained" if leads else "lost"
        _log.info(f"leadership {change}", action=f"leadership-{change}", lease=self._key, holder=self._holder)
        if self._events is not None:
            await (self._events.gained() if leads else self._events.lost(self._last_sign))

    async def _put(self, *, expect: int) -> None:
        sent_at, now = self._clock.monotonic(), self._clock.now()
        value = json.dumps({"holder": self._holder, "renewed_at": utc_text(now)}).encode()
        self._revision = await self._projections.put(Bucket.LEADER, self._key, value, expect=expect, ttl=self._ttl)
        self._until, self._last_sign = sent_at + self._ttl, now

    async def _renew_own_lease(self) -> None:
        """Renew the lease if the stored lease names this candidate.

        That happens if the answer to a renewal was lost, or came so late that the lease is over by the local clock but
        still stored. To wait for its end would leave the lease without a leader until then.
        """
        stored = await self._projections.get(Bucket.LEADER, self._key)
        if stored is not None and json.loads(stored[0])["holder"] == self._holder:
            with suppress(SequenceConflict):
                await self._put(expect=stored[1])

    async def release(self) -> None:
        """Release the lease, so that another candidate can lead at once."""
        if not self.is_leading:
            return
        self._until, self._is_known_to_lead = float("-inf"), False
        try:
            await self._projections.remove(Bucket.LEADER, self._key, expect=self._revision)
        except (SequenceConflict, LogUnavailable):
            return  # the lease ends by itself
        _log.info("leadership released", action="leadership-released", lease=self._key, holder=self._holder)
        if self._events is not None:
            await self._events.released()
