"""`/v1/policy`: show and define the scheduler policy (scratchbird §3.4)."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Header, Response
from pydantic import BaseModel, Field

from ....domain.definition import Timeout
from ....domain.policy import UNUSED, Policy
from ....services.documents import PolicyVersion
from ..auth.security import Administrator, Reader, actor
from .dependencies import Here, Reason, ReasonText, require_version, version_tag
from .problems import documented

router = APIRouter(prefix="/v1/policy", tags=["policy"])


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


@router.get("", operation_id="getPolicy")
async def get_policy(here: Here, caller: Reader, response: Response) -> PolicyVersion:
    """Show the scheduler policy, its version, and who defined it.

    A caller that is bound to namespaces does not learn who did, or why.
    """
    current = await here.registry.policies.newest()
    response.headers["ETag"] = version_tag(current.version)
    return replace(current, by=None, reason=None) if caller.is_bound else current


@router.put("", operation_id="putPolicy", responses=documented(412))
async def put_policy(
    here: Here,
    caller: Administrator,
    body: PolicyRequest,
    response: Response,
    if_match: Annotated[
        str | None, Header(description="Change the policy only if it has this version (its `ETag`).")
    ] = None,
    reason: Reason = None,
) -> PolicyChanged:
    """Define the whole scheduler policy.

    Running tasks finish, and executions that are planned keep their timeouts. Jobs that are registered keep theirs until they are
    registered again.
    """
    wanted = Policy.model_validate(body.model_dump(include=set(Policy.model_fields)))

    def replaced(current: PolicyVersion) -> Policy:
        require_version(if_match, current.version, "policy")
        return wanted

    changed = await here.registry.policies.define(replaced, by=actor(caller), reason=body.reason or reason)
    current = await here.registry.policies.newest()
    response.headers["ETag"] = version_tag(current.version)
    unused = {name: why for name, why in UNUSED.items() if getattr(body, name) is not None}
    return PolicyChanged(changed=changed, policy=current, unused=unused)
