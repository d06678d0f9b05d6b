"""The inputs of a batch on their way through the waves, and their changes."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from ..domain.events import Message, Recorded
from ..ports import Append, Delay, EntryWrite, Publish, Write
from ..subjects import Bucket
from .states import View
from .step import MAX_STEPS, Change, EndlessDecision, Events, Later, Numbered, Put, Ref, Send, Step, Then


class Result(Enum):
    """The end of the decision on an input."""

    DONE = "done"
    WAIT = "wait"
    REFUSED = "refused"
    OUTDATED = "outdated"
    FAILED = "failed"
    HELD = "held"
    """An earlier input of the same ordering key was not decided."""


def _result_of(then: Then) -> Result | None:
    """Return the end that a step means; None: the decision goes on."""
    if then is Then.DONE:
        return Result.DONE
    if then is Then.AGAIN:
        return None
    return Result.WAIT if then is Then.WAIT else Result.REFUSED


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of an input: its last step, or the error that ended its decision."""

    result: Result
    step: Step | None = None
    error: Exception | None = None

    @property
    def is_settled(self) -> bool:
        """Return whether the next input of the ordering key may be decided."""
        return self.result is Result.DONE or self.result is Result.REFUSED  # a set would hash both in Python


class Item(msgspec.Struct, eq=False):
    """An input on its way through the waves."""

    input: Recorded[Message]
    key: object
    outcome: Outcome | None = None
    conflicts: int = 0
    steps: int = 0
    is_repeated: bool = False
    """Whether the input was delivered before."""
    is_alone: bool = False
    touched: list[Ref[Any]] = msgspec.field(default_factory=list)
    sent: set[str] = msgspec.field(default_factory=set)
    changed: set[Ref[Any]] = msgspec.field(default_factory=set)
    low_priority: bool = False
    """Whether the next decision may wait until a rush is over."""
    lets_pass: bool = False
    """Whether the next item of the key is decided on already."""

    def follow(self, step: Step) -> None:
        """End the decision with a stored step, unless the step says `again`."""
        self.steps += 1
        self.low_priority, self.lets_pass = step.low_priority, step.lets_pass
        if (result := _result_of(step.then)) is not None:
            self.outcome = Outcome(result, step)
        elif self.steps >= MAX_STEPS:
            self.fail(EndlessDecision(f"the decision on {self.input.subject} has {MAX_STEPS} steps"))

    def fail(self, error: Exception) -> None:
        """End the decision with an error."""
        self.outcome = Outcome(Result.FAILED, error=error)


UNSEEN: Final = object()
JOINED_AT_ONCE: Final = 256
"""Numbered events of one scope that are stored together."""


class Decided(msgspec.Struct, frozen=True):
    """An item's step, and its changes as the log stores them."""

    item: Item
    step: Step
    changes: tuple["Guarded", ...]
    rests_on: tuple[tuple[Ref[Any], int], ...]
    """Scopes, each with the last sequence that the decision saw."""
    joined: tuple["Decided", ...] = ()
    """The steps whose numbered events follow in the same write."""


class Guarded(msgspec.Struct, frozen=True):
    """A change, and the state that its decision saw."""

    change: Change
    write: Write | EntryWrite
    scope: object
    """What the guard covers; None: there is no guard."""
    state: object = UNSEEN
    """Of events, the state before them."""

    @property
    def bucket(self) -> Bucket:
        """Return the bucket of a KV entry."""
        assert isinstance(self.change, Put)  # noqa: S101 - for the type checker
        bucket: Bucket = self.change.ref.key[0]
        return bucket


def guarded_change(change: Change, view: View) -> Guarded:
    """Return a change as the log stores it, guarded by what the decision saw."""
    match change:
        case Events(scope, events, proven):
            state, at = view.known(scope) if proven is None else (UNSEEN, proven)
            return Guarded(change, Append(events, at), scope.key, state)
        case Later(timer, until):
            return Guarded(change, Delay(timer, until), None)
        case Send(subject, message, message_id, ttl):
            return Guarded(change, Publish(subject, message, message_id, ttl), None)
        case Put(ref, value, ttl):
            entry = view(ref)
            return Guarded(change, EntryWrite(ref.key[1], value, entry[1] if entry else 0, ttl), ref)


def one_for_each_scope(decided: Sequence[Decided]) -> list[Decided]:
    """Return the first step of each scope; the next wave decides the others again.

    Others whose numbered events can follow in the same write join it.
    """
    used_scopes: set[object] = set()
    first_of_scope: list[Decided] = []
    numbered: dict[object, dict[str, Decided]] = {}
    for part in decided:
        if len(part.changes) == 1:  # nearly always
            scope = part.changes[0].scope
            if scope is None or scope not in used_scopes:
                used_scopes.add(scope)
                first_of_scope.append(part)
            if (event := _numbered(part)) is not None:
                numbered.setdefault((scope, event.number), {}).setdefault(event.of, part)
            continue
        scopes = {change.scope for change in part.changes if change.scope is not None}
        if used_scopes.isdisjoint(scopes):
            used_scopes |= scopes
            first_of_scope.append(part)
    groups = {id(next(iter(parts.values()))): parts for parts in numbered.values() if len(parts) > 1}
    return [_joined([*groups[id(part)].values()]) if id(part) in groups else part for part in first_of_scope]


def _numbered(part: Decided) -> Numbered | None:
    """Return the numbered event of a step with one change."""
    change = part.changes[0].change
    return change.numbered if isinstance(change, Events) else None


def _joined(parts: Sequence[Decided]) -> Decided:
    """Return the first of several steps, with the numbered events of all."""
    first, [guarded] = parts[0], parts[0].changes
    assert isinstance(guarded.write, Append)  # noqa: S101 - for the type checker
    numbered = [event for part in parts[:JOINED_AT_ONCE] if (event := _numbered(part)) is not None]
    events = tuple(event.make(event.number + place) for place, event in enumerate(numbered))
    changes = (msgspec.structs.replace(guarded, write=Append(events, guarded.write.expect)),)
    return msgspec.structs.replace(first, changes=changes, joined=tuple(parts[1:JOINED_AT_ONCE]))
