"""`tocsin queues`: list and show."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ...services.queues import find
from ..output.format import local
from ..output.tables import table
from ..runtime.event_loop import run
from ..runtime.session import Session, session_of

if TYPE_CHECKING:
    from ...services.queues import QueueDetails

Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue's name.")]


def list_queues(context: typer.Context) -> None:
    """List the queues, with their tasks and the agents that serve them.

    Example: `tocsin queues list`
    """
    session = session_of(context)
    known = run(_read(session))
    session.output.answer(
        [asdict(queue) for queue in known],
        lambda: [
            table(
                ("QUEUE", "TRANSPORT", "WAITING", "TAKEN", "OLDEST", "AGENTS", "FUNCTIONS", "JOBS"),
                [_row(queue) for queue in known],
                empty="no queues",
                least=("FUNCTIONS", "OLDEST", "JOBS"),
            ),
            *(Text(line, style="red") for queue in known for line in _problems(queue)),
        ],
    )


def show(context: typer.Context, queue: Name) -> None:
    """Show a queue, with its agents, their functions, and the jobs that use it.

    Example: `tocsin queues show default`
    """
    session = session_of(context)
    details = find(queue, run(_read(session)))
    session.output.answer(asdict(details), lambda: _page(details))


async def _read(session: Session) -> "tuple[QueueDetails, ...]":
    async with session.operator() as operator:
        return await operator.queues()


def _row(queue: "QueueDetails") -> tuple[object, ...]:
    return (
        Text(queue.name, style="bold"),
        queue.transport or Text("not configured", style="red"),
        _count(queue.waiting),
        _count(queue.taken),
        "" if queue.oldest is None else local(queue.oldest),
        ", ".join(queue.agents),
        ", ".join(queue.functions),
        len(queue.jobs),
    )


def _page(queue: "QueueDetails") -> list[Text]:
    waits = ", ".join(f"{name} {number:,}" for name, number in queue.waiting_functions.items())
    return [
        Text.assemble((queue.name, "bold"), f"  {queue.transport or 'not configured'}"),
        *(
            Text(f"{name:<10} {value}")
            for name, value in (
                ("waiting", _count(queue.waiting) + (f"  ({waits})" if waits else "")),
                ("taken", _count(queue.taken)),
                ("oldest", "none" if queue.oldest is None else local(queue.oldest)),
                ("agents", ", ".join(queue.agents) or "none"),
                ("functions", ", ".join(queue.functions) or "none"),
                ("jobs", ", ".join(queue.jobs) or "none"),
            )
        ),
        *(Text(line, style="red") for line in _problems(queue)),
    ]


def _problems(queue: "QueueDetails") -> list[str]:
    if queue.transport is None:
        return [f"jobs use {queue.name!r}, and no worker can read it: add it under `queues` and run `tocsin init`"]
    if queue.waiting and not queue.taken and not queue.agents and queue.transport != "mq":
        return [f"no live agent serves {queue.name!r}: start a worker for it"]
    return []


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"
