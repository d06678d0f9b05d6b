"""Dead letters in groups: of one job, with errors of one kind."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ...domain.error_pattern import error_pattern
from ...ports.summaries import LetterHead

MAX_GROUPED: Final = 10_000
"""Dead letters that are read."""
MAX_GROUPS: Final = 200


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


def groups_of(letters: Iterable[LetterHead]) -> list[DeadLetterGroup]:
    """Group dead letters, which come newest first. The largest groups come first."""
    members: dict[tuple[str, str], list[LetterHead]] = {}
    for letter in letters:
        members.setdefault((letter.job_name, error_pattern(letter.last_error or "")), []).append(letter)
    groups = [
        DeadLetterGroup(
            job=job,
            pattern=pattern,
            count=len(of_group),
            first=of_group[-1].last_attempt,
            last=of_group[0].last_attempt,
            example=of_group[0].id,
        )
        for (job, pattern), of_group in members.items()
    ]
    return sorted(groups, key=lambda group: (-group.count, -group.last.timestamp(), group.job, group.pattern))
