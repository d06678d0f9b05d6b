"""`/v1/notifications`: notifications and their delivery, and `/v1/silences`: list, start and end silences of notifications."""

from typing import Annotated, Final, Self

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field, model_validator

from ....domain.access import Permission, Principal
from ....domain.definition import Name, Timeout
from ....domain.events import Silence
from ....domain.ledger import JobNotFound
from ....domain.silence import LONGEST_S, MAX_TAG
from ....ports.queries import MAX_NOTIFICATIONS, USUAL_LIMIT, NotificationQuery
from ....services.documents import unlimited
from ....services.notifications import NotificationRow, Silences, notifications, silence_not_found
from ..auth.security import Canceller, Reader, SharedOperator, actor, forbidden, visible
from ..auth.visibility import Run
from ..middleware.idempotency import IdempotentRoute
from .dependencies import Components, Here, Reason, ReasonText
from .problems import Problem, documented

OF_INSTALLATION: Final = "by an operator of the installation"
"""The reason of a silence that concerns more than the namespaces of the caller, as the caller sees it."""

router = APIRouter(prefix="/v1", tags=["notifications"], route_class=IdempotentRoute)


class NotificationList(BaseModel):
    """A page of notifications, the newest first; `next` is the cursor of the following page."""

    notifications: list[NotificationRow]
    next: str | None = None


@router.get("/notifications", operation_id="listNotifications")
async def list_notifications(
    here: Here,
    caller: SharedOperator,
    failed: Annotated[bool, Query(description="Only notifications that a receiver did not accept.")] = False,  # noqa: FBT002
    cursor: Annotated[str | None, Query(max_length=32, description="`next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_NOTIFICATIONS)] = USUAL_LIMIT,
) -> NotificationList:
    """List notifications and their delivery, for as long as their stream has them.

    A page has fewer than `limit` rows if the caller may not see some of them, or if `failed` leaves some out.
    """
    page = await notifications(here.log, NotificationQuery(failed=failed, cursor=cursor, limit=limit))
    seen = [row for row in page.rows if await here.visibility.may_see_run(caller, Run(row.job, None, row.at))]
    return NotificationList(notifications=seen, next=page.cursor)


class ListedSilence(Silence, json_schema_serialization_defaults_required=True):
    """A silence in a list."""

    permitted: tuple[Permission, ...] = ()
    """`cancel`, if the caller may end it."""


class SilenceList(BaseModel):
    """The silences in force, the oldest first."""

    silences: list[ListedSilence]


class SilenceRequest(BaseModel):
    """A silence to start: of a job, a tag or all jobs."""

    job: Name | None = None
    tag: Annotated[str, Field(min_length=1, max_length=MAX_TAG)] | None = None
    """A tag that the jobs have."""
    all: bool = False
    duration: Annotated[Timeout, Field(le=LONGEST_S)]
    """How long it lasts: seconds, or a text such as `2h`."""
    reason: Annotated[ReasonText, Field(min_length=1)]

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if sum((self.job is not None, self.tag is not None, self.all)) != 1:
            raise ValueError("give exactly one of `job`, `tag` and `all: true`")
        return self


@router.get("/silences", operation_id="listSilences")
async def list_silences(here: Here, caller: Reader) -> SilenceList:
    """List the silences in force, of jobs that the caller sees."""
    listed = [
        ListedSilence(**dict(silence), permitted=(Permission.CANCEL,) if await _may_end(here, caller, silence) else ())
        for silence in await _seen(here, caller)
    ]
    return SilenceList(silences=listed)


@router.post("/silences", operation_id="startSilence", status_code=201, responses=documented(404))
async def start_silence(here: Here, caller: Canceller, body: SilenceRequest) -> Silence:
    """Record notifications of some jobs for a time, and do not send them.

    The owner of a job may silence that job for at most a day; other silences need the permission `cancel`. A caller that is bound to
    namespaces silences single jobs only, for at most a day.
    """
    await _require_right(here, caller, body.job)
    take = unlimited if body.job is None else here.registry.room.of_name(body.job)
    return await Silences(here.log, here.clock, take=take).start(
        job=body.job,
        tag=body.tag,
        seconds=body.duration,
        reason=body.reason,
        by=actor(caller),
        is_operator=caller.may(Permission.CANCEL) and not caller.is_bound,
        reaches=caller.reaches if caller.is_bound else None,
    )


@router.delete("/silences/{id}", operation_id="endSilence", responses=documented(404))
async def end_silence(
    here: Here,
    caller: Canceller,
    id: Annotated[str, Path(max_length=64, description="The id of the silence.")],
    reason: Reason = None,
) -> Silence:
    """End a silence before its time.

    The owner of a job may end its silences; others need the permission `cancel`.
    """
    silence = next((silence for silence in await _seen(here, caller) if silence.id == id), None)
    if silence is None:
        raise silence_not_found(id)
    if not _ends_any(caller):
        await _require_right(here, caller, silence.job)
    return await Silences(here.log, here.clock).end(id, reason=reason, by=actor(caller))


def _ends_any(caller: Principal) -> bool:
    return caller.may(Permission.CANCEL) and not caller.is_bound


async def _may_end(here: Components, caller: Principal, silence: Silence) -> bool:
    if _ends_any(caller):
        return True
    if not (caller.may(Permission.CANCEL) or caller.may(Permission.REGISTER)):
        return False
    try:
        await _require_right(here, caller, silence.job)
    except (JobNotFound, Problem):
        return False
    return True


async def _require_right(here: Components, caller: Principal, job: str | None) -> None:
    """Check that the caller may silence a job, or, with None, jobs of others."""
    if job is None:
        if caller.is_bound:
            raise Problem(
                403,
                "outside-namespace",
                "tags and `all` silence jobs of the whole installation, and this token is bound to namespaces: silence single jobs",
            )
        is_permitted = caller.may(Permission.CANCEL)
    else:
        is_permitted = caller.may_with(Permission.CANCEL, visible(caller, await here.registry.job(job)))
    if not is_permitted:
        raise forbidden(caller, Permission.CANCEL)


async def _seen(here: Components, caller: Principal) -> list[Silence]:
    """Return the silences in force, without those of jobs that are hidden from the caller.

    A caller that is bound to namespaces sees those of all jobs and of tags of its jobs, and not who started them and why.
    """
    may_see = here.visibility.of(caller)
    active = await Silences(here.log, here.clock).newest()
    seen = [silence for silence in active if silence.job is None or await may_see(silence.job)]
    if not caller.is_bound or all(silence.job is not None for silence in seen):
        return seen
    tags = {tag for job in await here.registry.jobs() if caller.may_see(job) for tag in job.definition.tags}
    return [
        silence if silence.job is not None else silence.model_copy(update={"by": None, "reason": OF_INSTALLATION})
        for silence in seen
        if silence.job is not None or silence.tag is None or silence.tag in tags
    ]
