"""`/v1/shards`, `/v1/namespaces` and `/v1/policy`: documents that administrators declare; and `/v1/definition-settings`."""

from dataclasses import replace
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Header, Path, Query, Response
from pydantic import BaseModel, Field

from ....domain.definition import Timeout
from ....domain.definition.partition import MAX_SHARDS
from ....domain.namespaces import MAX_NAMESPACES, NamespaceEntry, checked
from ....domain.policy import UNUSED, Policy
from ....domain.shard_map import ShardEntry
from ....services.definition_settings import DefinitionSettings
from ....services.documents import PolicyVersion
from ....services.namespaces import NamespaceChange, NamespaceDetails, NamespaceMap, Namespaces, changes, details
from ....services.shards import ShardMap, ShardMaps, owners_of, with_owners
from ..auth.security import Administrator, Author, Reader, actor
from ..middleware.idempotency import IdempotentRoute
from .dependencies import ChangeRequest, Here, Reason, ReasonText, version_check, version_tag
from .problems import documented, not_found

router = APIRouter(prefix="/v1", route_class=IdempotentRoute)

IfMatch: TypeAlias = Annotated[
    str | None, Header(description="Replace the declaration only if it has this version (its `ETag`).")
]


class ShardMapRequest(ChangeRequest):
    """The whole map."""

    shards: Annotated[list[ShardEntry], Field(max_length=MAX_SHARDS)]


class ShardMapApplied(BaseModel):
    """Whether the request changed the map."""

    changed: bool


@router.get("/shards", operation_id="getShards", tags=["shards"])
async def get_shards(here: Here, caller: Reader, response: Response) -> ShardMap:
    """Show the shards of the newest map, and their owners."""
    newest = await ShardMaps(here.log).newest()
    if not caller.is_bound:
        newest = with_owners(newest, await owners_of(here.log), await here.agents.agents())
    response.headers["ETag"] = version_tag(newest.version)
    return newest


@router.put("/shards", operation_id="applyShards", tags=["shards"], responses=documented(412))
async def apply_shards(
    here: Here, caller: Administrator, body: ShardMapRequest, if_match: IfMatch = None, reason: Reason = None
) -> ShardMapApplied:
    """Replace the shard map.

    Occurrences that come due from then on use it; those that came due before use the map that they name.
    """
    shards, check = [entry.shard for entry in body.shards], version_check(if_match, "shard map")
    changed = await ShardMaps(here.log).apply(shards, check=check, by=actor(caller), reason=body.reason or reason)
    return ShardMapApplied(changed=changed)


class NamespacesRequest(ChangeRequest):
    """All namespaces."""

    namespaces: Annotated[list[NamespaceEntry], Field(max_length=MAX_NAMESPACES)]


class NamespacesApplied(BaseModel):
    """The changes that the request made, or with `dry_run` would make."""

    changed: bool
    changes: list[NamespaceChange]


@router.get("/namespaces", operation_id="listNamespaces", tags=["namespaces"])
async def list_namespaces(here: Here, caller: Reader, response: Response) -> NamespaceMap:
    """List the namespaces. A caller that is bound to namespaces sees only these."""
    newest = await Namespaces(here.log).newest()
    response.headers["ETag"] = version_tag(newest.version)
    bound = caller.namespaces
    seen = tuple(namespace for namespace in newest.namespaces if bound is None or namespace.name in bound)
    return replace(newest, namespaces=seen)


@router.get("/namespaces/{name}", operation_id="getNamespace", tags=["namespaces"], responses=documented(404))
async def get_namespace(
    here: Here, caller: Reader, name: Annotated[str, Path(description="The name of the namespace.", max_length=255)]
) -> NamespaceDetails:
    """Show a namespace: the jobs that the caller sees, and its use of daily quotas."""
    if caller.namespaces is not None and name not in caller.namespaces:
        raise not_found("namespace", name)
    namespace = (await Namespaces(here.log).newest()).named(name)
    jobs = [job.definition for job in await here.registry.jobs() if caller.may_see(job)]
    return await details(namespace, jobs, here.projections, here.clock)


@router.put("/namespaces", operation_id="applyNamespaces", tags=["namespaces"], responses=documented(412))
async def apply_namespaces(
    here: Here,
    caller: Administrator,
    body: NamespacesRequest,
    if_match: IfMatch = None,
    reason: Reason = None,
    *,
    dry_run: Annotated[bool, Query(description="Only answer what would change.")] = False,
) -> NamespacesApplied:
    """Declare all namespaces.

    Jobs and queues whose names begin with a declared namespace and a dot belong to it from then on. Jobs that refer to queues or jobs of
    another namespace run on, and are refused when they are registered again.
    """
    wanted = checked(entry.namespace for entry in body.namespaces)
    check = version_check(if_match, "list of namespaces")
    before = await Namespaces(here.log).newest()
    check(before)
    planned = changes(before.namespaces, wanted, [job.definition for job in await here.registry.jobs()])
    if dry_run:
        return NamespacesApplied(changed=False, changes=list(planned))
    changed = await Namespaces(here.log).apply(wanted, check=check, by=actor(caller), reason=body.reason or reason)
    return NamespacesApplied(changed=changed, changes=list(planned))


class PolicyRequest(Policy):
    """The whole policy.

    A field that is absent or null is not set. Then what applies without a policy applies.
    """

    polling_interval: Timeout | None = None
    """Accepted, and without effect: no agent polls."""
    reason: ReasonText | None = None
    """The reason for the change, recorded in its event."""


class PolicyChanged(BaseModel):
    """The policy after a request."""

    changed: bool
    policy: PolicyVersion
    unused: Annotated[dict[str, str], Field(description="Fields of the request without effect, with the reason.")]


@router.get("/policy", operation_id="getPolicy", tags=["policy"])
async def get_policy(here: Here, caller: Reader, response: Response) -> PolicyVersion:
    """Show the scheduler policy (scratchbird §3.4), its version, and who defined it.

    A caller that is bound to namespaces does not learn who did, or why.
    """
    current = await here.registry.policies.newest()
    response.headers["ETag"] = version_tag(current.version)
    return replace(current, by=None, reason=None) if caller.is_bound else current


@router.put("/policy", operation_id="putPolicy", tags=["policy"], responses=documented(412))
async def put_policy(
    here: Here,
    caller: Administrator,
    body: PolicyRequest,
    response: Response,
    if_match: IfMatch = None,
    reason: Reason = None,
) -> PolicyChanged:
    """Define the whole scheduler policy.

    Running tasks finish, and executions that are planned keep their timeouts. Jobs that are registered keep theirs until they are
    registered again.
    """
    wanted = Policy.model_validate(body.model_dump(include=set(Policy.model_fields)))

    def replaced(current: PolicyVersion) -> Policy:
        version_check(if_match, "policy")(current)
        return wanted

    changed = await here.registry.policies.define(replaced, by=actor(caller), reason=body.reason or reason)
    current = await here.registry.policies.newest()
    response.headers["ETag"] = version_tag(current.version)
    unused = {name: why for name, why in UNUSED.items() if getattr(body, name) is not None}
    return PolicyChanged(changed=changed, policy=current, unused=unused)


@router.get("/definition-settings", operation_id="getDefinitionSettings", tags=["jobs"])
async def get_definition_settings(here: Here, caller: Author) -> DefinitionSettings:
    """List the channels of notifications, and the sources that are open to triggers of jobs.

    The answer has no names of secrets, and no channels outside the namespaces of the caller. Its `absent` and `work_queues` may be a second old.
    """
    known = DefinitionSettings.of(here.settings).without(await here.unheard_streams())
    return known.shown_to(caller.reaches)
