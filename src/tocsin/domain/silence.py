"""Silences of notifications: which jobs they cover, and for how long."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final, Literal

from .events import Silence, SilencesDefined

MAX_SILENCES: Final = 100
"""Silences that may be in force at a time."""
MAX_OF_OWNERS: Final = 50
"""Silences that may be in force before only operators start others: the owners of jobs leave room for operators."""
MAX_OF_NAMESPACES: Final = 25
"""Silences in force of the jobs of a caller that is bound to namespaces, before it starts no others: it leaves room for other namespaces."""
MAX_OF_OWNER: Final = 10
"""Silences in force that an identity may have started as the owner of jobs."""
MAX_TAG: Final = 100
"""Characters of a tag that a silence names."""
MAX_REASON: Final = 1_000
"""Characters of the reason for a silence: all silences in force are in one event."""
LONGEST_S: Final = 31 * 86_400.0
"""Seconds of the longest silence."""
LONGEST_OF_OWNER_S: Final = 86_400.0
"""Seconds of the longest silence that the owner of a job starts: it may outlive the job, and cover another of its name."""


def in_force(newest: SilencesDefined, now: datetime) -> tuple[Silence, ...]:
    """Return the silences that have not ended at `now` (UTC)."""
    return tuple(silence for silence in newest.silences if silence.until > now)


def covering(silences: Iterable[Silence], job: str, tags: Collection[str], now: datetime) -> Silence | None:
    """Return the first silence that covers a job at `now` (UTC)."""
    return next((silence for silence in silences if silence.until > now and _covers(silence, job, tags)), None)


def changed_silence(
    before: SilencesDefined | None, after: SilencesDefined
) -> tuple[Silence, Literal["started", "ended"]] | None:
    """Return the silence that an event started or ended; None: it is not known.

    `before`: the preceding event, if it is stored.
    """
    if before is None and after.previous:
        return None
    known = {} if before is None else {silence.id: silence for silence in before.silences}
    if after.silences and after.silences[-1].id not in known:
        return after.silences[-1], "started"
    left = {silence.id for silence in after.silences}
    # Silences whose time was over are gone too. The silence that was ended had time left.
    gone = [silence for silence in known.values() if silence.id not in left]
    return (max(gone, key=lambda silence: silence.until), "ended") if gone else None


def extent(silence: Silence) -> str:
    if silence.job is not None:
        return silence.job
    return "all jobs" if silence.tag is None else f"jobs with the tag {silence.tag}"


def _covers(silence: Silence, job: str, tags: Collection[str]) -> bool:
    return silence.job in {None, job} and (silence.tag is None or silence.tag in tags)
