"""`/v1/dead-letters`: list, show, replay and resolve dead letters (hip-62, Dead Letter Handling)."""

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field, JsonValue

from ....domain.access import Permission, Principal
from ....domain.definition import Text
from ....domain.events import Actor
from ....ports import DeadLetterRow
from ....ports.queries import DeadLetterQuery, DeadLetterSort
from ....services.operations import dead_letters
from ....services.operations.dead_letters import Letter, Replay, Resolution
from ....services.operations.errors import NotFound, SharedId
from ....services.operations.errors import OperationError as NotPossible
from ..auth.security import HistoryReader, Replayer, actor, forbidden
from ..auth.visibility import Run
from ..middleware.idempotency import IdempotentRoute, request_name
from .dependencies import Components, Here, Reason, ReasonText
from .events import StoredFact
from .problems import documented

router = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"], route_class=IdempotentRoute)

LetterId: TypeAlias = Annotated[
    str, Path(description="The dead letter's id.", pattern=r"^[A-Za-z0-9][A-Za-z0-9_\-]*$", max_length=128)
]

LetterJob: TypeAlias = Annotated[
    Text | None,
    Query(
        alias="job",
        description="The dead letter's job, as lists have it. It is needed if dead letters of several jobs that the caller may see have the id.",
    ),
]


class GroupFilters(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """Filters of dead letters before they are grouped."""

    job: Text | None = None
    unresolved: bool = True
    """Return unresolved dead letters only."""
    since: datetime | None = None
    """The earliest last attempt."""
    until: datetime | None = None
    """The last attempt is before this instant."""


class DeadLetterFilters(GroupFilters):
    """Filters and order of a list of dead letters."""

    error: Text | None = None
    """Text that the last error contains."""
    pattern: Text | None = None
    """The pattern of the last error, as a group has it."""
    id_prefix: Text | None = None
    sort: DeadLetterSort = "newest"
    cursor: Text | None = None
    """`next` of the previous page."""
    limit: int = Field(default=50, ge=1, le=1_000)


@dataclass(frozen=True, slots=True)
class ListedDeadLetter(DeadLetterRow):
    """A dead letter in a list."""

    permitted: tuple[Permission, ...] = ()
    """`replay`, if the caller may replay and resolve it."""

    @classmethod
    def of(cls, row: DeadLetterRow, permitted: tuple[Permission, ...]) -> "ListedDeadLetter":
        return cls(**{field.name: getattr(row, field.name) for field in fields(row)}, permitted=permitted)


class DeadLetterList(BaseModel):
    """A page of dead letters; `next` is the cursor of the following page."""

    dead_letters: list[ListedDeadLetter]
    next: str | None = None


class ReplayState(BaseModel):
    """A replay and the status of its execution."""

    number: int
    time: datetime
    execution_id: str
    status: str
    input: dict[str, JsonValue] | None
    by: Actor | None
    reason: str | None


class DeadLetterDetails(BaseModel, use_attribute_docstrings=True):
    """The current state of a dead letter, folded from its events."""

    id: str
    job: str
    resolved: bool
    resolution: dict[str, Any] | None
    """The event that resolved it."""
    letter: dict[str, Any]
    """The event that created it: `dead-lettered` with every attempt, or `refused` with the unusable message."""
    replays: list[ReplayState]
    permitted: list[Permission] = []
    """`replay`, if the caller may replay and resolve it."""


class DeadLetterFacts(BaseModel):
    """The events of a dead letter, the newest of each subject, oldest first."""

    id: str
    job: str
    facts: list[StoredFact]


class ReplayRequest(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """Options of a replay."""

    input: dict[str, JsonValue] | None = None
    """Its keys override those of the original input."""
    again: bool = False
    """Replay also if another replay is open, or the dead letter is resolved."""
    failed_only: bool = False
    """Adopt the results of the steps that completed, and run the rest."""
    reason: ReasonText | None = None


class Settle(BaseModel, extra="forbid"):
    """A request to resolve a dead letter."""

    resolved: Annotated[
        bool,
        Field(description="Only `true`: a resolved dead letter cannot be reopened.", json_schema_extra={"const": True}),
    ] = True
    reason: ReasonText | None = None


@router.get("", operation_id="listDeadLetters")
async def list_dead_letters(
    here: Here, caller: HistoryReader, filters: Annotated[DeadLetterFilters, Query()]
) -> DeadLetterList:
    """List dead letters.

    A page has fewer than `limit` rows if the caller may not see some of them.
    """
    page = await here.history.dead_letters(DeadLetterQuery(**filters.model_dump(), namespaces=caller.reached))
    rows = [row for row in page.rows if await here.visibility.may_see_run(caller, Run.of(row))]
    may_replay = caller.may(Permission.REPLAY) or caller.may(Permission.REGISTER)
    listed = [
        ListedDeadLetter.of(row, await _permitted(here, caller, Run.of(row)) if may_replay else ()) for row in rows
    ]
    return DeadLetterList(dead_letters=listed, next=page.cursor)


@router.get("/{id}", operation_id="getDeadLetter", responses=documented(404, 409))
async def get_dead_letter(here: Here, caller: HistoryReader, id: LetterId, job: LetterJob = None) -> DeadLetterDetails:
    """Show a dead letter: every attempt, the last error, and the status of its replays."""
    letter = await _visible_letter(here, caller, id, job)
    details = DeadLetterDetails.model_validate(letter.document())
    details.permitted = [*await _permitted(here, caller, Run.of(letter))]
    return details


@router.get("/{id}/events", operation_id="getDeadLetterEvents", responses=documented(404, 409))
async def get_dead_letter_events(
    here: Here, caller: HistoryReader, id: LetterId, job: LetterJob = None
) -> DeadLetterFacts:
    """List the events of a dead letter."""
    letter = await _visible_letter(here, caller, id, job)
    return DeadLetterFacts(id=letter.id, job=letter.job, facts=[StoredFact.of(recorded) for recorded in letter.facts])


@router.post("/{id}/replay", status_code=202, operation_id="replayDeadLetter", responses=documented(404, 409))
async def replay_dead_letter(
    here: Here,
    caller: Replayer,
    request: Request,
    id: LetterId,
    body: ReplayRequest | None = None,
    reason: Reason = None,
    job: LetterJob = None,
) -> Replay:
    """Run a failed execution again with the job's current definition.

    A completed replay resolves the dead letter.
    """
    body = body or ReplayRequest()
    letter = await _replayable_letter(here, caller, id, job)
    name = request_name(request)
    return await dead_letters.replay(
        here.log,
        letter.id,
        job=letter.job,
        input=body.input,
        by=actor(caller),
        reason=body.reason or reason,
        again=body.again,
        failed_only=body.failed_only,
        request=name.name if name else None,
    )


@router.patch("/{id}", operation_id="resolveDeadLetter", responses=documented(404, 409))
async def resolve_dead_letter(
    here: Here,
    caller: Replayer,
    id: LetterId,
    body: Settle | None = None,
    reason: Reason = None,
    job: LetterJob = None,
) -> Resolution:
    """Resolve a dead letter without running it again."""
    body = body or Settle()
    if not body.resolved:
        raise NotPossible(
            f"dead letter {id!r} cannot be set to unresolved. Send `resolved: true`, or replay it with `again: true`"
        )
    letter = await _replayable_letter(here, caller, id, job)
    cause = body.reason or reason
    return await dead_letters.resolve(here.log, letter.id, job=letter.job, by=actor(caller), reason=cause)


async def _permitted(here: Components, caller: Principal, run: Run) -> tuple[Permission, ...]:
    return (Permission.REPLAY,) if await here.visibility.permits_replay(caller, run) else ()


async def _visible_letter(here: Components, caller: Principal, given: str, job: str | None) -> Letter:
    try:
        letters = [await dead_letters.find(here.log, given, job=job)]
    except SharedId as error:
        letters = [await dead_letters.find(here.log, given, job=each) for each in error.matches]
    visible = [letter for letter in letters if await here.visibility.may_see_run(caller, Run.of(letter))]
    if not visible:
        raise NotFound(f"no dead letter has the id {given!r}")
    if len(visible) > 1:
        raise SharedId(given, tuple(letter.job for letter in visible))
    return visible[0]


async def _replayable_letter(here: Components, caller: Principal, given: str, job: str | None) -> Letter:
    letter = await _visible_letter(here, caller, given, job)
    if not await here.visibility.permits_replay(caller, Run.of(letter)):
        raise forbidden(caller, Permission.REPLAY)
    return letter
