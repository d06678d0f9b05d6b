"""Dead letters by job and kind of error, and their replay (hip-62, Dead Letter Handling)."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from ....domain.access import Permission, Principal
from ....domain.definition import DefinitionError, Text
from ....ports import DeadLetterRow, History
from ....ports.queries import DeadLetterQuery, InvalidQuery, Place, microseconds
from ....ports.summaries import LetterGroup
from ....services.operations import dead_letters
from ....services.operations.dead_letters import Replay
from ....services.operations.errors import OperationError as NotPossible
from ..auth.security import HistoryReader, Replayer, actor
from ..auth.visibility import Run, VisibleRuns
from ..middleware.idempotency import IdempotentRoute, forget_key, request_name
from .dead_letters import GroupFilters
from .dependencies import Components, Here, Reason, ReasonText
from .problems import documented

MAX_GROUPS: Final = 200
MAX_PARTS: Final = 2_000
"""Groups of one definition that are read for callers that may not see every definition."""
MAX_PER_REQUEST: Final = 100
"""Dead letters that a request tries; the next request goes on after them."""
MAX_SEARCHED: Final = 2_000
"""Dead letters that a request reads to find some that the caller may replay."""
MAX_SECONDS: Final = 10.0
"""The time after which a request reads no further page to find some."""
MAX_REPLAY_SECONDS: Final = 5.0
"""The time after which a request replays no further dead letter, so that it ends before its timeout also on a busy machine."""
_SORT: Final = "oldest"

router = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"], route_class=IdempotentRoute)


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


class DeadLetterGroups(BaseModel, use_attribute_docstrings=True):
    """Groups of dead letters, the largest first."""

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


class ReplayAllRequest(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """Filters of the unresolved dead letters to replay."""

    job: Text | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: Text | None = None
    """Text that the last error contains."""
    pattern: Text | None = None
    """The pattern of the last error, as a group has it."""
    dry_run: bool = False
    """Only list the dead letters in `matching`."""
    cursor: Text | None = None
    """`next` of the previous answer. The other filters are to be the same."""
    limit: int = Field(default=MAX_PER_REQUEST, ge=1, le=MAX_PER_REQUEST)
    """The dead letters to try at most; those that the caller may not replay are left out."""
    reason: ReasonText | None = None


class NotReplayed(BaseModel):
    """A dead letter that was not replayed."""

    id: str
    reason: str


class MatchingLetter(BaseModel):
    """A dead letter that a request would replay."""

    id: str
    job: str


class ReplayedAll(BaseModel, use_attribute_docstrings=True):
    """The replayed dead letters, oldest first, and the others."""

    replayed: list[Replay]
    refused: list[NotReplayed]
    matching: list[MatchingLetter] = []
    """With `dry_run`: the dead letters that the request would try, oldest first. Those with an open replay are refused then."""
    total: int | None = None
    """With `dry_run` and without `cursor`: all dead letters that this request and those that follow it would try. null: they are too many kinds to count."""
    complete: bool
    """false: `next` continues."""
    next: str | None = None
    """The cursor of the next request, which tries those that also matched at the first request. An answer without dead letters may have it."""


@dataclass(frozen=True, slots=True)
class _Cursor:
    """A place in the list, and the end.

    The end is the newest dead letter that matched at the first request. Without an end, replays that fail again at once would add dead letters as fast as requests replay them.
    """

    page: str
    end: Place

    @classmethod
    def read(cls, text: str) -> "_Cursor":
        """Return the cursor that a text stands for."""
        page, _, end = text.partition(".")
        try:
            Place.read(page, _SORT)
            return cls(page, Place.read(end, _SORT))
        except InvalidQuery:
            raise InvalidQuery("cursor", text, "not a cursor: use `next` of the answer before") from None

    def __str__(self) -> str:
        return f"{self.page}.{self.end.cursor}"


class _Batch(NamedTuple):
    """The dead letters of a request, with the cursor after each; None: the last."""

    letters: Sequence[tuple[DeadLetterRow, _Cursor | None]]
    next: _Cursor | None


async def _page(history: History, query: DeadLetterQuery, cursor: _Cursor | None) -> _Batch:
    page = await history.dead_letters(replace(query, sort=_SORT, cursor=cursor.page if cursor else None))
    rows, is_last = page.rows, page.cursor is None
    if cursor is not None:
        rows = [row for row in rows if microseconds(row.last_attempt) <= cursor.end.key]
        is_last |= len(rows) < len(page.rows)
        end = cursor.end
    elif rows:
        newest = () if is_last else (await history.dead_letters(replace(query, sort="newest", limit=1))).rows
        [last, *_] = newest or rows[-1:]
        end = Place(_SORT, microseconds(last.last_attempt), last.id)
    else:
        return _Batch((), None)
    cursors = [_Cursor(place.cursor, end) for place in page.places[: len(rows)]]
    following = None if is_last else _Cursor(page.cursor or "", end)
    return _Batch([*zip(rows, [*cursors[:-1], following], strict=False)], following)


async def _permitted_page(
    here: Components, caller: Principal, query: DeadLetterQuery, cursor: _Cursor | None
) -> _Batch:
    """Return the next dead letters that the caller may replay; perhaps none before the cursor."""
    clock = asyncio.get_running_loop()
    end, searched = clock.time() + MAX_SECONDS, 0
    while True:
        page = await _page(here.history, query, cursor)
        tried = [letter for letter in page.letters if await here.visibility.permits_replay(caller, Run.of(letter[0]))]
        cursor, searched = page.next, searched + len(page.letters)
        if tried or cursor is None or searched >= MAX_SEARCHED or clock.time() >= end:
            return _Batch(tried, cursor)
        await asyncio.sleep(0)  # what is in memory is read without a turn of others


async def _total(here: Components, caller: Principal, query: DeadLetterQuery) -> int | None:
    """Return how many matching dead letters the caller may replay; None: too many kinds."""
    may_replay_all = caller.may(Permission.ADMINISTER)
    parts = await here.history.summaries.letter_groups(query, limit=MAX_PARTS, by_definition=not may_replay_all)
    if not parts.is_complete:
        return None
    total = 0
    for part in parts.groups:
        run = Run(part.job_name, part.definition, part.first_attempt or part.last)
        if may_replay_all or await here.visibility.permits_replay(caller, run):
            total += part.count
    return total


@router.post("/replay-all", operation_id="replayAllDeadLetters", responses=documented(409))
async def replay_all(
    here: Here, caller: Replayer, request: Request, body: ReplayAllRequest | None = None, reason: Reason = None
) -> ReplayedAll:
    """Replay unresolved dead letters, oldest first.

    A request tries up to `limit`, for five seconds; repeat it with `next` as `cursor` for the others. A dead letter with an open replay is
    refused. Dead letters that appear after the first request are left out.
    """
    body = body or ReplayAllRequest()
    filters = body.model_dump(include={"job", "since", "until", "error", "pattern", "limit"})
    query = DeadLetterQuery(**filters, unresolved=True, namespaces=caller.reached)
    cursor = None if body.cursor is None else _Cursor.read(body.cursor)
    batch = await _permitted_page(here, caller, query, cursor)
    if body.dry_run:
        forget_key(request)
        preview = _answer([], [], batch.next)
        preview.matching = [MatchingLetter(id=row.id, job=row.job_name) for row, _ in batch.letters]
        if body.cursor is None:
            preview.total = len(batch.letters) if batch.next is None else await _total(here, caller, query)
        return preview
    name, clock = request_name(request), asyncio.get_running_loop()
    end, following = clock.time() + MAX_REPLAY_SECONDS, batch.next
    replayed, refused = list[Replay](), list[NotReplayed]()
    for row, after in batch.letters:
        try:
            replay = await dead_letters.replay(
                here.log,
                row.id,
                job=row.job_name,
                by=actor(caller),
                reason=body.reason or reason,
                request=name.name if name else None,
            )
        except (NotPossible, DefinitionError) as error:
            refused.append(NotReplayed(id=row.id, reason=str(error)))
        else:
            replayed.append(replay)
        if clock.time() >= end and row is not batch.letters[-1][0]:
            following = after
            break
    return _answer(replayed, refused, following)


def _answer(replayed: list[Replay], refused: list[NotReplayed], following: _Cursor | None) -> ReplayedAll:
    return ReplayedAll(
        replayed=replayed,
        refused=refused,
        complete=following is None,
        next=None if following is None else str(following),
    )
