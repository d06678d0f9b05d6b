"""Ids that a client may bring, and else is given: UUIDs of version 7, whose first part is the time."""

from datetime import datetime
from secrets import randbits
from typing import Final
from uuid import UUID

_VERSION: Final = 0x7000
_VARIANT: Final = 0x8000_0000_0000_0000


def uuid7(now: datetime) -> str:
    """A new id at `now` (UTC)."""
    milliseconds = int(now.timestamp() * 1000) & 0xFFFF_FFFF_FFFF
    high = milliseconds << 16 | _VERSION | randbits(12)
    return str(UUID(int=high << 64 | _VARIANT | randbits(62)))
