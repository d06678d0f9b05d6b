"""The queues from which workers fetch.

A name that exists nowhere may be misspelled, and its worker would wait in vain. It may also be that of a queue whose first job is still to come, so
the answer warns, and is otherwise that of an empty queue.
"""

import difflib
from collections.abc import Iterable

from .... import subjects
from ....domain.access import Principal
from ....subjects import DEFAULT_QUEUE
from ..api.dependencies import Components


async def warnings(here: Components, caller: Principal, names: Iterable[str]) -> list[str]:
    """Return a warning for each queue that does not exist yet.

    A queue exists if the settings, a job or the caller's token names it, or if a task was dispatched to it.
    """
    found: list[str] = []
    for name in names:
        if name in here.known_queues or name in _named(here) or name in caller.binding.queues:
            continue
        if await _exists(here, name):
            here.known_queues.add(name)
        else:
            found.append(await _warning(here, caller, name))
    return found


def _named(here: Components) -> frozenset[str]:
    return frozenset({DEFAULT_QUEUE, *here.settings.queues})


async def _exists(here: Components, name: str) -> bool:
    if any(await here.log.tails(*subjects.tasks(name))):
        return True
    return name in await _queues_of_jobs(here)


async def _queues_of_jobs(here: Components) -> set[str]:
    definitions = [job.definition for job in await here.registry.jobs()]
    return {queue for definition in definitions for queue in definition.step_queues()}


async def _warning(here: Components, caller: Principal, name: str) -> str:
    known = filter(caller.reaches, {*_named(here), *await _queues_of_jobs(here)})
    nearest = difflib.get_close_matches(name, sorted(known), n=1)
    hint = (
        f"Did you mean {nearest[0]!r}?"
        if nearest
        else "Its first job makes it, or an entry under `queues:` in tocsin.yaml."
    )
    return f"no queue is called {name!r} yet. {hint}"
