"""Projection of the held locks to the KV bucket `locks` (hip-62, Distributed Locking).

The lock itself is in the log, and no decision depends on the projection. So a loop updates the projection about a second
later, and a lock that is acquired and released within that second costs no message.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ... import telemetry
from ...ports import Clock, OutdatedState, Projections
from ...subjects import Bucket, lock_key

INTERVAL_S: Final = 1.0
"""Time between two updates; an execution shorter than this saves three requests."""

_log = telemetry.get_logger("tocsin.stages")


@dataclass(slots=True)
class _Change:
    """The holder and former holders of a lock since the last update."""

    holder: str | None = None
    acquired_at: datetime | None = None
    ttl: float = 0.0
    released: set[str] | None = None


class LockProjection:
    """Writes the locks that this process handed out, and removes released locks."""

    def __init__(self, projections: Projections, clock: Clock, is_over: Callable[[str, str], Awaitable[bool]]) -> None:
        """`is_over` reads whether an execution of a job is over."""
        self._projections = projections
        self._clock = clock
        self._is_over = is_over
        self._changes: dict[str, _Change] = {}

    def held(self, job: str, execution_id: str, *, ttl: float) -> None:
        """Record that an execution acquired its job's lock for at most `ttl` seconds."""
        change = self._changes.setdefault(job, _Change())
        change.holder, change.acquired_at, change.ttl = execution_id, self._clock.now(), ttl

    def released(self, job: str, execution_id: str) -> None:
        """Record that an execution is over and holds its job's lock no longer."""
        change = self._changes.setdefault(job, _Change())
        if change.holder == execution_id:
            change.holder = None
            if change.released is None:  # the lock was acquired after the last update and is not in the bucket
                del self._changes[job]
        else:
            change.released = {*(change.released or ()), execution_id}

    async def run(self) -> None:
        """Write the changes in a loop, and once more when cancelled."""
        try:
            while True:
                await self._clock.sleep(INTERVAL_S)
                await self.run_once()
        finally:
            await self.run_once()

    async def run_once(self) -> None:
        """Write the changes since the last call."""
        changes, self._changes = self._changes, {}
        for job, change in changes.items():
            try:
                await self._write(job, change)
            except OutdatedState:
                self._changes.setdefault(
                    job, change
                )  # another writer changed the state just now; retry at the next update
            except Exception as error:  # noqa: BLE001 - only a projection; each key expires
                _log.warning("lock not written to the bucket", action="lock-not-shown", job=job, error=str(error))

    async def _write(self, job: str, change: _Change) -> None:
        key = lock_key(job)
        if change.holder is not None and change.acquired_at is not None and not await self._is_over(job, change.holder):
            value = {
                "execution_id": change.holder,
                "acquired_at": change.acquired_at.isoformat(),
                "ttl": change.ttl,
            }
            await self._projections.put(Bucket.LOCKS, key, json.dumps(value).encode(), ttl=change.ttl)
            return
        stored = await self._projections.get(Bucket.LOCKS, key)
        if stored is None or json.loads(stored[0])["execution_id"] not in {*(change.released or ()), change.holder}:
            return
        await self._projections.remove(Bucket.LOCKS, key, expect=stored[1])
