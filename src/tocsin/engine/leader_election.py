"""Leader leases (hip-62, Architecture; ojs-cron §7).

A leader lease is a key with a time to live that its holder renews. The lease only saves work: a leader that was paused until
its lease ended stops leading by itself, and the guards of the log would refuse its appends.

A candidate whose clock is not credible stands aside, and releases its lease at once (`clock_guard`). If the lease is free
for its whole lifetime, every candidate stands aside, perhaps because the server's clock is wrong. Then one of them leads as
the last resort: it decides by the earlier of the two clocks, and releases the lease to the first credible candidate.
"""

import json
from contextlib import suppress
from datetime import datetime
from typing import Final

from .. import telemetry
from ..domain.text import utc_text
from ..ports import LogUnavailable, Projections, SequenceConflict
from ..subjects import Bucket, aside_key, heir_key
from .clock_guard import ClockGuard

TTL_S: Final = 4.0
RENEW_INTERVAL_S: Final = 1.0
ACQUIRE_INTERVAL_S: Final = 0.5
"""Time between two tries to take a lease that another process holds; shorter if renewals are more frequent."""
OVERDUE_TTLS: Final = 3
"""Lifetimes after which a lease that was not renewed is taken although the server still stores it."""

_NEVER: Final = float("-inf")

_log = telemetry.get_logger("tocsin.leadership")


def lease_access(lease: str) -> tuple[tuple[Bucket, str], ...]:
    """Return what the candidates for a lease write (`Access.writes`)."""
    return (Bucket.LEADER, lease), (Bucket.LEADER, f"{lease}.>")


class LeaderElection:
    """A candidate for one leader lease. Times are seconds."""

    def __init__(
        self,
        projections: Projections,
        time: ClockGuard,
        *,
        key: str,
        holder: str,
        ttl: float = TTL_S,
        renew_interval: float = RENEW_INTERVAL_S,
    ) -> None:
        self._projections = projections
        self._time = time
        self._clock = time.clock
        self._key = key
        self._holder = holder
        self._ttl = ttl
        self._renew_interval = renew_interval
        self._revision = 0
        self.until = _NEVER
        """The monotonic time up to which this candidate certainly holds the lease."""
        self._is_known_to_lead = False
        self._is_last_resort = False
        self._reported_at = _NEVER
        self._free_since: float | None = None
        self._silent_since: float | None = None
        self._seen = (0, _NEVER)
        """The revision of a foreign lease, and the monotonic time at which this candidate first saw it."""

    @property
    def is_leading(self) -> bool:
        """Return whether this candidate certainly holds the lease.

        The time to live counts from before the request was sent, on a clock that never steps back.
        """
        return self._clock.monotonic() < self.until

    async def time(self) -> datetime | None:
        """Return the time (UTC) up to which this leader may decide.

        None: it does not lead, or the time is unknown.

        If the clock was set, or is not credible any more, this measures the log's clock, and releases the lease if needed.
        """
        if not self.is_leading:
            return None
        if not self._time.is_credible and not self._is_last_resort:
            try:
                await self._time.check()
            except LogUnavailable:
                return None
            if self._time.is_wrong:
                await self.release()
        now = self._time.now()
        if now is None or not self.is_leading:
            return None
        return min(now, self._clock.now()) if self._is_last_resort else now

    async def run(self) -> None:
        """Acquire and renew the lease until cancelled, then release it."""
        try:
            while True:
                await self.run_once()
                is_settled = self.is_leading and not self._is_last_resort
                interval = self._renew_interval
                await self._clock.sleep(interval if is_settled else min(interval, ACQUIRE_INTERVAL_S))
        finally:
            await self.release()
            await self._withdraw_report()

    async def run_once(self) -> None:
        """Try to acquire the lease, or renew it; or stand aside because of the clock."""
        self._log_change()  # the lease may have ended while this process slept
        try:
            if not self.is_leading or not self._time.is_credible:
                await self._time.check()
            if self._time.is_credible:
                await self._stand()
                await self._time.check()  # after the renewal, so that a slow reply does not cost the lease
            if self._time.is_wrong:
                await self._stand_aside()
            self._silent_since = None
        except LogUnavailable as error:
            self._free_since = None  # the rest of the lease stays valid and ends by itself
            self._warn_of_silence(error)
        self._log_change()

    def _warn_of_silence(self, error: LogUnavailable) -> None:
        """Log why this candidate can neither lead nor stand aside, once per lifetime."""
        now = self._clock.monotonic()
        self._silent_since = now if self._silent_since is None else self._silent_since
        if now - self._silent_since >= self._ttl:
            self._silent_since = now
            _log.warning("cannot stand for a lease", action="election-unavailable", lease=self._key, reason=str(error))

    def _log_change(self) -> None:
        """Log a gained or lost leadership."""
        leads = self.is_leading
        if leads == self._is_known_to_lead:
            return
        self._is_known_to_lead = leads
        change = "gained" if leads else "lost"
        _log.info(f"leadership {change}", action=f"leadership-{change}", lease=self._key, holder=self._holder)

    async def _stand(self) -> None:
        """Try to acquire the lease, or renew it."""
        self._is_last_resort, self._free_since = False, None
        await self._withdraw_report()
        try:
            await self._put(expect=self._revision if self.is_leading else 0)
        except SequenceConflict:
            self.until = _NEVER
            await self._take_stored_lease()

    async def _put(self, *, expect: int) -> None:
        sent_at, now = self._clock.monotonic(), self._clock.now()
        value = {
            "holder": self._holder,
            "renewed_at": utc_text(now),
            **self._offset(),
            "is_last_resort": self._is_last_resort,
        }
        body = json.dumps(value).encode()
        self._revision = await self._projections.put(Bucket.LEADER, self._key, body, expect=expect, ttl=self._ttl)
        self.until = sent_at + self._ttl

    async def _take_stored_lease(self) -> None:
        """Take the stored lease if it is this candidate's, or overdue.

        It is requested from a leader of last resort. The stored lease names this candidate if the answer to a renewal was lost, or came so late that the lease is over by the local
        clock but still stored. To wait for its end would leave the lease without a leader until then.
        """
        stored = await self._projections.get(Bucket.LEADER, self._key)
        if stored is None:
            return
        body, revision = stored
        lease = json.loads(body)
        holder = lease["holder"]
        if holder == self._holder or self._is_overdue(revision):
            with suppress(SequenceConflict):
                await self._put(expect=revision)
                if holder != self._holder:
                    _log.warning("took an overdue lease", action="lease-overdue", lease=self._key, previous=holder)
        elif lease.get("is_last_resort"):
            await self._projections.put(Bucket.LEADER, heir_key(self._key), self._holder.encode(), ttl=self._ttl)

    def _is_overdue(self, revision: int) -> bool:
        """Return whether a foreign lease is stored for too long without a renewal.

        The server removes such a lease. If it does not (a lease without a time to live was restored, or the server's clock was set
        back), no candidate would lead until then. The time counts on the clock of this candidate; a holder that comes back finds the
        revision changed, as after any lost lease.
        """
        now = self._clock.monotonic()
        if self._seen[0] != revision:
            self._seen = revision, now
        return now - self._seen[1] >= OVERDUE_TTLS * self._ttl

    async def _stand_aside(self) -> None:
        """Release the lease; lead as the last resort if it stays free."""
        if self.is_leading and self._is_last_resort and await self._renew_as_last_resort():
            return
        await self.release()
        await self._report()
        if await self._projections.get(Bucket.LEADER, self._key) is not None:
            self._free_since = None
            return
        now = self._clock.monotonic()
        self._free_since = now if self._free_since is None else self._free_since
        if now - self._free_since >= self._ttl:
            await self._lead_as_last_resort()

    async def _lead_as_last_resort(self) -> None:
        self._is_last_resort, self._free_since = True, None
        try:
            await self._put(expect=0)
        except SequenceConflict:
            self._is_last_resort = False
            return
        await self._withdraw_report()
        _log.error(
            "no candidate has a credible clock; leading as the last resort",
            action="leading-as-last-resort",
            lease=self._key,
            holder=self._holder,
            **self._offset(),
        )

    async def _renew_as_last_resort(self) -> bool:
        """Renew the lease, unless a credible candidate requested it; return whether it is renewed."""
        if await self._projections.get(Bucket.LEADER, heir_key(self._key)) is not None:
            return False
        try:
            await self._put(expect=self._revision)
        except SequenceConflict:
            self.until = _NEVER
            return False
        return True

    def _offset(self) -> dict[str, float | None]:
        """Return the fields that show the offset of the clock in seconds."""
        offset = self._time.offset
        if offset is None:
            return {"clock_offset": None, "clock_error": None}
        return {"clock_offset": round(offset.middle, 6), "clock_error": round(offset.error, 6)}

    async def _report(self) -> None:
        """Show in `tocsin status` that this candidate stands aside."""
        now = self._clock.monotonic()
        if now - self._reported_at < self._renew_interval or self._time.offset is None:
            return
        body = json.dumps({"holder": self._holder, **self._offset()}).encode()
        await self._projections.put(Bucket.LEADER, aside_key(self._key, self._holder), body, ttl=self._ttl)
        self._reported_at = now

    async def _withdraw_report(self) -> None:
        if self._reported_at == _NEVER:
            return
        self._reported_at = _NEVER
        with suppress(SequenceConflict, LogUnavailable):  # it ends by itself
            await self._projections.remove(Bucket.LEADER, aside_key(self._key, self._holder))

    async def release(self) -> None:
        """Release the lease, so that another candidate can lead at once."""
        self._is_last_resort = False
        if not self.is_leading:
            return
        self.until, self._is_known_to_lead = _NEVER, False
        try:
            await self._projections.remove(Bucket.LEADER, self._key, expect=self._revision)
        except (SequenceConflict, LogUnavailable):
            return  # the lease ends by itself
        _log.info("leadership released", action="leadership-released", lease=self._key, holder=self._holder)
