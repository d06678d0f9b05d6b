"""All messages of a subject, read page by page."""

from collections.abc import AsyncIterator, Sequence

from ..domain.events import Message, Recorded
from ..subjects import DecodeError
from .event_log import EventLog


async def pages(
    log: EventLog, subject: str, *, after: int = 0, limit: int = 1_000, confirm: bool = False
) -> AsyncIterator[Sequence[Recorded[Message]]]:
    """Yield the readable messages of a subject, at most `limit` at a time, oldest first.

    A short page is not the end, because a page ends before an unreadable message. `confirm` is as in `EventLog.read`.

    Raises:
        StaleRead: the replicas that were read lag.
    """
    while True:
        try:
            page = await log.read(subject, after=after, limit=limit, confirm=confirm)
        except DecodeError as error:
            if error.sequence is None:
                raise
            after = error.sequence
            continue
        if not page:
            return
        yield page
        after = page[-1].sequence
