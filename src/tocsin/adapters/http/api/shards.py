"""`/v1/shards`: the shard map, and another in its place."""

from typing import Annotated

from fastapi import APIRouter, Header, Response
from pydantic import BaseModel, Field

from ....domain.definition.partition import MAX_SHARDS
from ....domain.events import Shard
from ....domain.shard_map import ShardEntry
from ....services.agents import AgentRegistry
from ....services.shards import ShardMap, ShardMaps, ShardOwner, owners_of, with_owners
from ..auth.security import Administrator, Reader, actor
from ..middleware.idempotency import IdempotentRoute
from .dependencies import ChangeRequest, Here, Reason, require_version, version_tag
from .problems import documented

router = APIRouter(prefix="/v1/shards", tags=["shards"], route_class=IdempotentRoute)


class ShardMapDetails(BaseModel):
    """The newest map; without a map, `version` is 0."""

    version: int
    shards: list[Shard]
    owners: dict[str, ShardOwner] = {}
    """The agent that alone gets the tasks of a shard, by shard; any worker gets those of the others.

    Empty for a caller that is bound to namespaces."""


class ShardMapRequest(ChangeRequest):
    """The whole map."""

    shards: Annotated[list[ShardEntry], Field(max_length=MAX_SHARDS)]


class ShardMapApplied(BaseModel):
    """Whether the request changed the map."""

    changed: bool


@router.get("", operation_id="getShards")
async def get_shards(here: Here, caller: Reader, response: Response) -> ShardMapDetails:
    """Show the shards of the newest map, and their owners."""
    newest = await ShardMaps(here.log).newest()
    if not caller.is_bound:
        agents = await AgentRegistry(here.log, here.projections).agents()
        newest = with_owners(newest, await owners_of(here.log), agents)
    response.headers["ETag"] = version_tag(newest.version)
    return ShardMapDetails.model_validate(newest._asdict())


@router.put("", operation_id="applyShards", responses=documented(412))
async def apply_shards(
    here: Here,
    caller: Administrator,
    body: ShardMapRequest,
    if_match: Annotated[
        str | None, Header(description="Replace the map only if it has this version (its `ETag`).")
    ] = None,
    reason: Reason = None,
) -> ShardMapApplied:
    """Replace the shard map.

    Occurrences that come due from then on use it; those that came due before use the map that they name.
    """
    shards = [entry.shard for entry in body.shards]

    def check(newest: ShardMap) -> None:
        require_version(if_match, newest.version, "shard map")

    changed = await ShardMaps(here.log).apply(shards, check=check, by=actor(caller), reason=body.reason or reason)
    return ShardMapApplied(changed=changed)
