"""Leader leases, and shards and proposals counted, for the status of an installation."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, TypeAlias

from ... import subjects
from ...domain import execution
from ...domain.agent import AgentRecord
from ...domain.events import Message, OwnershipAssigned, Recorded, ShardState
from ...engine.saved_place import read_place
from ...ports import EventLog, Projections
from ...ports.server_inspection import ServerInspection, StoredKey
from ...subjects import Bucket, DecodeError, Stream, UnreadableMessage, is_lease, lease_standing_aside
from ..shards import ShardMap, ShardMaps, owners_of, without_owner

MAX_LISTED: Final = 20
MAX_READ: Final = 10_000
"""Events of a kind that are read."""
MAX_WAITING: Final = 1_000
"""Proposed executions that are counted."""
PAGE: Final = 1_000

Bindings: TypeAlias = tuple[ShardMap, Mapping[str, OwnershipAssigned]]


@dataclass(frozen=True, slots=True)
class Shards:
    """Numbers of shards of the map, by state and by owner."""

    active: int
    draining: int
    disabled: int
    free: int
    """Shards, not disabled, that never had an owner: any worker runs their tasks."""
    without_owner: int | None
    """Shards, not disabled, that had an owner, and that no enabled agent may own now; None: the agents are unknown."""
    listed: tuple[str, ...] = ()
    """The first of these."""


@dataclass(frozen=True, slots=True)
class Proposals:
    """Executions that wait for acknowledgements of agents."""

    waiting: int
    oldest: datetime | None = None
    """The time since which the oldest waits."""
    is_complete: bool = True
    """Whether all were counted."""


async def bindings(log: EventLog) -> Bindings:
    """Return the newest shard map, and the newest owner of each shard that has one."""
    newest = await ShardMaps(log).newest()
    return newest, await owners_of(log) if newest.shards else {}


def shards_of(bound: Bindings, agents: Iterable[AgentRecord] | None) -> Shards:
    """Count the shards of a map. `agents`: None if they are unknown."""
    newest, owners = bound
    states = Counter(shard.state for shard in newest.shards)
    lost = None if agents is None else without_owner(newest, owners, tuple(agents))
    return Shards(
        active=states[ShardState.ACTIVE],
        draining=states[ShardState.DRAINING],
        disabled=states[ShardState.DISABLED],
        free=sum(shard.state is not ShardState.DISABLED and shard.shard_id not in owners for shard in newest.shards),
        without_owner=None if lost is None else len(lost),
        listed=tuple((lost or [])[:MAX_LISTED]),
    )


async def waiting_proposals(log: EventLog, projections: Projections) -> Proposals:
    """Count the executions that were proposed to agents and wait.

    The agent keeper stores the place before the oldest. So little is read unless many wait long.
    """
    place = await read_place(projections, subjects.cursor(Stream.LOG, subjects.ACKNOWLEDGEMENTS))
    after = 0 if place is None else place.after
    settled, _ = await _scopes(log, "execution.quorum-settled", after)
    proposed, is_complete = await _scopes(log, "execution.proposed", after)
    candidates = [*islice((scope for scope in proposed if scope not in settled), MAX_WAITING + 1)]
    loaded = await _readable(log, candidates[:MAX_WAITING])
    waiting = [facts for facts in loaded if execution.fold(facts).is_proposed]  # the others were cancelled
    return Proposals(
        waiting=len(waiting),
        oldest=min((facts[0].time for facts in waiting), default=None),
        is_complete=is_complete and len(candidates) == len(loaded),
    )


async def _readable(log: EventLog, scopes: Sequence[str]) -> Sequence[Sequence[Recorded[Message]]]:
    try:
        return (await log.load_each(*scopes)).facts if scopes else ()
    except DecodeError:
        middle = len(scopes) // 2
        parts = (scopes[:middle], scopes[middle:]) if middle else ()
        return [facts for part in parts for facts in await _readable(log, part)]


async def _scopes(log: EventLog, kind: str, after: int) -> tuple[dict[str, None], bool]:
    """Return the executions with an event of a kind after a place.

    The second value says whether these are all.
    """
    scopes, left = dict[str, None](), MAX_READ
    while left > 0:
        places: Sequence[Recorded[Message] | UnreadableMessage]
        try:
            places = await log.read(subjects.filter_for(kind), after=after, limit=PAGE)
        except DecodeError as error:
            if error.stored is None:
                raise
            places = [error.stored]
        if not places:
            return scopes, True
        after, left = places[-1].sequence, left - max(len(places), PAGE // 10)  # short pages are limited too
        scopes |= dict.fromkeys(subjects.execution_scope(place.subject) for place in places)
    return scopes, False


LEAST_LATE: Final = timedelta(seconds=5)
"""A shorter time since the last renewal may be a pause of the process."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A leader lease. `renewed_at` is by the log's clock, `said_at` by the holder's."""

    name: str
    holder: str
    renewed_at: datetime
    said_at: datetime
    ends_at: datetime | None
    clock_offset: float | None = None
    """Seconds by which the holder's clock is ahead of the log's; None: unknown."""
    clock_error: float | None = None
    """The largest error of `clock_offset` in seconds."""
    is_last_resort: bool = False
    """The holder's clock is not credible, and no candidate's was when it took the lease."""

    def lateness(self, now: datetime) -> timedelta | None:
        """Return the time since the last renewal; None: in time, or ended.

        By default a lease is renewed three times as often as it would end.
        """
        since = now - self.renewed_at
        if self.ends_at is None or self.ends_at <= now or since < LEAST_LATE:
            return None
        return since if 2 * since > self.ends_at - self.renewed_at else None


@dataclass(frozen=True, slots=True)
class AsideCandidate:
    """A process that does not stand for a lease because its clock is not credible."""

    lease: str
    holder: str
    clock_offset: float
    clock_error: float


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leases, and the candidates that may not lead because of their clocks."""

    leases: tuple[Lease, ...]
    standing_aside: tuple[AsideCandidate, ...]


async def leadership_of(inspection: ServerInspection) -> Leadership:
    leases, standing_aside = list[Lease](), list[AsideCandidate]()
    for key, stored in sorted((await inspection.keys(Bucket.LEADER)).items()):
        if (lease := lease_standing_aside(key)) is not None:
            value = json.loads(stored.body)
            standing_aside.append(AsideCandidate(lease, value["holder"], value["clock_offset"], value["clock_error"]))
        elif is_lease(key):
            leases.append(_lease(key, stored))
    return Leadership(tuple(leases), tuple(standing_aside))


def _lease(name: str, stored: StoredKey) -> Lease:
    value = json.loads(stored.body)
    return Lease(
        name,
        value["holder"],
        renewed_at=stored.time,
        said_at=datetime.fromisoformat(value["renewed_at"]),
        ends_at=None if stored.ttl_s is None else stored.time + timedelta(seconds=stored.ttl_s),
        clock_offset=value.get("clock_offset"),
        clock_error=value.get("clock_error"),
        is_last_resort=value.get("is_last_resort", False),
    )
