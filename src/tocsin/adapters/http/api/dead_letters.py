"""`/v1/dead-letters`: what failed for good, and what is done about it (hip-62, Dead Letter Handling)."""

from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ....domain.access import Permission, Principal
from ....domain.definition import Text
from ....domain.events import Actor
from ....ports import DeadLetterRow
from ....ports.queries import DeadLetterQuery, DeadLetterSort, every
from ....services.operations import dead_letters
from ....services.operations.dead_letters import Letter
from ....services.operations.errors import NotFound
from ....services.operations.errors import OperationError as NotPossible
from ..auth.security import Reader, Replayer, actor, forbidden
from ..middleware.idempotency import IdempotentRoute, asking
from .dependencies import Components, Here, Reason, ReasonText
from .events import StoredFact
from .problems import documented

AT_ONCE: Final = 100
"""Dead letters that one request replays: what is left is for the next."""

router = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"], route_class=IdempotentRoute)

LetterId: TypeAlias = Annotated[
    str, Path(description="The dead letter's id.", pattern=r"^[A-Za-z0-9][A-Za-z0-9_\-]*$", max_length=128)
]


class DeadLetterFilters(BaseModel):
    """Which dead letters."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    job: Text | None = None
    unresolved: bool = True
    """Only those that nobody has dealt with."""
    since: datetime | None = None
    """Last attempted then or later."""
    until: datetime | None = None
    """Last attempted before that."""
    error: Text | None = None
    """A text that their last error contains."""
    id_prefix: Text | None = None
    sort: DeadLetterSort = "newest"
    cursor: Text | None = None
    """`next` of the page before."""
    limit: int = Field(default=50, ge=1, le=1_000)


class DeadLetterList(BaseModel):
    """A page of dead letters; `next` is the cursor of the one behind it."""

    dead_letters: list[DeadLetterRow]
    next: str | None = None


class ReplayState(BaseModel):
    """A replay, and what has become of its execution."""

    number: int
    time: datetime
    execution_id: str
    status: str
    input: dict[str, JsonValue] | None
    by: Actor | None
    reason: str | None


class DeadLetterDetails(BaseModel):
    """A dead letter as its facts tell it at this moment."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    job: str
    resolved: bool
    resolution: dict[str, Any] | None
    """The fact that resolved it."""
    letter: dict[str, Any]
    """What it holds: `dead-lettered` with every attempt, or `refused` with the message that could not be used."""
    replays: list[ReplayState]


class DeadLetterFacts(BaseModel):
    """The facts of one dead letter, the newest of each subject, oldest first."""

    id: str
    job: str
    facts: list[StoredFact]


class ReplayRequest(BaseModel):
    """How it is to be done again."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    input: dict[str, JsonValue] | None = None
    """Its keys go over the input that there was."""
    again: bool = False
    """Even while a replay is open, and even though it is resolved."""
    reason: ReasonText | None = None


class Replayed(BaseModel):
    """A replay that was asked for; a message that is only handed in again has no execution."""

    job: str
    id: str
    number: int
    execution_id: str | None


class ReplayAllRequest(BaseModel):
    """Which of the unresolved ones."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    job: Text | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: Text | None = None
    """A text that their last error contains."""
    limit: int = Field(default=AT_ONCE, ge=1, le=AT_ONCE)
    reason: ReasonText | None = None


class NotReplayed(BaseModel):
    """A dead letter that was passed over."""

    id: str
    reason: str


class ReplayedAll(BaseModel):
    """What was replayed, the oldest first, and what was not."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    replayed: list[Replayed]
    refused: list[NotReplayed]
    complete: bool
    """false: there are more; ask again."""


class Settle(BaseModel):
    """That nothing is left to be done about it."""

    model_config = ConfigDict(extra="forbid")

    resolved: Annotated[
        bool, Field(description="`true`: what is resolved stays so.", json_schema_extra={"const": True})
    ] = True
    reason: ReasonText | None = None


class Settled(BaseModel):
    """What became of that; `changed`: this very request did it."""

    job: str
    id: str
    changed: bool


@router.get("", operation_id="listDeadLetters")
async def list_dead_letters(
    here: Here, caller: Reader, filters: Annotated[DeadLetterFilters, Query()]
) -> DeadLetterList:
    """List dead letters; a page may hold fewer than `limit` where some are not for the caller to see."""
    page = await here.history.dead_letters(DeadLetterQuery(**filters.model_dump()))
    rows = [row for row in page.rows if await here.sight.reaches(caller, row.job_name)]
    return DeadLetterList(dead_letters=rows, next=page.cursor)


@router.post("/replay-all", operation_id="replayAllDeadLetters", responses=documented(409))
async def replay_all(
    here: Here, caller: Replayer, asked: ReplayAllRequest | None = None, reason: Reason = None
) -> ReplayedAll:
    """Replay unresolved dead letters, the oldest first. One whose replay is open is passed over, so asking again is safe."""
    asked = asked or ReplayAllRequest()
    query = DeadLetterQuery(
        job=asked.job, since=asked.since, until=asked.until, error=asked.error, unresolved=True, sort="oldest"
    )
    answer = ReplayedAll(replayed=[], refused=[], complete=True)
    async for row in every(here.history.dead_letters, query):
        if not await here.sight.permits(caller, Permission.REPLAY, row.job_name):
            continue
        if len(answer.replayed) == asked.limit:
            answer.complete = False
            break
        try:
            why = asked.reason or reason
            made = await dead_letters.replay(here.log, row.id, by=actor(caller), reason=why, stored=here.stored)
        except NotPossible as error:
            answer.refused.append(NotReplayed(id=row.id, reason=str(error)))
        else:
            answer.replayed.append(
                Replayed(job=made.job, id=made.id, number=made.number, execution_id=made.execution_id)
            )
    return answer


@router.get("/{id}", operation_id="getDeadLetter", responses=documented(404))
async def get_dead_letter(here: Here, caller: Reader, id: LetterId) -> DeadLetterDetails:  # noqa: A002 - as the path has it
    """Show one dead letter: every attempt, the last error, and what became of its replays."""
    return _details(await _found(here, caller, id))


@router.get("/{id}/events", operation_id="getDeadLetterEvents", responses=documented(404))
async def get_dead_letter_events(here: Here, caller: Reader, id: LetterId) -> DeadLetterFacts:  # noqa: A002 - as the path has it
    """The facts of one dead letter."""
    letter = await _found(here, caller, id)
    return DeadLetterFacts(id=letter.id, job=letter.job, facts=[StoredFact.of(recorded) for recorded in letter.facts])


@router.post("/{id}/replay", status_code=202, operation_id="replayDeadLetter", responses=documented(404, 409))
async def replay_dead_letter(
    here: Here,
    caller: Replayer,
    request: Request,
    id: LetterId,  # noqa: A002 - as the path has it
    asked: ReplayRequest | None = None,
    reason: Reason = None,
) -> Replayed:
    """Run what failed once more, by the job's definition of now. A replay that completes resolves the dead letter."""
    asked = asked or ReplayRequest()
    await _check(here, caller, await _found(here, caller, id))
    called = asking(request)
    made = await dead_letters.replay(
        here.log,
        id,
        input=asked.input,
        by=actor(caller),
        reason=asked.reason or reason,
        again=asked.again,
        request=called.name if called else None,
        stored=here.stored,
    )
    return Replayed(job=made.job, id=made.id, number=made.number, execution_id=made.execution_id)


@router.patch("/{id}", operation_id="resolveDeadLetter", responses=documented(404))
async def resolve_dead_letter(
    here: Here,
    caller: Replayer,
    id: LetterId,  # noqa: A002 - as the path has it
    asked: Settle | None = None,
    reason: Reason = None,
) -> Settled:
    """Acknowledge a dead letter without running it again."""
    asked = asked or Settle()
    if not asked.resolved:
        raise NotPossible(f"dead letter {id!r}: what is resolved stays so, and what is not needs no request")
    await _check(here, caller, await _found(here, caller, id))
    why = asked.reason or reason
    done = await dead_letters.resolve(here.log, id, by=actor(caller), reason=why, stored=here.stored)
    return Settled(job=done.job, id=done.id, changed=done.changed)


async def _found(here: Components, caller: Principal, given: str) -> Letter:
    letter = await dead_letters.find(here.log, given, stored=here.stored)
    if not await here.sight.reaches(caller, letter.job):
        raise NotFound(f"no dead letter has the id {given!r}")
    return letter


async def _check(here: Components, caller: Principal, letter: Letter) -> None:
    if not await here.sight.permits(caller, Permission.REPLAY, letter.job):
        raise forbidden(caller, Permission.REPLAY)


def _details(letter: Letter) -> DeadLetterDetails:
    state = letter.state
    resolved = state.resolved
    return DeadLetterDetails(
        id=letter.id,
        job=letter.job,
        resolved=resolved is not None,
        resolution=None if resolved is None else {"time": resolved.time, **resolved.message.model_dump(mode="json")},
        letter=state.fact.model_dump(mode="json", exclude_none=True),
        replays=[
            ReplayState(
                number=one.fact.number,
                time=one.at,
                execution_id=one.execution_id,
                status=status.value,
                input=one.fact.input,
                by=one.fact.by,
                reason=one.fact.reason,
            )
            for one, status in zip(state.replays, letter.replays, strict=True)
        ],
    )
