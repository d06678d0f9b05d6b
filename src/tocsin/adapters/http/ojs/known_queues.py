"""The queues from which workers fetch.

A name that exists nowhere may be misspelled, and its worker would wait in vain. It may also be that of a queue whose first job is still to come, so
the answer warns, and is otherwise that of an empty queue.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from ....domain.access import Principal
from ....ports import LogUnavailable
from ..api.dependencies import Components

MAX_WARNINGS: Final = 10
"""The number of queues that an answer warns of."""


async def warnings(here: Components, caller: Principal, names: Iterable[str]) -> list[str]:
    """Return a warning for each of the first queues that do not exist yet.

    A queue exists if the settings, a job or the caller's token names it, or if a task was dispatched to it. Without the log, there are none.
    """
    found: list[str] = []
    for name in names:
        if name in caller.binding.queues:
            continue
        try:
            similar = await here.queue_names.similar_to_absent(name)
        except LogUnavailable:  # the answer without jobs is right nevertheless
            break
        if similar is not None:
            found.append(_warning(name, [*filter(caller.reaches, similar)]))
        if len(found) == MAX_WARNINGS:
            break
    return found


def _warning(name: str, similar: Sequence[str]) -> str:
    hint = (
        f"Did you mean {similar[0]!r}?"
        if similar
        else "Its first job makes it, or an entry under `queues:` in tocsin.yaml."
    )
    return f"no queue is called {name!r} yet. {hint}"
