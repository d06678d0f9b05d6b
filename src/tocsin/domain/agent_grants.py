"""Grants of agents: the tasks that agents of a name may get.

An event holds all grants of a name, so that the newest alone is the state. A name without an event has no grants: its
agents get what they announce, or nothing if the settings require grants.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from .errors import TocsinError
from .events import Actor, AgentGranted, QueueGrant
from .task_offers import Granted
from .text import matches

EVERY: Final = "*"
"""Every queue, or every function."""
MAX_PATTERNS: Final = 500
"""The greatest number of patterns of functions in the grants of a name."""


class TooManyGrants(TocsinError):
    """The grants of a name have too many patterns for an event."""

    code = "grant-too-large"


def may_get(grants: Iterable[QueueGrant], queue: str, function: str) -> bool:
    """Return whether grants include the tasks of a function in a queue."""
    return any(
        grant.queue in {queue, EVERY} and any(matches(function, pattern) for pattern in grant.functions)
        for grant in grants
    )


def granted_of(grants: Iterable[QueueGrant], queues: frozenset[str], functions: frozenset[str]) -> Granted:
    """Return the functions of which an agent may get tasks, by queue.

    Agents announce names at will. So each grant is compared with the functions once, and queues with equal functions share one set.
    """
    by_queue: dict[str, frozenset[str]] = {}
    for grant in grants:
        if grant.queue == EVERY or grant.queue in queues:
            matched = (name for name in functions if any(matches(name, pattern) for pattern in grant.functions))
            by_queue[grant.queue] = by_queue.get(grant.queue, frozenset()).union(matched)
    everywhere = by_queue.get(EVERY, frozenset())
    sets = {functions: functions}
    granted = ((queue, everywhere | by_queue[queue] if queue in by_queue else everywhere) for queue in sorted(queues))
    return tuple((queue, sets.setdefault(names, names)) for queue, names in granted if names)


# --- decide ----------------------------------------------------------------------------------------------------------


def allow(
    newest: AgentGranted | None,
    name: str,
    queues: Iterable[str],
    functions: Iterable[str] = (EVERY,),
    *,
    by: Actor | None = None,
    reason: str | None = None,
) -> list[AgentGranted]:
    """Decide to add functions of queues to the grants of a name.

    Raises:
        TooManyGrants: the event would be too large.
    """
    granted = _by_queue(newest)
    for queue in queues:
        granted[queue] = {*granted.get(queue, ()), *functions}
    return _changed(newest, name, granted, by, reason)


def revoke(
    newest: AgentGranted | None,
    name: str,
    queues: Iterable[str] = (),
    functions: Iterable[str] = (),
    *,
    by: Actor | None = None,
    reason: str | None = None,
) -> list[AgentGranted]:
    """Decide to remove functions of queues from the grants of a name.

    Without queues, those of all queues are meant, and without functions, all functions. Without either, agents of the name
    get no tasks, also if they had no grants before.
    """
    granted, patterns = _by_queue(newest), set(functions)
    for queue in tuple(queues) or tuple(granted):
        granted[queue] = granted.get(queue, set()) - patterns if patterns else set()
    if newest is None and not tuple(queues) and not patterns:
        return [AgentGranted(name=name, by=by, reason=reason)]
    return _changed(newest, name, granted, by, reason)


def _by_queue(newest: AgentGranted | None) -> dict[str, set[str]]:
    return {} if newest is None else {grant.queue: set(grant.functions) for grant in newest.grants}


def _changed(
    newest: AgentGranted | None, name: str, granted: Mapping[str, set[str]], by: Actor | None, reason: str | None
) -> list[AgentGranted]:
    grants = tuple(
        QueueGrant(queue=queue, functions=(EVERY,) if EVERY in functions else tuple(sorted(functions)))
        for queue, functions in sorted(granted.items())
        if functions
    )
    number = sum(len(grant.functions) for grant in grants)
    if number > MAX_PATTERNS:
        raise TooManyGrants(
            f"The grants of {name!r} would have {number} patterns of functions, and at most {MAX_PATTERNS} are stored. "
            "Use patterns such as `mail/*`."
        )
    if newest is None and not grants:
        return []
    if newest is not None and grants == newest.grants:
        return []
    return [AgentGranted(name=name, grants=grants, by=by, reason=reason)]
