"""`/v1/dead-letters/replay-all`: replay the dead letters that match (hip-62, Dead Letter Handling)."""

from datetime import datetime
from typing import Final

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from ....domain.definition import Text
from ....ports.queries import DeadLetterQuery, every
from ....services.operations import dead_letters
from ....services.operations.errors import OperationError as NotPossible
from ..auth.security import Replayer, actor
from ..auth.visibility import Run
from ..middleware.idempotency import IdempotentRoute
from .dead_letters import Replayed
from .dependencies import Here, Reason, ReasonText
from .problems import documented

MAX_PER_REQUEST: Final = 100
"""Dead letters that a request replays; the next request replays the rest."""

router = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"], route_class=IdempotentRoute)


class ReplayAllRequest(BaseModel):
    """Filters of the unresolved dead letters to replay."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    job: Text | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: Text | None = None
    """Text that the last error contains."""
    pattern: Text | None = None
    """The pattern of the last error, as a group has it."""
    dry_run: bool = False
    """Only list the dead letters in `matching`."""
    limit: int = Field(default=MAX_PER_REQUEST, ge=1, le=MAX_PER_REQUEST)
    reason: ReasonText | None = None


class NotReplayed(BaseModel):
    """A dead letter that was not replayed."""

    id: str
    reason: str


class MatchingLetter(BaseModel):
    """A dead letter that a request would replay."""

    id: str
    job: str


class ReplayedAll(BaseModel):
    """The replayed dead letters, oldest first, and the others."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    replayed: list[Replayed]
    refused: list[NotReplayed]
    matching: list[MatchingLetter] = []
    """With `dry_run`: the dead letters that the request would try, oldest first. Those with an open replay are refused then."""
    complete: bool
    """false: more dead letters match. Repeat the request when these are resolved, because it begins with the oldest unresolved."""


@router.post("/replay-all", operation_id="replayAllDeadLetters", responses=documented(409))
async def replay_all(
    here: Here, caller: Replayer, body: ReplayAllRequest | None = None, reason: Reason = None
) -> ReplayedAll:
    """Replay unresolved dead letters, oldest first.

    A dead letter with an open replay is refused, so repeating the request is safe.
    """
    body = body or ReplayAllRequest()
    query = DeadLetterQuery(
        job=body.job,
        since=body.since,
        until=body.until,
        error=body.error,
        pattern=body.pattern,
        unresolved=True,
        sort="oldest",
        namespaces=caller.reached,
    )
    outcome = ReplayedAll(replayed=[], refused=[], complete=True)
    async for row in every(here.history.dead_letters, query):
        if not await here.visibility.permits_replay(caller, Run.of(row)):
            continue
        if len(outcome.replayed) + len(outcome.matching) == body.limit:
            outcome.complete = False
            break
        if body.dry_run:
            outcome.matching.append(MatchingLetter(id=row.id, job=row.job_name))
            continue
        try:
            cause = body.reason or reason
            replay = await dead_letters.replay(
                here.log, row.id, job=row.job_name, by=actor(caller), reason=cause, stored=here.stored
            )
        except NotPossible as error:
            outcome.refused.append(NotReplayed(id=row.id, reason=str(error)))
        else:
            outcome.replayed.append(
                Replayed(job=replay.job, id=replay.id, number=replay.number, execution_id=replay.execution_id)
            )
    return outcome
