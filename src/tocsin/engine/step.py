"""The vocabulary of pure decisions: states that a stage sees, and steps that follow.

A stage declares `decide(input, states, now) -> Step`. `states(ref)` returns a state of the fold, or the answer to a reading. A `Step`
holds the changes to store, and whether `decide` is called again with the states after them. A decision waits for nothing and changes
nothing itself, and it is stored whole or not at all.
"""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from ..domain.events import Message, Recorded

if TYPE_CHECKING:
    from ..ports import Clock, EventLog, Projections

T = TypeVar("T")


@dataclass(frozen=True, eq=False, slots=True)
class Scope(Generic[T]):
    """A kind of folded state.

    A reference's key is the scope, whose events change the state.
    """

    name: str
    initial: T
    evolve: Callable[[T, Recorded[Message]], T]
    is_over: Callable[[T], bool] | None = None
    """Returns whether a state has no deadlines any more; None: the rules decide."""

    def __call__(self, scope: str) -> "Ref[T]":
        """Refer to the state of a scope."""
        return Ref(self, scope)


K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources from which an edge reads data that the fold lacks."""

    log: "EventLog"
    projections: "Projections"
    clock: "Clock"


@dataclass(frozen=True, eq=False, slots=True)
class Reading(Generic[K, T]):
    """A question about data beside folded states.

    The fold answers it (`fold_view`), unless it has `read`: then an edge reads the data before it decides.
    """

    name: str
    read: Callable[[Sources, Sequence[K]], Awaitable[Mapping[K, T]]] | None = None

    def __call__(self, key: K) -> "Ref[T]":
        """Refer to the reading of a key."""
        return Ref(self, key)


Kind: TypeAlias = Scope[T] | Reading[Any, T]


class Ref(msgspec.Struct, Generic[T], frozen=True):
    """A reference to a state: its kind and its key."""

    kind: Kind[T]
    key: Any


class Missing(Exception):
    """A decision of an edge requires data that is not read yet."""

    def __init__(self, ref: Ref[Any]) -> None:
        super().__init__(ref)
        self.ref = ref


class States(Protocol):
    """The states as a decision sees them."""

    def __call__(self, ref: Ref[T], /) -> T:
        """Return a state, or the answer to a reading.

        Raises:
            Missing: an edge must read it first.
            BrokenKey: an event of the state cannot be applied.
        """

    def at(self, ref: Ref[Any], /) -> int:
        """Return the number of the newest event of a scope; 0: the scope has none."""

    def has_changed(self, ref: Ref[Any], /) -> bool:
        """Return whether an earlier step of this decision appended to a scope."""

    def is_sent(self, message_id: str, /) -> bool:
        """Return whether an earlier step of this decision sent a message."""


class Events(msgspec.Struct, frozen=True):
    """Events to append to one scope; without events, nothing changes."""

    ref: Ref[Any]
    events: tuple[Message, ...]

    def __bool__(self) -> bool:
        """Return whether there are any events."""
        return bool(self.events)


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


Change: TypeAlias = Events | Send | Put


class Then(Enum):
    """The continuation after the changes of a step are stored."""

    DONE = "done"
    """The input is handled."""
    AGAIN = "again"
    """Decide again with the states after the changes."""
    WAIT = "wait"
    """The input cannot be decided yet.

    The loop decides on it again when a state changes that it read; an edge does after `delay` seconds.
    """
    REFUSE = "refuse"
    """The input becomes a dead letter for `reason`."""


class Step(msgspec.Struct, frozen=True):
    """One decision.

    Attributes:
        changes: what to store; at most one change for each scope.
        then: what follows.
        signals: notices for the stage's own process, given to its `on_signal` after the changes are stored.
        delay: seconds until an input that waits is delivered again.
        reason: why the input is refused.
        code: the stable code of that reason; None: it has none.
        job: the job of the dead letter of a refused input; None: the job in the input's subject.
        rest: decides after the changes, if the whole decision goes into one commit; None: the decision is made again.
    """

    changes: tuple[Change, ...] = ()
    then: Then = Then.DONE
    signals: tuple[object, ...] = ()
    delay: float = 0.0
    reason: str = ""
    code: str | None = None
    job: str | None = None
    rest: "Rest | None" = None


Rest: TypeAlias = Callable[[States, datetime], Step]
DONE: Final = Step()
ANSWERED: Final = "answered"
"""The signal of a request that is answered without an event: its publisher waits for the commit that takes it."""
MAX_STEPS: Final = 10_000
"""Steps of one decision that say `again`; more is a defect."""


class EndlessDecision(RuntimeError):
    """A decision says `again` without an end."""


def done(*changes: Change, signals: tuple[object, ...] = ()) -> Step:
    """Handle the input once the changes are stored."""
    return Step(changes, Then.DONE, signals)


def again(*changes: Change, signals: tuple[object, ...] = (), rest: Rest | None = None) -> Step:
    """Decide again with the states after the changes; `rest`: as in `Step`."""
    return Step(changes, Then.AGAIN, signals, rest=rest)


def decided(ref: Ref[Any], events: Sequence[Message]) -> Step:
    """Append events to a scope, if there are any."""
    return done(Events(ref, tuple(events))) if events else DONE


def wait(delay: float) -> Step:
    """Decide on the input later, at an edge after `delay` seconds."""
    return Step(then=Then.WAIT, delay=delay)


def refuse(reason: str, *, code: str, job: str | None = None) -> Step:
    """Turn the input into a dead letter; `code` is the stable name of the reason."""
    return Step(then=Then.REFUSE, reason=reason, code=code, job=job)


Decide: TypeAlias = Callable[[Recorded[Message], States, datetime], Step]
