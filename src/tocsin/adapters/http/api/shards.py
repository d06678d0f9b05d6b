"""`/v1/shards`: the shard map, and another in its place."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from ....domain.definition.partition import MAX_SHARDS
from ....domain.events import Shard
from ....domain.shard_map import ShardEntry
from ....services.shards import ShardMaps
from ..auth.security import Administrator, Reader, actor
from ..middleware.idempotency import IdempotentRoute
from .dependencies import ChangeRequest, Here, Reason, given_reason

router = APIRouter(prefix="/v1/shards", tags=["shards"], route_class=IdempotentRoute)


class ShardMapDetails(BaseModel):
    """The newest map; without a map, `version` is 0."""

    version: int
    shards: list[Shard]


class ShardMapRequest(ChangeRequest):
    """The whole map."""

    shards: Annotated[list[ShardEntry], Field(max_length=MAX_SHARDS)]


class ShardMapApplied(BaseModel):
    """Whether the request changed the map."""

    changed: bool


@router.get("", operation_id="getShards")
async def get_shards(here: Here, caller: Reader) -> ShardMapDetails:
    """Show the shards of the newest map."""
    _ = caller
    newest = await ShardMaps(here.log).newest()
    return ShardMapDetails(version=newest.version, shards=list(newest.shards))


@router.put("", operation_id="applyShards")
async def apply_shards(
    here: Here, caller: Administrator, body: ShardMapRequest, reason: Reason = None
) -> ShardMapApplied:
    """Replace the shard map.

    Occurrences that come due from then on use it; those that came due before use the map that they name.
    """
    shards = [entry.shard for entry in body.shards]
    why = given_reason(body, reason)
    return ShardMapApplied(changed=await ShardMaps(here.log).apply(shards, by=actor(caller), reason=why))
