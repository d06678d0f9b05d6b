"""The locks as KV `locks` shows them, for those who look there as hip-62 says (Distributed Locking).

The lock itself is in the log, and nothing is decided by what is shown. So it is shown a moment later, by a loop of its own:
a lock that is taken and free again within that moment costs no message.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ... import telemetry
from ...ports import Clock, OutdatedState, Projections
from ...subjects import Bucket, lock_key

INTERVAL: Final = 1.0
"""Seconds between two looks at what has changed: three requests are saved for each run that is over by then."""

_log = telemetry.get_logger("tocsin.stages")


@dataclass(slots=True)
class _Change:
    """What has become of one job's lock since it was last shown: who holds it, and who holds it no more."""

    holder: str | None = None
    acquired_at: datetime | None = None
    ttl: float = 0.0
    gone: set[str] | None = None


class LockProjection:
    """Shows the locks that this copy of the keeper took, and takes away those whose end it saw."""

    def __init__(self, projections: Projections, clock: Clock, is_over: Callable[[str, str], Awaitable[bool]]) -> None:
        """`is_over` tells of a job's execution whether it is over: another copy may have seen that."""
        self._projections = projections
        self._clock = clock
        self._is_over = is_over
        self._changes: dict[str, _Change] = {}

    def held(self, job: str, execution_id: str, *, ttl: float) -> None:
        """An execution took its job's lock, for at most `ttl` seconds."""
        change = self._changes.setdefault(job, _Change())
        change.holder, change.acquired_at, change.ttl = execution_id, self._clock.now(), ttl

    def released(self, job: str, execution_id: str) -> None:
        """An execution is over, and with it its hold."""
        change = self._changes.setdefault(job, _Change())
        if change.holder == execution_id:
            change.holder = None
            if change.gone is None:  # it was never shown, nor anything since it was last looked at
                del self._changes[job]
        else:
            change.gone = {*(change.gone or ()), execution_id}

    async def run(self) -> None:
        """Show what has changed, again and again, and once more at the end."""
        try:
            while True:
                await self._clock.sleep(INTERVAL)
                await self.run_once()
        finally:
            await self.run_once()

    async def run_once(self) -> None:
        """Show what has changed."""
        changes, self._changes = self._changes, {}
        for job, change in changes.items():
            try:
                await self._show(job, change)
            except OutdatedState:
                self._changes.setdefault(job, change)  # it is going on just now: the next time
            except Exception as error:  # noqa: BLE001 - only shown; each key ends by itself
                _log.warning("not shown", action="lock-not-shown", job=job, error=str(error))

    async def _show(self, job: str, change: _Change) -> None:
        key = lock_key(job)
        if change.holder is not None and change.acquired_at is not None and not await self._is_over(job, change.holder):
            value = {
                "execution_id": change.holder,
                "acquired_at": change.acquired_at.isoformat(),
                "ttl": change.ttl,
            }
            await self._projections.put(Bucket.LOCKS, key, json.dumps(value).encode(), ttl=change.ttl)
            return
        shown = await self._projections.get(Bucket.LOCKS, key)
        if shown is None or json.loads(shown[0])["execution_id"] not in {*(change.gone or ()), change.holder}:
            return
        await self._projections.remove(Bucket.LOCKS, key, expect=shown[1])
