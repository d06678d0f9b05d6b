"""`/v1/changes`: who changed what, newest first."""

from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel

from ....domain.access import Permission, Principal
from ....domain.definition import Name, Text
from ....domain.events import AgentFact, DefinitionFact, Message, QueueFact, Recorded, SilencesDefined, Voided
from ....services.agents import AgentRegistry
from ....services.changes import Change, ChangeFilter, ChangeType, Sees, changes
from ..auth.security import HistoryReader
from ..auth.visibility import sees_agent
from .dependencies import Components, Here

MAX_PAGE: Final = 200

router = APIRouter(prefix="/v1", tags=["overviews"])


class ChangeList(BaseModel, use_attribute_docstrings=True):
    """A page of changes, newest first; `next` is the cursor of the following page."""

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
    return _sees_all if caller.may(Permission.ADMINISTER) else _SeesChange(here, caller)


async def _sees_all(_: Recorded[Message]) -> bool:
    return True


class _SeesChange:
    """Decides for a caller that is no administrator.

    One that is bound to namespaces sees no decisions on the whole installation.
    """

    def __init__(self, here: Components, caller: Principal) -> None:
        self._here = here
        self._caller = caller
        self._queues: frozenset[str] | None = None
        self._agents: frozenset[str] | None = None

    async def __call__(self, recorded: Recorded[Message]) -> bool:
        match recorded.message:
            case DefinitionFact():
                return await self._here.visibility.may_see_event(self._caller, recorded)
            case QueueFact() as fact:
                return await self._sees_queue(fact.queue)
            case AgentFact() as fact if self._caller.is_bound:
                return await self._sees_agents(fact.name)
            case SilencesDefined() as fact if not self._caller.is_bound:  # the end of a silence does not name its job
                jobs = [silence.job for silence in fact.silences if silence.job is not None]
                return self._caller.may(Permission.CANCEL) and all(
                    [await self._here.visibility.may_see(self._caller, name) for name in jobs]
                )
            case fact:
                return not (self._caller.is_bound or isinstance(fact, Voided))

    async def _sees_queue(self, name: str) -> bool:
        if self._queues is None:
            self._queues = frozenset(queue.name for queue in await self._here.queues(self._caller))
        return name in self._queues

    async def _sees_agents(self, name: str) -> bool:
        if self._agents is None:
            known = await AgentRegistry(self._here.log, self._here.projections).agents()
            hidden = {agent.name for agent in known if not sees_agent(self._caller, agent)}
            self._agents = frozenset(agent.name for agent in known) - hidden
        return name in self._agents
