"""Who changed what, when, from where and why (hip-62, Audit Trail; scratchbird §10.3): the facts that somebody asked for.

Nothing is kept for it: every registration, update, deletion, pause, resume, manual trigger, cancellation, replay and
settlement is a fact in the log, and names who asked.
"""

from collections.abc import AsyncIterator
from datetime import datetime
from heapq import merge
from operator import attrgetter

from ... import subjects
from ...domain.events import (
    Actor,
    Cancelled,
    Defined,
    Deleted,
    Message,
    Paused,
    Recorded,
    Replayed,
    Resolved,
    Resumed,
    Trigger,
)
from ...ports import EventLog
from ...subjects import DecodeError

AUDITED = (Defined, Paused, Resumed, Deleted, Trigger, Cancelled, Replayed, Resolved)


async def audit_trail(
    log: EventLog, job: str | None = None, *, since: datetime | None = None
) -> list[Recorded[Message]]:
    """What somebody asked for, of one job or of all, the oldest first; cancellations and settlements by the system are not."""
    found = [[recorded async for recorded in _read(log, one)] for one in subjects.audit_filters(job)]
    merged = merge(*found, key=attrgetter("time"))
    return [one for one in merged if (since is None or one.time >= since) and _is_asked(one.message)]


def asked_by(message: Message) -> Actor | None:
    """Who asked for it, if that was said."""
    found: Actor | None = getattr(message, "by", None)
    return found


def _is_asked(message: Message) -> bool:
    # What a stage decides by itself names nobody; a definition or a trigger always has an author, named or not.
    return isinstance(message, AUDITED[:5]) or (isinstance(message, AUDITED) and asked_by(message) is not None)


async def _read(log: EventLog, subject: str) -> AsyncIterator[Recorded[Message]]:
    after = 0
    while True:
        try:
            batch = await log.read(subject, after=after)
        except DecodeError as error:
            if error.sequence is None:
                raise
            after = error.sequence
            continue
        if not batch:
            return
        for recorded in batch:
            yield recorded
        after = batch[-1].sequence
