"""The daily use of namespaces in the fold, and the planner's limit (ADR 97).

The fold counts the executions that begin, and the bytes of all their events and dead letters, for the namespaces that have a daily quota. What is
skipped counts for none. A use (`use.<namespace>.>`) follows from these events, so it has no events of its own.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from .. import subjects
from ..domain import daily_use
from ..domain.daily_use import DailyUse, Need
from ..domain.events import Admitted, Message, Namespace, NamespacesDefined, Planned, Recorded, Skipped
from ..domain.execution import Execution, Status
from ..domain.namespaces import namespace_of
from .kinds import execution_state
from .step import Reading, States

if TYPE_CHECKING:
    from .fold import Fold

First: TypeAlias = Planned | Admitted
Limit: TypeAlias = tuple[Namespace, DailyUse]
"""A namespace with its daily quotas, and its use."""


LIMIT: Final[Reading[str, Limit | None]] = Reading("daily quotas")
"""The daily quotas of a namespace with its use; None: it has none."""


def within_quota(first: First, states: States, now: datetime, number: int = 1) -> First | Skipped:
    """Return the beginning of an execution within the daily quotas of its namespace.

    Beyond them, it is skipped. `number`: the executions that it becomes, one on each shard.
    """
    namespace = namespace_of(first.job)
    limit = None if namespace is None else states(LIMIT(namespace))
    if limit is None or states(execution_state(first.job, first.execution_id)).status is not Status.UNKNOWN:
        return first
    quota, use = limit
    has_room = use.on(_day(now)).fits(daily_use.need_of(first, number, quota), quota)
    return first if has_room else Skipped.of(first, "namespace_quota")


def limit_of(fold: "Fold", namespace: str) -> Limit | None:
    """Return the answer to `LIMIT`."""
    quota = fold.quotas.get(namespace)
    return None if quota is None else (quota, fold.states.get(use_scope(namespace), _NO_USE))


def use_scope(namespace: str) -> str:
    """Return the scope of the use of a namespace."""
    return f"use.{subjects.token(namespace)}.>"


def on_namespaces(fold: "Fold", defined: NamespacesDefined) -> None:
    """Apply new quotas; a namespace without daily quotas has no use."""
    quotas = _quotas(defined)
    for name in fold.quotas.keys() | quotas.keys():
        if name in quotas:
            fold.journal.put(fold.quotas, name, quotas[name])
            continue
        fold.journal.remove(fold.quotas, name)
        if (scope := use_scope(name)) in fold.states:
            fold.journal.remove(fold.states, scope)


def on_event(fold: "Fold", recorded: Recorded[Message], before: object, after: object) -> None:
    """Count an event of an execution or a dead letter, whose state it changes."""
    namespace = namespace_of(getattr(recorded.message, "job", ""))
    if namespace is None or (quota := fold.quotas.get(namespace)) is None:
        return
    if isinstance(after, Execution) and after.requested is None:
        return  # it is skipped, or stands for the executions on shards
    begins = isinstance(before, Execution) and before.requested is None
    size = 0 if quota.bytes_per_day is None else len(recorded.message.encode())
    if not begins and not size:
        return
    scope = use_scope(namespace)
    use = fold.states.get(scope, _NO_USE).on(_day(recorded.time))
    fold.journal.put(fold.states, scope, use.plus(Need(int(begins), size)))


def restore(fold: "Fold") -> None:
    """Read the quotas of a loaded fold."""
    for recorded in fold.standing.get(subjects.namespaces(), {}).values():
        if isinstance(recorded.message, NamespacesDefined):
            fold.quotas = _quotas(recorded.message)


def _quotas(defined: NamespacesDefined) -> dict[str, Namespace]:
    return {each.name: each for each in defined.namespaces if daily_use.has_daily_quota(each)}


_NO_USE: Final = DailyUse("")


def _day(time: datetime) -> str:
    return time.astimezone(UTC).date().isoformat()
