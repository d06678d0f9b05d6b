"""All messages of a subject, read page by page."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from ..domain.events import Message, Recorded
from ..subjects import DecodeError
from .event_log import EventLog

FIRST_BOUNDED_PAGE: Final = 16
"""Messages of the first page of a read that ends at a sequence."""
PAGE_GROWTH: Final = 4
"""Each of its pages is as many times larger than the last. So at most about three times what it yields is read after its end."""


async def pages(
    log: EventLog,
    subject: str,
    *,
    after: int = 0,
    until: int | None = None,
    limit: int = 1_000,
    confirm: bool = False,
) -> AsyncIterator[Sequence[Recorded[Message]]]:
    """Yield the readable messages of a subject, at most `limit` at a time, oldest first.

    A short page is not the end, because a page ends before an unreadable message. `confirm` is as in `EventLog.read`. With `until`,
    the last sequence to yield, pages begin small, so that little is read after it.

    Raises:
        StaleRead: the replicas that were read lag.
    """
    size = limit if until is None else min(limit, FIRST_BOUNDED_PAGE)
    while until is None or after < until:
        try:
            page = await log.read(subject, after=after, limit=size, confirm=confirm)
        except DecodeError as error:
            if error.sequence is None:
                raise
            after = error.sequence
            continue
        if not page:
            return
        after, size = page[-1].sequence, min(limit, size * PAGE_GROWTH)
        wanted = page if until is None else [recorded for recorded in page if recorded.sequence <= until]
        if wanted:
            yield wanted
