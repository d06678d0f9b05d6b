"""The leader leases, and the candidates that stand aside because of their clocks."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ...ports.server_inspection import ServerInspection, StoredKey
from ...subjects import Bucket, is_lease, lease_standing_aside

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
    """The leases, and the candidates that stand aside because of their clocks."""

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
