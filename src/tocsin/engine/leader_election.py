"""The lease of whoever leads: a key with a life time that its holder renews (hip-62, Architecture; ojs-cron §7).

The lease only saves work. A leader that was paused past its lease stops by itself, and were it to act once more, the guard
of the log would refuse it.
"""

import json
from contextlib import suppress
from typing import Final

from .. import telemetry
from ..ports import Clock, LogUnavailable, Projections, SequenceConflict
from ..subjects import Bucket
from .leadership_events import LeadershipEvents

TTL: Final = 15.0
RENEW_INTERVAL: Final = 5.0
ASK_INTERVAL: Final = 1.0
"""How often a lease that another holds is asked for; more often where renewals are."""

_log = telemetry.get_logger("tocsin.leadership")


class LeaderElection:
    """A candidate for one lease. Times are seconds."""

    def __init__(
        self,
        projections: Projections,
        clock: Clock,
        *,
        key: str,
        holder: str,
        ttl: float = TTL,
        renew_interval: float = RENEW_INTERVAL,
        facts: LeadershipEvents | None = None,
    ) -> None:
        """`facts`: where it is recorded who led; None: nowhere."""
        self._projections = projections
        self._clock = clock
        self._key = key
        self._holder = holder
        self._ttl = ttl
        self._renew_interval = renew_interval
        self._revision = 0
        self._until = float("-inf")
        self._facts = facts
        self._is_known_to_lead = False
        self._last_sign = clock.now()

    @property
    def is_leading(self) -> bool:
        """The lease is ours for certain: counted from before it was asked for, by a clock that never steps back."""
        return self._clock.monotonic() < self._until

    async def run(self) -> None:
        """Ask, renew, and give back when cancelled."""
        try:
            while True:
                await self.run_once()
                interval = self._renew_interval
                await self._clock.sleep(interval if self.is_leading else min(interval, ASK_INTERVAL))
        finally:
            await self.release()

    async def run_once(self) -> None:
        """Ask for the lease, or renew it."""
        await self._tell()  # a lease that ran out while this process slept, though it may be renewed at once
        try:
            try:
                await self._put(expect=self._revision if self.is_leading else 0)
            except SequenceConflict:
                self._until = float("-inf")
                await self._renew_what_stands()
        except LogUnavailable:
            pass  # what is left of the lease still counts, and ends by itself
        await self._tell()

    async def _tell(self) -> None:
        """Say whether it leads, if that changed."""
        leads = self.is_leading
        if leads == self._is_known_to_lead:
            return
        self._is_known_to_lead = leads
        what = "gained" if leads else "lost"
        _log.info(f"leadership {what}", action=f"leadership-{what}", lease=self._key, holder=self._holder)
        if self._facts is not None:
            await (self._facts.gained() if leads else self._facts.lost(self._last_sign))

    async def _put(self, *, expect: int) -> None:
        asked, now = self._clock.monotonic(), self._clock.now()
        value = json.dumps({"holder": self._holder, "renewed_at": now.isoformat()}).encode()
        self._revision = await self._projections.put(Bucket.LEADER, self._key, value, expect=expect, ttl=self._ttl)
        self._until, self._last_sign = asked + self._ttl, now

    async def _renew_what_stands(self) -> None:
        """Renew the lease if it is our own all the same.

        An answer was lost, or took so long that the lease is over here while the log, which had to elect, still keeps it:
        to wait for its end would leave all of that time without a leader.
        """
        shown = await self._projections.get(Bucket.LEADER, self._key)
        if shown is not None and json.loads(shown[0])["holder"] == self._holder:
            with suppress(SequenceConflict):
                await self._put(expect=shown[1])

    async def release(self) -> None:
        """Give the lease back, so that another candidate leads at once."""
        if not self.is_leading:
            return
        self._until, self._is_known_to_lead = float("-inf"), False
        try:
            await self._projections.remove(Bucket.LEADER, self._key, expect=self._revision)
        except (SequenceConflict, LogUnavailable):
            return  # it ends by itself
        _log.info("leadership released", action="leadership-released", lease=self._key, holder=self._holder)
        if self._facts is not None:
            await self._facts.released()
