"""`tocsin worker`: runs a worker object of the user's."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ..input.worker_object import load_worker
from ..runtime.event_loop import serve
from ..runtime.session import Session, session_of

if TYPE_CHECKING:
    from ...worker import Worker


def worker(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="MODULE:ATTRIBUTE", help="The worker: in a module, or in FILE.py.")],
) -> None:
    """Run a worker until asked to end: the tasks that it holds are finished first."""
    session = session_of(context)
    session.log("info")
    serve(_work(session, load_worker(target)))


async def _work(session: Session, made: "Worker") -> None:
    async with session.installation(within=None, checked=False) as installation:
        concurrency = installation.settings.worker.concurrency
        if concurrency is not None:
            made.options = replace(made.options, concurrency=concurrency)
        await session.backend.run_worker(installation, made)
