"""Projection of the held locks to the KV bucket `locks` (hip-62, Distributed Locking).

The lock itself is in the log, and no decision depends on the projection. So a loop updates the projection about a second
later, and a lock that is acquired and released within that second costs no message.

An entry ends by itself after the job's timeout and a grace period. An execution that is retried, or that waits for a
worker, lives longer. Each copy of the lock keeper looks for entries that have little time left, whichever process wrote them,
so a restart loses none; the revision of the entry lets one copy write. It also looks once at the holder of each entry that is
new to it: a process that stopped may have left the entry of an execution that is over.
"""

import json
from collections.abc import Container, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

import msgspec

from .. import subjects, telemetry
from ..domain import execution
from ..domain.text import utc_text
from ..ports import Clock, EventLog, OutdatedState, Projections
from ..subjects import Bucket, lock_key

INTERVAL_S: Final = 1.0
"""Time between two updates; an execution shorter than this saves three requests."""

AT_ONCE: Final = 200
"""Entries that are written between two reads of their holders."""

MANY_CHANGES: Final = 20
"""From this number of changes on, the whole bucket is read once, instead of a key for each."""

_log = telemetry.get_logger("tocsin.stages")


class Held(msgspec.Struct, frozen=True):
    """Signal: an execution acquired its job's lock for at most `ttl` seconds."""

    job: str
    execution_id: str
    ttl: float


class Released(msgspec.Struct, frozen=True):
    """Signal: an execution is over, and holds its job's lock no longer."""

    job: str
    execution_id: str


class _Change(msgspec.Struct):
    """The holder and former holders of a lock since the last update."""

    holder: str | None = None
    acquired_at: datetime | None = None
    ttl: float = 0.0
    released: set[str] | None = None


class LockProjection:
    """Writes the locks that this process handed out, and removes released locks."""

    def __init__(
        self,
        log: EventLog,
        projections: Projections,
        clock: Clock,
    ) -> None:
        self._log = log
        self._projections = projections
        self._clock = clock
        self._changes: dict[str, _Change] = {}

    def take(self, signal: object) -> None:
        """Record that a lock was acquired or released."""
        match signal:
            case Held(job, execution_id, ttl):
                change = self._changes.setdefault(job, _Change())
                change.holder, change.acquired_at, change.ttl = execution_id, self._clock.now(), ttl
            case Released(job, execution_id):
                self._release(job, execution_id)
            case _:
                raise TypeError(f"{signal!r} is no change of a lock")

    def _release(self, job: str, execution_id: str) -> None:
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
        try:
            shown = await self._projections.entries(Bucket.LOCKS) if len(changes) > MANY_CHANGES else None
            remaining = iter(dict(changes).items())
            while portion := dict(islice(remaining, AT_ONCE)):
                await self._update(portion, shown)
                for job in portion:
                    del changes[job]
        except Exception as error:  # noqa: BLE001 - only a projection; the next update tries again
            _log.warning("locks not written to the bucket", action="lock-not-shown", error=str(error))
            for job, change in changes.items():
                self._repeat(job, change)

    def _repeat(self, job: str, change: _Change) -> None:
        """Make a change that may have failed part of the next update."""
        later = self._changes.setdefault(job, change)
        if later is not change:
            later.released = {*(later.released or ()), *(change.released or ()), *filter(None, [change.holder])}

    async def _update(self, changes: Mapping[str, _Change], shown: Mapping[str, bytes] | None) -> None:
        over = await self._over(changes)
        written: dict[str, int] = {}
        for job, change in changes.items():
            try:
                revision = await self._write(job, change, over, shown)
            except OutdatedState:
                self._repeat(job, change)  # another writer changed the entry just now
            except Exception as error:  # noqa: BLE001 - only a projection; the next update tries again
                _log.warning("lock not written to the bucket", action="lock-not-shown", job=job, error=str(error))
                self._repeat(job, change)
            else:
                if revision is not None:
                    written[job] = revision
        # Another process may have seen the end of a holder, and found nothing to remove, before the entry was written.
        for job in await self._over({job: changes[job] for job in written}):
            with suppress(OutdatedState):  # a later holder is shown
                await self._projections.remove(Bucket.LOCKS, lock_key(job), expect=written[job])

    async def _over(self, changes: Mapping[str, _Change]) -> set[str]:
        """Return the jobs whose holders are over already, read at once."""
        holders = [(job, change.holder) for job, change in changes.items() if change.holder is not None]
        if not holders:
            return set()
        facts = await self._log.load_each(*(subjects.execution(job, holder) for job, holder in holders))
        states = [execution.fold(events) for events in facts.facts]
        return {job for (job, _), state in zip(holders, states, strict=True) if state.is_over}

    async def _write(
        self, job: str, change: _Change, over: Container[str], shown: Mapping[str, bytes] | None
    ) -> int | None:
        """Write or remove an entry; return the revision of a written entry."""
        key = lock_key(job)
        if change.holder is not None and change.acquired_at is not None and job not in over:
            value = {
                "execution_id": change.holder,
                "acquired_at": utc_text(change.acquired_at),
                "ttl": change.ttl,
            }
            return await self._projections.put(Bucket.LOCKS, key, json.dumps(value).encode(), ttl=change.ttl)
        if shown is not None and key not in shown:
            return None
        stored = await self._projections.get(Bucket.LOCKS, key)
        if stored is None or _holder_of(stored[0]) not in {*(change.released or ()), change.holder}:
            return None
        await self._projections.remove(Bucket.LOCKS, key, expect=stored[1])
        return None


RENEWAL_INTERVAL_S: Final = 10.0
"""Time between two rounds; the shortest lifetime of a lock is six times as long."""
_PREFIX: Final = subjects.lock_key("")


class LockRenewal:
    """Renews entries of locks whose holders live, and removes entries that a stopped process left."""

    def __init__(self, log: EventLog, projections: Projections, clock: Clock) -> None:
        self._log = log
        self._projections = projections
        self._clock = clock
        self._known: Mapping[str, bytes] = {}

    async def run(self) -> None:
        """Renew in a loop."""
        pause = INTERVAL_S
        while True:
            await self._clock.sleep(pause)
            try:
                await self.run_once(self._clock.now())
                pause = RENEWAL_INTERVAL_S
            except Exception as error:  # noqa: BLE001 - only a projection; the next round tries again
                _log.warning("locks not renewed in the bucket", action="lock-not-renewed", error=str(error))

    async def run_once(self, now: datetime) -> None:
        """Renew entries in the second half of their lifetime at `now` (UTC); check new entries."""
        entries = await self._projections.entries(Bucket.LOCKS)
        unsure = [key for key, body in entries.items() if self._known.get(key) != body or _is_ending(body, now)]
        for first in range(0, len(unsure), AT_ONCE):
            await self._renew(unsure[first : first + AT_ONCE], now)
        self._known = entries

    async def _renew(self, keys: list[str], now: datetime) -> None:
        stored = {key: entry for key in keys if (entry := await self._projections.get(Bucket.LOCKS, key)) is not None}
        scopes = {key: scope for key, (body, _) in stored.items() if (scope := _scope_of(key, body)) is not None}
        if not scopes:
            return
        reads = await self._log.load_each(*scopes.values())
        for key, facts in zip(scopes, reads.facts, strict=True):
            body, revision = stored[key]
            if not facts:
                continue  # archived; the entry ends by itself
            with suppress(OutdatedState):  # another copy renewed it, or its holder changed
                if execution.fold(facts).is_over:
                    await self._projections.remove(Bucket.LOCKS, key, expect=revision)
                elif _is_ending(body, now):
                    value = {**json.loads(body), "renewed_at": utc_text(now)}
                    await self._projections.put(
                        Bucket.LOCKS, key, json.dumps(value).encode(), expect=revision, ttl=value["ttl"]
                    )


def _is_ending(body: bytes, now: datetime) -> bool:
    try:
        value = json.loads(body)
        since = datetime.fromisoformat(value.get("renewed_at") or value["acquired_at"])
        return now - since >= timedelta(seconds=value["ttl"]) / 2
    except (ValueError, KeyError, TypeError, AttributeError):
        return False  # another program wrote it


def _scope_of(key: str, body: bytes) -> str | None:
    """Return the scope of an entry's holder; None: another program wrote the entry."""
    holder = _holder_of(body)
    if holder is None or not holder.replace("-", "").isalnum():
        return None
    return subjects.execution(subjects.name(key.removeprefix(_PREFIX)), holder)


def _holder_of(body: bytes) -> str | None:
    try:
        holder = json.loads(body)["execution_id"]
    except (ValueError, KeyError, TypeError):
        return None
    return holder if isinstance(holder, str) else None
