"""Identities: a name and its kind, written `token:deploy`.

Names are unique within a kind only: a user of the identity provider may have the name of a token, of a user of the command
line, or of a program. So jobs belong to identities with their kind, and so do the tasks that a worker holds.
"""

from collections.abc import Collection
from typing import Final, Literal, TypeAlias, get_args

IdentityKind: TypeAlias = Literal["user", "token", "cli", "nats", "local", "program"]
"""The door through which an identity comes.

`user`: the identity provider. `token`: a token of the installation. `cli`: the command line over NATS, and job files. `nats`: a
request over NATS without a token. `local`: a request over HTTP without a token, from this machine. `program`: a program outside, by its NATS account.
"""

APP: Final = "app"
"""The kind of an application object, which owns the jobs that its code defines. No request comes from it."""
KINDS: Final = frozenset[str](get_args(IdentityKind)) | {APP}
NO_OWNER: Final = "cli:default"
"""The owner of jobs that the command line applies without an owner."""


def typed(name: str) -> str:
    """Return a name with its kind; a name without a kind is a user."""
    if name.partition(":")[0] in KINDS and ":" in name:
        return name
    return f"user:{name}"


def includes(names: Collection[str | None], identity: str) -> bool:
    return any(name is not None and typed(name) == identity for name in names)
