"""Grants of agents: the tasks that agents of a name may get.

An event holds all grants of a name, so that the newest alone is the state. A name without an event has no grants: its
agents get what they announce, or nothing if the settings require grants.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from .definition.partition import MAX_SHARDS
from .errors import TocsinError
from .events import AgentGranted, QueueGrant
from .task_offers import Granted
from .text import matches

EVERY: Final = "*"
"""Every queue, every function, or every shard."""
MAX_PATTERNS: Final = 500
"""The greatest number of patterns of functions in the grants of a name."""


class EveryShardGranted(TocsinError):
    """A shard cannot be taken from agents that may own every shard."""

    code = "every-shard-granted"


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


def may_own(shards: Collection[str] | None, shard: str, *, requires_grant: bool) -> bool:
    """Return whether agents with granted shards may own a shard.

    `shards`: None: no operator granted or took any. `requires_grant`: then they own none.
    """
    return not requires_grant if shards is None else EVERY in shards or shard in shards


def allow(
    newest: AgentGranted | None,
    name: str,
    queues: Iterable[str],
    functions: Iterable[str] = (EVERY,),
    *,
    shards: Iterable[str] = (),
) -> AgentGranted | None:
    """Return the grants of a name with more functions of queues, and more shards.

    None: nothing is granted. The first shard limits agents that could own every shard that they declared.

    Raises:
        TooManyGrants: the event would be too large.
    """
    granted = _by_queue(newest)
    for queue in queues:
        granted[queue] = {*granted.get(queue, ()), *functions}
    before = None if newest is None else newest.shards
    added = tuple(shards)
    return _drafted(newest, name, granted, before if not added else _sorted({*(before or ()), *added}))


def revoke(
    newest: AgentGranted | None,
    name: str,
    queues: Iterable[str] = (),
    functions: Iterable[str] = (),
    *,
    shards: Iterable[str] = (),
) -> AgentGranted | None:
    """Return the grants of a name without functions of queues, or without shards.

    Without queues, those of all queues are meant, and without functions, all functions. With shards alone, all functions stay. Without
    any, agents of the name get no tasks, also if they had no grants before. None: the name has no grants.

    Raises:
        EveryShardGranted: a shard is taken from agents that may own every shard.
    """
    granted, patterns = _by_queue(newest), set(functions)
    named, taken = tuple(queues), frozenset(shards)
    before = None if newest is None else newest.shards
    after = _without_shards(name, before, taken) if taken else before
    if not taken or named or patterns:
        for queue in named or tuple(granted):
            granted[queue] = granted.get(queue, set()) - patterns if patterns else set()
        if newest is None and not named and not patterns:
            return AgentGranted(name=name)
    return _drafted(newest, name, granted, after)


def _sorted(names: Collection[str]) -> tuple[str, ...]:
    return (EVERY,) if EVERY in names else tuple(sorted(names))


def _without_shards(name: str, before: tuple[str, ...] | None, taken: frozenset[str]) -> tuple[str, ...]:
    if EVERY in taken:
        return ()
    if before is None or EVERY in before:
        raise EveryShardGranted(
            f"Agents of the name {name!r} have no grants of single shards. Revoke the shard `*` first, then allow single shards."
        )
    return tuple(shard for shard in before if shard not in taken)


def _by_queue(newest: AgentGranted | None) -> dict[str, set[str]]:
    return {} if newest is None else {grant.queue: set(grant.functions) for grant in newest.grants}


def _drafted(
    newest: AgentGranted | None, name: str, granted: Mapping[str, set[str]], shards: tuple[str, ...] | None
) -> AgentGranted | None:
    grants = tuple(
        QueueGrant(queue=queue, functions=_sorted(functions))
        for queue, functions in sorted(granted.items())
        if functions
    )
    number = sum(len(grant.functions) for grant in grants)
    if number > MAX_PATTERNS:
        raise TooManyGrants(
            f"The grants of {name!r} would have {number} patterns of functions, and at most {MAX_PATTERNS} are stored. "
            "Use patterns such as `mail/*`."
        )
    if len(shards or ()) > MAX_SHARDS:
        raise TooManyGrants(
            f"The grants of {name!r} would have {len(shards or ()):,} shards, and at most {MAX_SHARDS:,} are stored. "
            "Use `*` for every shard."
        )
    return None if newest is None and not grants else AgentGranted(name=name, grants=grants, shards=shards)
