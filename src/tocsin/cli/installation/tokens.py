"""`tocsin tokens`: who may use the HTTP API of an installation without an identity provider."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.text import Text

from ...adapters.http.auth.tokens import StoredToken, Tokens
from ...domain import duration
from ...domain.access import Role
from ..output.tables import table
from ..runtime.errors import Exit, UsageError
from ..runtime.event_loop import run
from ..runtime.session import actor, session_of


def create(
    context: typer.Context,
    identity: Annotated[str, typer.Argument(metavar="IDENTITY", help="Whom facts name when the token is used.")],
    role: Annotated[list[Role], typer.Option(help="What the token may do; may be given more than once.")],
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="After how long it ends, e.g. `90d`; by default never.")
    ] = None,
) -> None:
    """Make a token. It is shown this once: what is kept is a hash of it."""
    session = session_of(context)
    lifetime = None if expires is None else _lifetime(expires)

    async def make() -> tuple[str, StoredToken]:
        async with session.installation() as installation:
            tokens = Tokens(installation.projections, installation.clock)
            return await tokens.create(identity, role, lifetime=lifetime, by=actor())

    token, stored = run(make())
    session.output.answer(
        {**_as_json(stored), "token": token},
        lambda: [
            Text(token, style="bold"),
            Text("It is not shown again. `tocsin tokens list` tells its id.", style="dim"),
        ],
    )


def list_tokens(context: typer.Context) -> None:
    """List the tokens, without what makes them work."""
    session = session_of(context)

    async def read() -> list[StoredToken]:
        async with session.installation() as installation:
            return await Tokens(installation.projections, installation.clock).list()

    found = run(read())
    session.output.answer(
        [_as_json(token) for token in found],
        lambda: [
            table(
                ("ID", "IDENTITY", "ROLES", "CREATED", "EXPIRES"),
                [_row(token) for token in found],
                empty="no tokens: the API asks nobody, and listens on the loopback only, unless `auth` says otherwise",
                least=("CREATED", "ROLES", "EXPIRES"),
            )
        ],
    )


def revoke(
    context: typer.Context, token_id: Annotated[str, typer.Argument(metavar="ID", help="As `tokens list` tells it.")]
) -> None:
    """Accept a token no more; every copy of the API knows within seconds."""
    session = session_of(context)

    async def remove() -> bool:
        async with session.installation() as installation:
            return await Tokens(installation.projections, installation.clock).revoke(token_id)

    if not run(remove()):
        raise UsageError(f"no token has the id {token_id!r}; `tocsin tokens list` shows those that are", Exit.NOT_FOUND)
    session.output.answer({"id": token_id, "action": "revoked"}, lambda: [Text(f"revoked {token_id}", style="yellow")])


def _lifetime(written: str) -> timedelta:
    try:
        seconds = duration.parse(written)
    except ValueError as error:
        raise UsageError(f"--expires: {error}") from None
    if seconds <= 0:
        raise UsageError(f"--expires: {written!r} is over already: must be more than 0 seconds")
    return timedelta(seconds=seconds)


def _as_json(token: StoredToken) -> dict[str, object]:
    return {
        "id": token.id,
        "identity": token.identity,
        "roles": sorted(token.roles),
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
    }


def _row(token: StoredToken) -> tuple[object, ...]:
    over = " (over)" if token.is_expired(datetime.now(UTC)) else ""
    expires = Text("never" if token.expires_at is None else f"{token.expires_at.astimezone():%Y-%m-%d %H:%M}{over}")
    return token.id, Text(token.identity, style="bold"), ", ".join(sorted(token.roles)), token.created_at, expires
