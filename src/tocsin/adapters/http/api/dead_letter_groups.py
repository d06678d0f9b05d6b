"""`/v1/dead-letters/groups`: dead letters by job and kind of error."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from ....domain.definition import Text
from ....ports.queries import DeadLetterQuery
from ....ports.summaries import LetterGroup
from ..auth.security import HistoryReader
from ..auth.visibility import Run
from ..auth.visible_runs import VisibleRuns
from .dependencies import Here

router = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"])


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


class GroupFilters(BaseModel):
    """Filters of dead letters before they are grouped."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    job: Text | None = None
    unresolved: bool = True
    """Group unresolved dead letters only."""
    since: datetime | None = None
    """The earliest last attempt."""
    until: datetime | None = None
    """The last attempt is before this instant."""


class DeadLetterGroups(BaseModel):
    """Groups of dead letters, the largest first."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    groups: list[DeadLetterGroup]
    complete: bool
    """false: there are more groups; of a history in Redis, only the newest 10,000 dead letters are grouped."""


@router.get("/groups", operation_id="groupDeadLetters")
async def group_dead_letters(
    here: Here, caller: HistoryReader, filters: Annotated[GroupFilters, Query()]
) -> DeadLetterGroups:
    """Group dead letters by job and kind of error.

    With its job and `pattern`, a group can be listed and replayed.
    """
    query = DeadLetterQuery(**filters.model_dump(), namespaces=caller.reached)
    await here.registry.jobs()
    sees = VisibleRuns(here.visibility, caller, here.registry.last_listed)
    limit = MAX_GROUPS if sees.all else MAX_PARTS
    parts = await here.history.summaries.letter_groups(query, limit=limit, by_definition=not sees.all)
    visible = [
        part
        for part in parts.groups
        if await sees.includes(Run(part.job_name, part.definition, part.first_attempt or part.last))
    ]
    groups = groups_of(visible)
    return DeadLetterGroups(groups=groups[:MAX_GROUPS], complete=parts.is_complete and len(groups) <= MAX_GROUPS)
