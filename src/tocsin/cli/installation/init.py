"""`tocsin init`: sets NATS up."""

from typing import TYPE_CHECKING

import typer
from rich.text import Text

from ..runtime.event_loop import run
from ..runtime.session import Session, session_of

if TYPE_CHECKING:
    from ...adapters.nats.admin.resources import Change


def init(context: typer.Context) -> None:
    """Create or update the streams, buckets and consumers on NATS, and say what changed. Doing it again changes nothing."""
    session = session_of(context)
    changes = run(_init(session))
    done = [change for change in changes if change.action != "unchanged"]
    session.output.answer(
        [
            {"kind": change.kind, "name": change.name, "action": change.action, "fields": dict(change.fields)}
            for change in changes
        ],
        lambda: [
            *(Text(change.line(), style="green" if change.action == "created" else "yellow") for change in done),
            Text(f"{len(done)} changed, {len(changes) - len(done)} unchanged", style="bold"),
        ],
    )


async def _init(session: Session) -> "list[Change]":
    async with session.backend.connect(session.settings()) as installation:
        return await session.backend.initialize(installation)
