"""Counts of ended executions, from the newest ends of each status."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

from ...ports.summaries import EndCounts, EndKey

End: TypeAlias = tuple[datetime, str, int | None]
"""The minute, the job and the definition of an execution that ended."""

_MINUTE = timedelta(minutes=1)


def counted(ends: Mapping[str, Sequence[End]], since: datetime, limit: int) -> EndCounts:
    """Count ends by status, from the minute on of which no status lacks an end.

    `ends` are at most `limit` ends of each status at or after `since`, newest first.
    """
    oldest = [of_status[-1][0] + _MINUTE for of_status in ends.values() if len(of_status) >= limit]
    begin = max([since, *oldest])
    counts: Counter[EndKey] = Counter()
    for status, of_status in ends.items():
        for (minute, job, definition), count in Counter(of_status).items():
            if minute + _MINUTE > begin:
                counts[EndKey(minute, status, job, definition)] = count
    return EndCounts(begin, counts)
