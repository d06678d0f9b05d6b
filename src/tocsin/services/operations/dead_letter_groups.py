"""Dead letters in groups: of one job, with errors of one kind."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ...ports.summaries import LetterGroup

MAX_GROUPS: Final = 200
MAX_PARTS: Final = 2_000
"""Groups of one definition that are read for callers that may not see every definition."""


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of a job whose last errors have one pattern."""

    job: str
    pattern: str
    """The first line of the errors, with `<n>`, `<id>` and `<hex>` in place of what differs."""
    count: int
    first: datetime
    """The earliest last attempt."""
    last: datetime
    """The latest last attempt."""
    example: str
    """The id of the newest dead letter."""


def groups_of(parts: Iterable[LetterGroup]) -> list[DeadLetterGroup]:
    """Put groups of a job and a pattern together. The largest come first."""
    members: dict[tuple[str, str], list[LetterGroup]] = {}
    for part in parts:
        members.setdefault((part.job_name, part.pattern), []).append(part)
    groups = [
        DeadLetterGroup(
            job=job,
            pattern=pattern,
            count=sum(part.count for part in of_group),
            first=min(part.first for part in of_group),
            last=max(part.last for part in of_group),
            example=max((part.last, part.example) for part in of_group)[1],
        )
        for (job, pattern), of_group in members.items()
    ]
    return sorted(groups, key=lambda group: (-group.count, -group.last.timestamp(), group.job, group.pattern))
