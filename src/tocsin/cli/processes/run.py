"""`tocsin run`: stages in the foreground, any number of copies."""

from typing import Annotated

import typer

from ...adapters.extras import require_extra
from ...domain.formats.document import listed, nearest
from ..runtime.errors import UsageError
from ..runtime.event_loop import serve
from ..runtime.session import Session, session_of


def run(
    context: typer.Context,
    stages: Annotated[list[str] | None, typer.Argument(metavar="STAGE", help="Which, e.g. `ticker planner`.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """Run stages until asked to end (SIGTERM, Ctrl-C): what they handle is finished first."""
    require_extra("tocsin run", "server")
    session = session_of(context)
    names = chosen(stages or [], session.backend.stages(), every=every)
    session.log("info")
    serve(_run(session, names))


def chosen(given: list[str], known: tuple[str, ...], *, every: bool) -> tuple[str, ...]:
    """The stages that were asked for, in flow order.

    Raises:
        UsageError: none was named, or one does not exist.
    """
    if every == bool(given):
        raise UsageError(f"name stages, or say --all: {listed(known)}", code="stage-required")
    for name in given:
        if name.replace("-", "_") not in known:
            meant = nearest(name, known)
            hint = f", did you mean `{meant}`?" if meant else f": there are {listed(known)}"
            raise UsageError(f"no stage is called `{name}`{hint}", code="unknown-stage")
    wanted = {name.replace("-", "_") for name in given}
    return tuple(name for name in known if every or name in wanted)


async def _run(session: Session, names: tuple[str, ...]) -> None:
    async with session.installation(within=None) as installation:
        await session.backend.run_stages(installation, names)
