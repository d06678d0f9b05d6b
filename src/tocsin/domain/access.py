"""Access control: roles, permissions, ownership of jobs, and redaction.

hip-62's three roles apply to the whole installation (Authentication and Authorization). A fourth, `scheduler-author`,
is scratchbird's CREATE JOB (§10.2): an author registers jobs and administers the jobs that belong to it. A job belongs
to its creator and its owner. A job that names viewers is invisible to all other identities except administrators.
A fifth, `scheduler-worker`, fetches tasks and answers for them, in the queues and functions that its token names.

Two more divide rights further, as scratchbird's privileges do (§10.2): `scheduler-external` adds the right to register jobs that
run programs or statements, and `scheduler-catalog` sees jobs without their executions.

An identity may be bound to namespaces. Its roles then concern the jobs and queues of these alone, and no role lets it administer
the installation.
"""

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from .definition import JobDefinition
from .events import Dispatched, EnvelopeData, Message, Report
from .identity import IdentityKind, includes
from .namespaces import is_within, namespace_of
from .text import matches


class Role(StrEnum):
    """A role of an identity."""

    ADMIN = "scheduler-admin"
    OPERATOR = "scheduler-operator"
    AUTHOR = "scheduler-author"
    VIEWER = "scheduler-viewer"
    WORKER = "scheduler-worker"
    EXTERNAL = "scheduler-external"
    CATALOG = "scheduler-catalog"


class Permission(StrEnum):
    """A permission that a request needs."""

    READ = "read"
    TRIGGER = "trigger"
    CANCEL = "cancel"
    REPLAY = "replay"
    REGISTER = "register"
    """Register jobs; change, trigger and cancel the identity's own jobs."""
    HISTORY = "history"
    """See the executions of the jobs that the identity sees."""
    EXTERNAL = "external"
    """Register and change jobs that run programs or SQL statements on workers, beside `register`."""
    WORK = "work"
    """Fetch tasks, and answer for them."""
    ADMINISTER = "administer"
    """See and change every job of the installation."""


GRANTS: Final[Mapping[Role, frozenset[Permission]]] = {
    Role.ADMIN: frozenset(Permission),
    Role.OPERATOR: frozenset(
        {Permission.READ, Permission.HISTORY, Permission.TRIGGER, Permission.CANCEL, Permission.REPLAY}
    ),
    Role.AUTHOR: frozenset({Permission.READ, Permission.HISTORY, Permission.REGISTER}),
    Role.VIEWER: frozenset({Permission.READ, Permission.HISTORY}),
    Role.CATALOG: frozenset({Permission.READ}),
    Role.EXTERNAL: frozenset({Permission.EXTERNAL}),
    Role.WORKER: frozenset({Permission.WORK}),
}


JOB_PERMISSIONS: Final = (
    Permission.READ,
    Permission.HISTORY,
    Permission.TRIGGER,
    Permission.CANCEL,
    Permission.REPLAY,
    Permission.REGISTER,
    Permission.EXTERNAL,
)
"""The permissions that concern a single job, in the order in which answers list them."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The tasks that a worker may fetch, by queue and function."""

    queues: tuple[str, ...] = ()
    functions: tuple[str, ...] = ("*",)
    """Names of functions; `*` stands for any characters."""

    def includes(self, queue: str, function: str) -> bool:
        """Return whether a worker may fetch the tasks of a function from a queue."""
        return queue in self.queues and any(matches(function, pattern) for pattern in self.functions)


NO_TASKS: Final = Binding()
"""The binding of an identity that is no worker."""
WORKER_QUEUE: Final = re.compile(r"[a-z0-9][a-z0-9\-.]{0,254}")
"""Names of queues from which workers fetch over HTTP (ojs-core, `queue`)."""


class Owned(Protocol):
    """A job, as far as access control is concerned; `Registration` is an example."""

    @property
    def definition(self) -> JobDefinition:
        """The definition, which names an owner and viewers."""

    @property
    def created_by(self) -> str | None:
        """The identity that registered the job."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity that makes a request.

    `source` is where the request came from: a network address or the name of a program.
    """

    identity: str
    """The name, unique within its kind."""
    roles: frozenset[Role] = frozenset()
    kind: IdentityKind = "user"
    source: str | None = None
    binding: Binding = NO_TASKS
    """The tasks that the identity may fetch in the role of a worker."""
    namespaces: frozenset[str] | None = None
    """The namespaces to which the identity is bound; None: the whole installation."""
    permissions: frozenset[Permission] = field(init=False)

    def __post_init__(self) -> None:
        permitted = frozenset[Permission]().union(*(GRANTS[role] for role in self.roles))
        if self.is_bound:
            permitted -= {Permission.ADMINISTER}
        object.__setattr__(self, "permissions", permitted)

    @property
    def is_bound(self) -> bool:
        return self.namespaces is not None

    def reaches(self, name: str) -> bool:
        """Return whether the namespaces of the identity include a job or a queue."""
        return self.namespaces is None or is_within(name, self.namespaces)

    @property
    def reached(self) -> tuple[str, ...] | None:
        """Return the namespaces to which lists are limited; None: the whole installation."""
        return None if self.namespaces is None else tuple(sorted(self.namespaces))

    @property
    def full_name(self) -> str:
        """Return the name with its kind, as it is unique."""
        return f"{self.kind}:{self.identity}"

    @property
    def party(self) -> str:
        """Return the name under which resources that callers share are divided.

        All identities that are bound to the same namespaces are one party. No full name begins with `@`.
        """
        return self.full_name if self.namespaces is None else f"@{','.join(sorted(self.namespaces))}"

    @property
    def account(self) -> str:
        """Return the name under which requests are counted and remembered.

        Tokens of different namespaces may have the same identity. The namespaces come first, because an identity may have any
        characters.
        """
        return self.party if self.namespaces is None else f"{self.party} {self.full_name}"

    def may(self, permission: Permission) -> bool:
        """Return whether a role grants the permission, for some job at least."""
        return permission in self.permissions

    def may_fetch_from(self, queue: str) -> bool:
        """Return whether the identity may fetch tasks of some function from a queue."""
        is_listed = self.may(Permission.WORK) and queue in self.binding.queues
        return self.reaches(queue) and (self._is_admin or is_listed)

    @property
    def functions(self) -> tuple[str, ...]:
        """Patterns of the functions whose tasks the identity may fetch, from its queues."""
        return ("*",) if self._is_admin else self.binding.functions

    def may_run(self, queue: str, function: str) -> bool:
        """Return whether the identity may fetch the tasks of a function from a queue."""
        is_listed = self.may(Permission.WORK) and self.binding.includes(queue, function)
        return self.reaches(queue) and (self._is_admin or is_listed)

    def owns(self, job: Owned) -> bool:
        return includes((job.created_by, job.definition.owner), self.full_name)

    def may_see(self, job: Owned) -> bool:
        """Return whether the identity may see a job and its executions (see `audience_of`)."""
        if Permission.READ not in self.permissions:  # not a call, because lists of 100,000 jobs are filtered
            return False
        if self.namespaces is not None and not is_within(job.definition.name, self.namespaces):
            return False
        viewers = job.definition.viewers
        return not viewers or self._is_admin or self.owns(job) or includes(viewers, self.full_name)

    def may_with(self, permission: Permission, job: Owned) -> bool:
        """Return whether the identity may perform an action on a job.

        Authors may do with their own jobs what needs another role for other jobs, except letting them run programs or statements.
        """
        if not self.reaches(job.definition.name):
            return False
        if self._is_admin:
            return True
        if permission is Permission.EXTERNAL:
            return self.may(permission) and self.may_with(Permission.REGISTER, job)
        if self.may(Permission.REGISTER) and self.owns(job):
            return True
        return permission is not Permission.REGISTER and self.may(permission) and self.may_see(job)

    @property
    def _is_admin(self) -> bool:
        return Role.ADMIN in self.roles

    def permitted_with(self, job: Owned) -> tuple[Permission, ...]:
        return tuple(permission for permission in JOB_PERMISSIONS if self.may_with(permission, job))


def audience_of(job: Owned) -> Hashable:
    """Return a value that is equal for jobs that the same identities may see."""
    definition = job.definition
    audience = (definition.viewers, definition.owner, job.created_by) if definition.viewers else None
    return namespace_of(definition.name), audience


def roles_of(names: Iterable[object]) -> frozenset[Role]:
    """Return the roles among names; other names grant nothing."""
    given = {name for name in names if isinstance(name, str)}
    return frozenset(role for role in Role if role in given)


MASK: Final = "******"


def masked(message: Message) -> Message:
    """Return a copy of the message without tokens, which only the worker may see."""
    match message:
        case Dispatched() | Report() | EnvelopeData():
            return message.changed(token=MASK)
        case _:
            return message
