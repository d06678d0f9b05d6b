"""The states of a fold as decisions see them (`step.States`). Nothing is ever missing."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from .. import subjects
from ..domain.events import Defined, Recorded, in_force_since
from . import daily_quotas, kinds, upstream
from .fold import EVENTS, Fold
from .step import Reading, Ref, Scope
from .waiting import taken_scope

T = TypeVar("T")


class View:
    """The fold for one decision, at a time (UTC)."""

    def __init__(self, fold: Fold, now: datetime, log_time: datetime | None = None) -> None:
        """`log_time`: the time (UTC) by which a decision knows how long its input has waited.

        None: now.
        """
        self._fold = fold
        self.now = now
        self.log_time = log_time or now
        self.read: set[str] = set()
        """Scopes at which the decision looked."""
        self.changed: set[Ref[Any]] = set()
        """Scopes to which earlier steps of the decision appended."""
        self.sent: set[str] = set()
        """Ids of messages that earlier steps of the decision sent."""

    def __call__(self, ref: Ref[T], /) -> T:
        """Return a state, or the answer to a reading."""
        kind = ref.kind
        if isinstance(kind, Scope):
            self.read.add(ref.key)
            return self._fold.state(kind, ref.key)
        if kind is kinds.TAKEN_BEFORE:
            self.read.add(taken_scope(*ref.key[:2]))
        answer: T = ANSWERS[kind](self._fold, ref.key, self.log_time)
        return answer

    def at(self, ref: Ref[Any], /) -> int:
        """Return the number of the newest event of a scope; 0: it has none."""
        return self._fold.numbers.get(ref.key, 0)

    def has_changed(self, ref: Ref[Any], /) -> bool:
        """Return whether an earlier step of the decision appended to a scope."""
        return ref in self.changed

    def is_sent(self, message_id: str, /) -> bool:
        """Return whether an earlier step of the decision sent a message."""
        return message_id in self.sent


def _registered(fold: Fold, key: tuple[str, int]) -> tuple[datetime, datetime]:
    defined = fold.definitions[key]
    since = defined.message.created_at
    if since is None:
        return in_force_since(defined), defined.time
    # After many edits, the registration itself has left.
    changes: Iterable[Recorded[Any]] = fold.ledgers[subjects.ledger(key[0])].changes
    first = (one for one in changes if type(one.message) is Defined and one.message.created_at is None)
    return since, next((one.time for one in first if in_force_since(one) == since), since)


def _newest_shard_map(fold: Fold) -> tuple[int, Any]:
    fold.check(subjects.shard_map())
    version = max(fold.shard_maps)
    return version, fold.shard_maps[version]


ANSWERS: Final[Mapping[Reading[Any, Any], Callable[[Fold, Any, datetime], Any]]] = {
    kinds.FACTS: lambda fold, scope, _: fold.after(scope, 0),
    kinds.CANNOT_COME: lambda fold, key, _: fold.departures.cannot_come(*key),
    kinds.RANGE: lambda fold, key, _: fold.after(*key),
    kinds.DEFINITION: lambda fold, key, _: fold.definitions[key].message.definition,
    kinds.REGISTERED: lambda fold, key, _: _registered(fold, key),
    kinds.IN_FORCE: lambda fold, key, _: fold.in_force(*key),
    kinds.SHARD_MAP: lambda fold, version, _: fold.shard_maps[version],
    kinds.NEWEST_SHARD_MAP: lambda fold, _, __: _newest_shard_map(fold),
    kinds.TAKEN_BEFORE: lambda fold, key, _: fold.position(*key[:2]).floor >= key[2] - 1,
    kinds.TAKEN: lambda fold, key, _: fold.position(key[0], EVENTS).has(key[1]),
    upstream.HELD: lambda fold, kind, _: fold.held.get(kind, ()),
    kinds.LOG_TIME: lambda _, __, now: now,
    daily_quotas.LIMIT: lambda fold, namespace, _: daily_quotas.limit_of(fold, namespace),
}
"""Answers to readings."""
