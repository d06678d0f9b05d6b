"""The queues from which workers may fetch.

A name that exists nowhere is probably misspelled, and a worker would wait for its tasks in vain.
"""

import difflib
from collections.abc import Iterable

from .... import subjects
from ....domain.access import Principal
from ....subjects import DEFAULT_QUEUE
from ..api.dependencies import Components
from ..api.problems import FieldError, Problem


async def require_known(here: Components, caller: Principal, names: Iterable[str]) -> None:
    """Check that each queue exists.

    A queue exists if the settings, a job or the caller's token names it, or if a task was dispatched to it. With `--allow-reset` every queue exists, because the conformance suite fetches from queues that it never named.

    Raises:
        Problem: a queue does not exist.
    """
    if here.reset is not None:
        return
    for name in names:
        if name in here.known_queues or name in _named(here) or name in caller.binding.queues:
            continue
        if not await _exists(here, name):
            raise await _not_found(here, caller, name)
        here.known_queues.add(name)


def _named(here: Components) -> frozenset[str]:
    return frozenset({DEFAULT_QUEUE, *here.settings.queues})


async def _exists(here: Components, name: str) -> bool:
    if any(await here.log.tails(*subjects.tasks(name))):
        return True
    return name in await _queues_of_jobs(here)


async def _queues_of_jobs(here: Components) -> set[str]:
    definitions = [job.definition for job in await here.registry.jobs()]
    return {queue for definition in definitions for queue in definition.step_queues()}


async def _not_found(here: Components, caller: Principal, name: str) -> Problem:
    known = filter(caller.reaches, {*_named(here), *await _queues_of_jobs(here)})
    nearest = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"Did you mean {nearest[0]!r}?" if nearest else "Add it under `queues:` in tocsin.yaml."
    wrong = FieldError(field="queues", value=name, right="must name queues that exist")
    return Problem(404, "not-found", f"no queue is called {name!r}. {hint}", (wrong,))
