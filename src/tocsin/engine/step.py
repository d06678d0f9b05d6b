"""The vocabulary of pure decisions: states that a stage sees, and steps that follow.

A stage declares `decide(input, states, now) -> Step`. `states(ref)` returns a state at once, or raises `Missing`. The engine
then reads everything that is missing, for all inputs of a batch together, and calls `decide` again. A `Step` holds the
changes to store, and whether `decide` is called again with the states after them. A decision waits for nothing and changes
nothing itself, so a stage can be tested with a dictionary of states, and a redelivery finishes an interrupted decision.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from ..domain.events import Message, Recorded, Timer
from .ledger_reader import LedgerReader

if TYPE_CHECKING:
    from ..ports import Clock, EventLog, Projections

T = TypeVar("T")

# --- what may be looked at ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class Scope(Generic[T]):
    """A kind of folded state.

    A reference's key is the scope; its events change the state under one guard.
    """

    name: str
    initial: T
    evolve: Callable[[T, Recorded[Message]], T]

    def __call__(self, scope: str) -> "Ref[T]":
        """Refer to the state of a scope."""
        return Ref(self, scope)


K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources from which states are read."""

    log: "EventLog"
    projections: "Projections"
    clock: "Clock"
    ledgers: "LedgerReader"

    @classmethod
    def of(cls, log: "EventLog", projections: "Projections", clock: "Clock") -> "Sources":
        """Return the sources of a process."""
        return cls(log, projections, clock, LedgerReader(log))


@dataclass(frozen=True, eq=False, slots=True)
class Reading(Generic[K, T]):
    """A kind of state that is read and not folded.

    `read` reads several keys at once. A reading is valid within one wave, unless `is_lasting`: a value that never changes stays cached.
    """

    name: str
    read: Callable[[Sources, Sequence[K]], Awaitable[Mapping[K, T]]]
    is_lasting: bool = False
    absent_for_s: float | None = None
    """Seconds for which a lasting reading that is None stays cached; None: without a limit."""

    def __call__(self, key: K) -> "Ref[T]":
        """Refer to the reading of a key."""
        return Ref(self, key)


Kind: TypeAlias = Scope[T] | Reading[Any, T]


class Ref(msgspec.Struct, Generic[T], frozen=True):
    """A reference to a state: its kind and its key."""

    kind: Kind[T]
    key: Any


class Missing(Exception):
    """A decision requires a state that is not read yet."""

    def __init__(self, ref: Ref[Any]) -> None:
        super().__init__(ref)
        self.ref = ref

    def __str__(self) -> str:
        """Return a text, which is seldom needed."""
        return f"{self.ref.kind.name} {self.ref.key} is not read yet"


class States(Protocol):
    """The states as a decision sees them."""

    is_repeated: bool
    """Whether an earlier delivery of this input, or an earlier step, may have stored events."""

    def __call__(self, ref: Ref[T], /) -> T:
        """Return a state.

        Raises:
            Missing: the engine must read it first.
            DecodeError: an event of it is unreadable.
        """
        ...

    def expect(self, refs: Callable[[], Iterable[Ref[Any]]], /) -> None:
        """Name states that the decision may look at later.

        If the decision misses a state, the engine calls `refs` and reads these states in the same round.
        """
        ...

    def at(self, ref: Ref[Any], /) -> int:
        """Return the last sequence in the state of a scope; 0: the scope is empty."""
        ...

    def guess(self, ref: Ref[T], /) -> T:
        """Return the cached state of a scope, or else the initial state, without a read.

        Append to the scope afterwards: the guard finds a wrong guess, and the state is then read.
        """
        ...

    def up_to(self, ref: Ref[T], sequence: int, /) -> T:
        """Return the state of a scope with all events up to a sequence.

        Raises:
            StaleRead: a lagging replica was read.
        """
        ...

    def fresh(self, ref: Ref[T], /, *others: Ref[Any]) -> T:
        """Return the state of a scope as it is read for this wave.

        The scopes in `others` are read with it. Call this where a cached state may be outdated for long, because no guard
        follows that would reveal it.
        """
        ...

    def has_changed(self, ref: Ref[Any], /) -> bool:
        """Return whether an earlier step of this input appended to a scope."""
        ...

    def is_unread(self, ref: Ref[Any], /) -> bool:
        """Return whether nothing of a scope is cached, and no guard on it failed."""
        ...

    def is_sent(self, message_id: str, /) -> bool:
        """Return whether an earlier step of this input stored a `Send` or `Later`.

        `message_id`: the id of the `Send`, or the subject of the timer of the `Later`.
        """
        ...


# --- what is decided ---------------------------------------------------------------------------------------------------


class Events(msgspec.Struct, frozen=True):
    """Events to append to one scope, guarded by the state that the decision saw.

    Without events, nothing changes. `at`: the sequence that guards them instead, if the input proves the state there.
    `numbered`: the only event counts on, so that several such decisions of a wave on one scope are stored together.
    """

    ref: Ref[Any]
    events: tuple[Message, ...]
    at: int | None = None
    numbered: "Numbered | None" = None

    def __bool__(self) -> bool:
        """Return whether there are any events."""
        return bool(self.events)


class Numbered(msgspec.Struct, frozen=True):
    """An event with a number of its own in its scope."""

    of: str
    """What the event is about. Its scope has one event about each."""
    number: int
    make: Callable[[int], Message]
    """Makes the event with another number."""


class Later(msgspec.Struct, frozen=True):
    """A timer that the log publishes at `until` (UTC).

    It has no guard: a timer is an input, and a stage decides on it by the newest state.
    """

    timer: Timer
    until: datetime


class Send(msgspec.Struct, frozen=True):
    """An input for another stage, stored once for each `message_id`."""

    subject: str
    message: Message
    message_id: str
    ttl: float | None = None
    """Seconds after which the log removes it; None: it stays. Only the stream of the MQ bridge accepts this."""


class Put(msgspec.Struct, frozen=True):
    """A value of a KV entry, or None to remove it.

    The revision that the decision saw guards it.
    """

    ref: Ref[tuple[bytes, int] | None]
    value: bytes | None
    ttl: float | None = None
    """Seconds after which the entry is removed; None: it stays."""


Change: TypeAlias = Events | Later | Send | Put


class Then(Enum):
    """The continuation after the changes of a step are stored."""

    DONE = "done"
    """The input is handled."""
    AGAIN = "again"
    """Decide again with the states after the changes."""
    WAIT = "wait"
    """The input cannot be decided yet: deliver it again after `delay` seconds."""
    REFUSE = "refuse"
    """The input becomes a dead letter for `reason`."""


class Step(msgspec.Struct, frozen=True):
    """One decision.

    Attributes:
        changes: what to store; at most one change for each scope, or any number of timers.
        then: what follows.
        rests_on: scopes whose states must be the newest for the decision to be right. Appends need no entry here, since
            their guards check it.
        signals: notices for the stage's own process, given to its `on_signal` after the changes are stored.
        delay: seconds until an input that waits is delivered again.
        reason: why the input is refused.
        code: the stable code of that reason; None: it has none.
        job: the job of the dead letter of a refused input; None: the job in the input's subject.
        low_priority: whether the next decision of a step that says `again` may wait until a rush is over.
        lets_pass: whether the next competitor for the same scope (`Subscription.contended`) is decided on beside the next decision of a
            step that says `again`.
    """

    changes: tuple[Change, ...] = ()
    then: Then = Then.DONE
    rests_on: tuple[Ref[Any], ...] = ()
    signals: tuple[object, ...] = ()
    delay: float = 0.0
    reason: str = ""
    code: str | None = None
    job: str | None = None
    low_priority: bool = False
    lets_pass: bool = False


DONE: Final = Step()
MAX_STEPS: Final = 10_000
"""Steps of one decision that say `again`; more is a defect."""


class EndlessDecision(RuntimeError):
    """A decision says `again` without an end."""


def done(*changes: Change, rests_on: tuple[Ref[Any], ...] = (), signals: tuple[object, ...] = ()) -> Step:
    """Handle the input once the changes are stored."""
    return Step(changes, Then.DONE, rests_on, signals)


def again(
    *changes: Change,
    rests_on: tuple[Ref[Any], ...] = (),
    signals: tuple[object, ...] = (),
    low_priority: bool = False,
    lets_pass: bool = False,
) -> Step:
    """Decide again with the states after the changes.

    `low_priority`: no execution waits for that decision to start. `lets_pass`: a competitor does not wait for it.
    """
    return Step(changes, Then.AGAIN, rests_on, signals, low_priority=low_priority, lets_pass=lets_pass)


def decided(ref: Ref[Any], events: Sequence[Message]) -> Step:
    """Append events to a scope; without events, rest on its newest state."""
    return done(Events(ref, tuple(events))) if events else done(rests_on=(ref,))


def wait(delay: float, *, rests_on: tuple[Ref[Any], ...] = ()) -> Step:
    """Deliver the input again after `delay` seconds."""
    return Step(then=Then.WAIT, rests_on=rests_on, delay=delay)


def refuse(reason: str, *, code: str, job: str | None = None, rests_on: tuple[Ref[Any], ...] = ()) -> Step:
    """Turn the input into a dead letter; `code` is the stable name of the reason."""
    return Step(then=Then.REFUSE, rests_on=rests_on, reason=reason, code=code, job=job)


Decide: TypeAlias = Callable[[Recorded[Message], States, datetime], Step]


class Known(msgspec.Struct, frozen=True):
    """An event that an input reports: it directly follows the sequence `after` in its scope.

    0: the event begins the scope, or holds the whole state.
    """

    ref: Ref[Any]
    event: Recorded[Message]
    after: int
