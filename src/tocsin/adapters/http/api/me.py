"""`/v1/me`: the identity of the caller, and what its roles permit."""

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from ....domain.access import Permission, Principal, Role
from ....domain.identity import IdentityKind
from ..auth.security import Caller

router = APIRouter(prefix="/v1/me", tags=["tokens"])


class Me(BaseModel):
    """The identity of the caller."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    identity: str
    """The name, unique within its kind. Events record both."""
    kind: IdentityKind
    roles: list[Role]
    namespaces: list[str] | None
    """The namespaces to which the identity is bound; null: the whole installation."""
    permissions: list[Permission]
    """What the roles permit for some job at least. A job that names an owner or viewers may permit less, and the caller's own more."""

    @classmethod
    def of(cls, caller: Principal) -> "Me":
        """Return a caller as it is shown."""
        return cls(
            identity=caller.identity,
            kind=caller.kind,
            roles=sorted(caller.roles),
            namespaces=None if caller.namespaces is None else sorted(caller.namespaces),
            permissions=sorted(caller.permissions),
        )


@router.get("", operation_id="getMe")
async def get_me(caller: Caller) -> Me:
    """Show the identity of the caller, its roles and its permissions.

    Without authentication, every caller is an administrator.
    """
    return Me.of(caller)
