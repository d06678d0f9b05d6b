"""Who may do what: roles and what they permit (hip-62, Authentication and Authorization), and whose a job is.

hip-62's three roles are for the whole installation. A fourth, `scheduler-author`, is scratchbird's CREATE JOB (§10.2): it
registers jobs and does with those that are its own what an administrator does with all. A job is its creator's and its
owner's; where it names viewers, others than these and administrators do not learn that it exists.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from .definition import JobDefinition
from .events import Dispatched, EnvelopeData, Message, Report


class Role(StrEnum):
    """What an identity is given."""

    ADMIN = "scheduler-admin"
    OPERATOR = "scheduler-operator"
    AUTHOR = "scheduler-author"
    VIEWER = "scheduler-viewer"


class Permission(StrEnum):
    """What a request needs."""

    READ = "read"
    TRIGGER = "trigger"
    CANCEL = "cancel"
    REPLAY = "replay"
    REGISTER = "register"
    """Register jobs; change, trigger and cancel one's own."""
    ADMINISTER = "administer"
    """See every job, and change any."""


GRANTS: Final[Mapping[Role, frozenset[Permission]]] = {
    Role.ADMIN: frozenset(Permission),
    Role.OPERATOR: frozenset({Permission.READ, Permission.TRIGGER, Permission.CANCEL, Permission.REPLAY}),
    Role.AUTHOR: frozenset({Permission.READ, Permission.REGISTER}),
    Role.VIEWER: frozenset({Permission.READ}),
}


class Owned(Protocol):
    """A job, as far as access asks: `Registration` is one."""

    @property
    def definition(self) -> JobDefinition:
        """Names an owner and viewers."""
        ...

    @property
    def created_by(self) -> str | None:
        """Who registered it."""
        ...


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. `source` is where from: an address, or the name of a program."""

    identity: str
    roles: frozenset[Role] = frozenset()
    source: str | None = None
    permissions: frozenset[Permission] = field(init=False)

    def __post_init__(self) -> None:
        """Work out once what the roles permit."""
        permitted = frozenset[Permission]().union(*(GRANTS[role] for role in self.roles))
        object.__setattr__(self, "permissions", permitted)

    def may(self, permission: Permission) -> bool:
        """Whether a role of theirs permits it, for some job at least."""
        return permission in self.permissions

    def owns(self, job: Owned) -> bool:
        """Whether a job is theirs."""
        return self.identity in {job.created_by, job.definition.owner}

    def may_see(self, job: Owned) -> bool:
        """Whether they may know of a job, and of what becomes of it."""
        if not self.may(Permission.READ):
            return False
        viewers = job.definition.viewers
        return not viewers or self.may(Permission.ADMINISTER) or self.owns(job) or self.identity in viewers

    def may_with(self, permission: Permission, job: Owned) -> bool:
        """Whether they may do something with this very job: authors may do with their own what needs a role for others'."""
        if self.may(Permission.ADMINISTER):
            return True
        if self.may(Permission.REGISTER) and self.owns(job):
            return True
        return permission is not Permission.REGISTER and self.may(permission) and self.may_see(job)


def roles_of(names: Iterable[object]) -> frozenset[Role]:
    """The roles among names; a name of none grants nothing."""
    known = {role.value: role for role in Role}
    return frozenset(known[name] for name in names if isinstance(name, str) and name in known)


MASK: Final = "******"


def masked(message: Message) -> Message:
    """The same message without what is secret in it."""
    match message:
        case Dispatched() | Report() | EnvelopeData():
            return message.model_copy(update={"token": MASK})
        case _:
            return message
