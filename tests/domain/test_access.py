"""Permissions of every role for each job, its owner and its viewers."""

from dataclasses import dataclass, field
from itertools import product

import pytest

from tocsin.domain.access import Permission, Principal, Role, audience_of, roles_of
from tocsin.domain.definition import JobDefinition
from tocsin.domain.identity import IdentityKind

READ, HISTORY, TRIGGER, CANCEL, REPLAY, REGISTER, ADMINISTER = (
    Permission.READ,
    Permission.HISTORY,
    Permission.TRIGGER,
    Permission.CANCEL,
    Permission.REPLAY,
    Permission.REGISTER,
    Permission.ADMINISTER,
)


@dataclass(frozen=True)
class Job:
    """A job that another identity registered, unless it says otherwise."""

    owner: str | None = None
    viewers: tuple[str, ...] = ()
    created_by: str | None = "grace"
    definition: JobDefinition = field(init=False)

    def __post_init__(self) -> None:
        definition = JobDefinition(name="job", function="f", owner=self.owner, viewers=self.viewers)
        object.__setattr__(self, "definition", definition)


OPEN = Job()
CREATED = Job(created_by="ada", viewers=("grace",))
OWNED = Job(owner="ada", viewers=("grace",))
SHOWN = Job(viewers=("grace", "ada"))
HIDDEN = Job(viewers=("grace",))
UNNAMED = Job(created_by=None)


def ada(*roles: Role) -> Principal:
    return Principal("ada", frozenset(roles))


@pytest.mark.parametrize(
    ("roles", "permissions"),
    [
        ((), set()),
        ((Role.CATALOG,), {READ}),
        ((Role.EXTERNAL,), {Permission.EXTERNAL}),
        ((Role.VIEWER,), {READ, HISTORY}),
        ((Role.AUTHOR,), {READ, HISTORY, REGISTER}),
        ((Role.AUTHOR, Role.EXTERNAL), {READ, HISTORY, REGISTER, Permission.EXTERNAL}),
        ((Role.OPERATOR,), {READ, HISTORY, TRIGGER, CANCEL, REPLAY}),
        ((Role.AUTHOR, Role.OPERATOR), {READ, HISTORY, REGISTER, TRIGGER, CANCEL, REPLAY}),
        ((Role.WORKER,), {Permission.WORK}),
        ((Role.ADMIN,), set(Permission)),
    ],
)
def test_roles_permit_what_they_say(roles: tuple[Role, ...], permissions: set[Permission]) -> None:
    principal = ada(*roles)
    assert principal.permissions == permissions
    assert {permission for permission in Permission if principal.may(permission)} == permissions


@pytest.mark.parametrize(
    ("job", "owns"),
    [(OPEN, False), (CREATED, True), (OWNED, True), (SHOWN, False), (HIDDEN, False), (UNNAMED, False)],
)
def test_a_job_is_its_creators_and_its_owners(job: Job, *, owns: bool) -> None:
    assert ada().owns(job) is owns


@pytest.mark.parametrize("role", [Role.VIEWER, Role.AUTHOR, Role.OPERATOR])
@pytest.mark.parametrize(
    ("job", "sees"),
    [(OPEN, True), (CREATED, True), (OWNED, True), (SHOWN, True), (HIDDEN, False), (UNNAMED, True)],
)
def test_named_viewers_hide_a_job_from_others(job: Job, role: Role, *, sees: bool) -> None:
    assert ada(role).may_see(job) is sees


@pytest.mark.parametrize("job", [OPEN, CREATED, OWNED, SHOWN, HIDDEN])
def test_an_administrator_may_do_everything(job: Job) -> None:
    assert ada(Role.ADMIN).may_see(job)
    assert all(ada(Role.ADMIN).may_with(permission, job) for permission in Permission)


@pytest.mark.parametrize("job", [OPEN, CREATED, OWNED, SHOWN])
def test_without_a_role_nothing_is_permitted(job: Job) -> None:
    assert not ada().may_see(job)
    assert not any(ada().may_with(permission, job) for permission in Permission)


@pytest.mark.parametrize(
    ("role", "job", "permitted"),
    [
        (Role.VIEWER, OPEN, {READ, HISTORY}),
        (Role.VIEWER, OWNED, {READ, HISTORY}),
        (Role.VIEWER, HIDDEN, set()),
        (Role.OPERATOR, OPEN, {READ, HISTORY, TRIGGER, CANCEL, REPLAY}),
        (Role.OPERATOR, SHOWN, {READ, HISTORY, TRIGGER, CANCEL, REPLAY}),
        (Role.OPERATOR, HIDDEN, set()),
        (Role.AUTHOR, OPEN, {READ, HISTORY}),
        (Role.AUTHOR, SHOWN, {READ, HISTORY}),
        (Role.AUTHOR, HIDDEN, set()),
        (Role.AUTHOR, CREATED, set(Permission) - {Permission.EXTERNAL}),
        (Role.AUTHOR, OWNED, set(Permission) - {Permission.EXTERNAL}),
        (Role.CATALOG, OPEN, {READ}),
        (Role.EXTERNAL, OWNED, set()),
    ],
)
def test_a_role_permits_it_with_this_job(role: Role, job: Job, permitted: set[Permission]) -> None:
    assert {permission for permission in Permission if ada(role).may_with(permission, job)} == permitted


def test_programs_need_both_permissions() -> None:
    both = ada(Role.AUTHOR, Role.EXTERNAL)
    assert (both.may_with(Permission.EXTERNAL, OWNED), both.may_with(Permission.EXTERNAL, OPEN)) == (True, False)


@pytest.mark.parametrize(
    ("stored", "owner"),
    [
        ("ada", ("user", "ada")),
        ("user:ada", ("user", "ada")),
        ("token:ada", ("token", "ada")),
        ("local:ada", ("local", "ada")),
        ("urn:example:ada", ("user", "urn:example:ada")),
        ("user:token:ada", ("user", "token:ada")),
        ("token:user:ada", ("token", "user:ada")),
        ("cli", ("user", "cli")),
        ("anonymous", ("user", "anonymous")),
    ],
)
def test_name_belongs_to_one_kind_of_identity(stored: str, owner: tuple[IdentityKind, str]) -> None:
    kinds: tuple[IdentityKind, ...] = ("user", "token", "cli", "nats", "local")
    names = {stored, owner[1], "cli", "anonymous", "ada", ""}
    for job in (Job(owner=stored), Job(created_by=stored), Job(viewers=(stored,))):
        seers = {
            (kind, name)
            for kind in kinds
            for name in names
            if (caller := Principal(name, frozenset({Role.VIEWER}), kind)).owns(job)
            or (job.definition.viewers and caller.may_see(job))
        }
        assert seers - {("user", "grace")} == {owner}  # `grace` registered the other two


def test_an_unknown_name_is_no_role() -> None:
    assert roles_of(["scheduler-viewer", "root", 7, None, ["scheduler-admin"]]) == {Role.VIEWER}
    assert roles_of([]) == frozenset()


@pytest.mark.parametrize("identity", ["ada", "bob", "eve"])
@pytest.mark.parametrize("role", [Role.VIEWER, Role.AUTHOR, Role.CATALOG, Role.ADMIN, Role.WORKER])
def test_jobs_of_one_audience_are_seen_alike(identity: str, role: Role) -> None:
    caller = Principal(identity, frozenset({role}))
    names = (None, "user:ada", "user:bob")
    jobs = [
        Job(owner, viewers, created_by)
        for owner, created_by, viewers in product(names, names, ((), ("user:ada",), ("token:ci",)))
    ]
    seen: dict[object, set[bool]] = {}
    for job in jobs:
        seen.setdefault(audience_of(job), set()).add(caller.may_see(job))
    assert all(len(answers) == 1 for answers in seen.values())
    assert len(seen) == 1 + 2 * 9
