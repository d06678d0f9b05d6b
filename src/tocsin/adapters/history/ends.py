"""Counts of ended executions, from the newest ends of each status."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from ...domain.execution_record import Status
from ...ports.summaries import End, EndCounts

_MINUTE = timedelta(minutes=1)


def counted(ends: Mapping[Status, Mapping[End, int]], since: datetime, limit: int) -> EndCounts:
    """Return counts of ends by status, from a minute on without gaps.

    From that minute on, no status lacks an end. `ends` are the newest `limit` ends of each status at or after `since`.
    """
    oldest = [min(end.minute for end in found) + _MINUTE for found in ends.values() if sum(found.values()) >= limit]
    begin = max([since, *oldest])
    counts: dict[Status, Mapping[End, int]] = {}
    for status, found in ends.items():
        of_status = {end: count for end, count in found.items() if end.minute + _MINUTE > begin} if oldest else found
        if of_status:
            counts[status] = of_status
    return EndCounts(begin, counts)
