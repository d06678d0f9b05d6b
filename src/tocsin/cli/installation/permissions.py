"""`tocsin permissions`: what each NATS user may do, for nats-server's configuration."""

from typing import Annotated

import typer
from rich.text import Text

from ...domain.formats.document import listed, nearest
from ..runtime.errors import UsageError
from ..runtime.session import session_of


def permissions(
    context: typer.Context,
    roles: Annotated[
        list[str] | None, typer.Argument(metavar="ROLE", help="Which, e.g. `planner worker`; by default all.")
    ] = None,
    account: Annotated[str, typer.Option(metavar="NAME", help="The account that they belong to.")] = "TOCSIN",
) -> None:
    """Print an account for nats-server in which every stage, the workers and people may do their own work and no more.

    It asks no server: the rules follow from the settings and from what each stage says that it reads and appends.
    """
    from ...adapters.nats.admin.permissions import server_config  # noqa: PLC0415
    from ...bootstrap.nats_roles import permissions as all_permissions  # noqa: PLC0415

    session = session_of(context)
    known = all_permissions(session.settings())
    for role in roles or ():
        if role not in known:
            meant = nearest(role, known)
            hint = f", did you mean `{meant}`?" if meant else f": there are {listed(known)}"
            raise UsageError(f"no role is called `{role}`{hint}", code="unknown-role")
    chosen = {name: rules for name, rules in known.items() if not roles or name in roles}
    session.output.answer(
        {
            name: {"inbox_prefix": rules.inbox_prefix, "permissions": rules.as_server_config()}
            for name, rules in chosen.items()
        },
        lambda: [Text(server_config(account, chosen).rstrip())],
    )
