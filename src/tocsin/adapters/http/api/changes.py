"""`/v1/changes`: who changed what, newest first."""

from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from ....domain.access import Permission, Principal
from ....domain.definition import Name, Text
from ....domain.events import DefinitionFact, Message, QueueFact, Recorded, SilencesDefined, Voided
from ....services.changes import Change, ChangeFilter, ChangeType, Sees, changes
from ..auth.security import HistoryReader
from .dependencies import Components, Here

MAX_PAGE: Final = 200

router = APIRouter(prefix="/v1", tags=["overviews"])


class ChangeList(BaseModel):
    """A page of changes, newest first; `next` is the cursor of the following page."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    changes: list[Change]
    next: int | None = None


@router.get("/changes", operation_id="listChanges")
async def list_changes(
    here: Here,
    caller: HistoryReader,
    job: Annotated[Name | None, Query(description="Return changes of this job only.")] = None,
    by: Annotated[
        Text | None, Query(description="Return changes by this identity only, such as `ada` or `token:deploy`.")
    ] = None,
    type: Annotated[list[ChangeType] | None, Query(description="Return changes of these types only.")] = None,  # noqa: A002 - the query parameter has this name
    after: Annotated[
        int | None, Query(ge=1, lt=2**63, description="Return older changes: `next` of the previous page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> ChangeList:
    """List who changed which jobs, and what operators decided.

    Decisions are on agents, queues, shards, silences and the policy.

    A page may have fewer than `limit` changes and still have a `next`.
    """
    wanted = ChangeFilter(job=job, by=by, types=frozenset(type) if type else None)
    page, following = await changes(here.log, wanted, _sees(here, caller), before=after, limit=limit)
    return ChangeList(changes=list(page), next=following)


def _sees(here: Components, caller: Principal) -> Sees:
    """Return whether a caller may see a change.

    Changes of jobs are visible as on `/v1/events`, and decisions on the installation as in the list of what they changed.
    """
    queues: frozenset[str] | None = None

    async def sees(recorded: Recorded[Message]) -> bool:
        nonlocal queues
        fact = recorded.message
        if caller.may(Permission.ADMINISTER):
            return True
        match fact:
            case DefinitionFact():
                return await here.visibility.may_see_event(caller, recorded)
            case QueueFact():
                if queues is None:
                    queues = frozenset(queue.name for queue in await here.queue_details(caller.may_see))
                return fact.queue in queues
            case SilencesDefined():  # the end of a silence does not name its job
                jobs = [silence.job for silence in fact.silences if silence.job is not None]
                return caller.may(Permission.CANCEL) and all(
                    [await here.visibility.may_see(caller, name) for name in jobs]
                )
            case Voided():
                return False
            case _:
                return True

    return sees
