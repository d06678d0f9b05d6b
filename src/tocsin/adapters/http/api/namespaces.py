"""`/v1/namespaces`: list, show and declare namespaces."""

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response
from pydantic import BaseModel, Field

from ....domain.events import Namespace
from ....domain.namespaces import MAX_NAMESPACES, NamespaceEntry, checked
from ....services.namespaces import NamespaceChange, NamespaceDetails, NamespaceMap, Namespaces, changes, details
from ..auth.security import Administrator, Reader, actor
from ..middleware.idempotency import IdempotentRoute
from .dependencies import ChangeRequest, Here, Reason, require_version, version_tag
from .problems import documented, not_found

router = APIRouter(prefix="/v1/namespaces", tags=["namespaces"], route_class=IdempotentRoute)


class NamespaceList(BaseModel):
    """The declared namespaces that the caller may know of; without declarations, `version` is 0."""

    version: int
    namespaces: list[Namespace]


class NamespacesRequest(ChangeRequest):
    """All namespaces."""

    namespaces: Annotated[list[NamespaceEntry], Field(max_length=MAX_NAMESPACES)]


class NamespacesApplied(BaseModel):
    """The changes that the request made, or with `dry_run` would make."""

    changed: bool
    changes: list[NamespaceChange]


@router.get("", operation_id="listNamespaces")
async def list_namespaces(here: Here, caller: Reader, response: Response) -> NamespaceList:
    """List the namespaces. A caller that is bound to namespaces sees only these."""
    newest = await Namespaces(here.log).newest()
    response.headers["ETag"] = version_tag(newest.version)
    bound = caller.namespaces
    seen = [namespace for namespace in newest.namespaces if bound is None or namespace.name in bound]
    return NamespaceList(version=newest.version, namespaces=seen)


@router.get("/{name}", operation_id="getNamespace", responses=documented(404))
async def get_namespace(
    here: Here, caller: Reader, name: Annotated[str, Path(description="The name of the namespace.", max_length=255)]
) -> NamespaceDetails:
    """Show a namespace: the jobs that the caller sees, and its use of daily quotas."""
    if caller.namespaces is not None and name not in caller.namespaces:
        raise not_found("namespace", name)
    namespace = (await Namespaces(here.log).newest()).named(name)
    jobs = [job.definition for job in await here.registry.jobs() if caller.may_see(job)]
    return await details(namespace, jobs, here.projections, here.clock)


@router.put("", operation_id="applyNamespaces", responses=documented(412))
async def apply_namespaces(
    here: Here,
    caller: Administrator,
    body: NamespacesRequest,
    if_match: Annotated[
        str | None, Header(description="Replace the declarations only if they have this version (their `ETag`).")
    ] = None,
    reason: Reason = None,
    *,
    dry_run: Annotated[bool, Query(description="Only answer what would change.")] = False,
) -> NamespacesApplied:
    """Declare all namespaces.

    Jobs and queues whose names begin with a declared namespace and a dot belong to it from then on. Jobs that refer to queues or jobs of
    another namespace run on, and are refused when they are registered again.
    """
    wanted = checked(entry.namespace for entry in body.namespaces)

    def check(newest: NamespaceMap) -> None:
        require_version(if_match, newest.version, "list of namespaces")

    before = await Namespaces(here.log).newest()
    check(before)
    planned = changes(before.namespaces, wanted, [job.definition for job in await here.registry.jobs()])
    if dry_run:
        return NamespacesApplied(changed=False, changes=list(planned))
    changed = await Namespaces(here.log).apply(wanted, check=check, by=actor(caller), reason=body.reason or reason)
    return NamespacesApplied(changed=changed, changes=list(planned))
