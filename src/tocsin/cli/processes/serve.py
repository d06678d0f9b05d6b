"""`tocsin serve`: the HTTP API in the foreground, any number of copies."""

import asyncio
from typing import Annotated

import typer

from ...adapters.extras import require_extra
from ..runtime.event_loop import serve as run_until_ended
from ..runtime.session import Session, session_of


def serve(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; by default the settings' `server.host`.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="The port; by default the settings' `server.port`, 8062.")
    ] = None,
) -> None:
    """Serve the HTTP API until asked to end (SIGTERM, Ctrl-C): requests that have begun are finished first."""
    require_extra("tocsin serve", "server")
    session = session_of(context)
    session.log("info")
    run_until_ended(_serve(session, host, port))


async def _serve(session: Session, host: str | None, port: int | None) -> None:
    settings = session.settings(server__host=host, server__port=port)
    async with session.installation(settings, within=None) as installation, session.backend.serving(installation):
        await asyncio.Event().wait()
