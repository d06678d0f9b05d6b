"""Renewal of the entries of held locks in the KV bucket `locks` (hip-62, Lock Manager).

An entry ends by itself after the job's timeout and a grace period. An execution that is retried, or that waits for a
worker, lives longer. Each copy of the lock keeper looks for entries that have little time left, whichever process wrote them,
so a restart loses none; the revision of the entry lets one copy write.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from .. import subjects, telemetry
from ..domain import execution
from ..domain.wording import utc_text
from ..ports import Clock, EventLog, OutdatedState, Projections
from ..subjects import Bucket

RENEWAL_INTERVAL_S: Final = 10.0
"""Time between two rounds; the shortest lifetime of a lock is six times as long."""
AT_ONCE: Final = 200
"""Holders that are read at once."""
_PREFIX: Final = subjects.lock_key("")

_log = telemetry.get_logger("tocsin.stages")


class LockRenewal:
    """Renews entries of locks whose holders are not over."""

    def __init__(self, log: EventLog, projections: Projections, clock: Clock) -> None:
        self._log = log
        self._projections = projections
        self._clock = clock

    async def run(self) -> None:
        """Renew in a loop."""
        while True:
            await self._clock.sleep(RENEWAL_INTERVAL_S)
            try:
                await self.run_once(self._clock.now())
            except Exception as error:  # noqa: BLE001 - only a projection; the next round tries again
                _log.warning("locks not renewed in the bucket", action="lock-not-renewed", error=str(error))

    async def run_once(self, now: datetime) -> None:
        """Renew the entries that have less than half of their lifetime left at `now` (UTC)."""
        entries = await self._projections.entries(Bucket.LOCKS)
        ending = [key for key, body in entries.items() if _is_ending(body, now)]
        for first in range(0, len(ending), AT_ONCE):
            await self._renew(ending[first : first + AT_ONCE], now)

    async def _renew(self, keys: list[str], now: datetime) -> None:
        stored = {key: entry for key in keys if (entry := await self._projections.get(Bucket.LOCKS, key)) is not None}
        if not stored:
            return
        scopes = [_scope_of(key, json.loads(body)) for key, (body, _) in stored.items()]
        loaded = await self._log.load_each(*scopes)
        for (key, (body, revision)), facts in zip(stored.items(), loaded.facts, strict=True):
            if not facts or execution.fold(facts).is_over:
                continue  # the lock keeper removes it, or it ends by itself
            value = {**json.loads(body), "renewed_at": utc_text(now)}
            try:
                await self._projections.put(
                    Bucket.LOCKS, key, json.dumps(value).encode(), expect=revision, ttl=value["ttl"]
                )
            except OutdatedState:
                continue  # another copy renewed it, or its holder changed


def _is_ending(body: bytes, now: datetime) -> bool:
    try:
        value = json.loads(body)
        since = datetime.fromisoformat(value.get("renewed_at") or value["acquired_at"])
        return now - since >= timedelta(seconds=value["ttl"]) / 2
    except (ValueError, KeyError, TypeError, AttributeError):
        return False  # another program wrote it


def _scope_of(key: str, value: Mapping[str, Any]) -> str:
    return subjects.execution(subjects.name(key.removeprefix(_PREFIX)), value["execution_id"])
