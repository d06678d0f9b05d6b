"""Decided steps, and their changes as the log stores them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..ports import Append, Delay, Publish, Write
from .items import Item
from .states import View
from .step import Change, Events, Later, Put, Ref, Send, Step

UNSEEN: Final = object()


@dataclass(frozen=True, slots=True)
class Decided:
    """An item's step, and its changes as the log stores them."""

    item: Item
    step: Step
    changes: tuple["Guarded", ...]
    rests_on: tuple[tuple[Ref[Any], int], ...]
    """Scopes, each with the last sequence that the decision saw."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A change, and the state that its decision saw."""

    change: Change
    write: Write | None
    """None: the change is a KV entry."""
    scope: object
    """What the guard covers; None: there is no guard."""
    state: object = UNSEEN
    """Of events, the state before them; of a KV entry, its revision (0: none)."""


def guarded_change(change: Change, view: View) -> Guarded:
    """Return a change as the log stores it, guarded by what the decision saw."""
    match change:
        case Events(scope, events, proven):
            state, at = view.known(scope) if proven is None else (UNSEEN, proven)
            return Guarded(change, Append(events, at), scope.key, state)
        case Later(timer, until, ref):
            return Guarded(change, Delay(timer, until, ref.key, view.at(ref)), ref.key)
        case Send(subject, message, message_id, ttl):
            return Guarded(change, Publish(subject, message, message_id, ttl), None)
        case Put(ref, _):
            entry = view(ref)
            return Guarded(change, None, ref, entry[1] if entry else 0)


def one_for_each_scope(decided: Sequence[Decided]) -> list[Decided]:
    """Return the first step of each scope; the next wave decides the others again."""
    taken: set[object] = set()
    chosen: list[Decided] = []
    for part in decided:
        scopes = {change.scope for change in part.changes if change.scope is not None}
        if taken.isdisjoint(scopes):
            taken |= scopes
            chosen.append(part)
    return chosen
