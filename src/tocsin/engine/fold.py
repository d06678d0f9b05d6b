"""The states of a partition in memory, folded from its events, and their old values since the last stored commit.

Nothing is read from a server to decide. Only `evolve` and `take` change a fold, and each change is in its journal, so that a commit that was
refused can be undone. An event that a state cannot apply breaks the key of that state, and no other.
"""

from collections.abc import Mapping
from datetime import datetime
from itertools import takewhile
from typing import Any, Final, TypeVar

from .. import subjects, telemetry
from ..domain import ledger
from ..domain.commit import Position, Taken
from ..domain.definition import JobDefinition
from ..domain.errors import TocsinError
from ..domain.events import Defined, Message, Recorded, Shard, ShardsDefined
from ..domain.log_events import LogEvent
from .kinds import DEAD_LETTER, EXECUTION, PUBLIC_EVENT, QUEUE
from .locks import LOCK
from .step import Scope
from .terms import NO_TERMS, Terms
from .terms import evolve as evolve_terms
from .unique_keys import UNIQUE_KEY

T = TypeVar("T")

EVENTS: Final = "events"
"""The source of positions that are numbers of events; every other source is a stream."""
TERMS: Final = "log.terms"
"""The key of the terms of all stages among the states."""
LEDGER: Final = Scope("ledger", ledger.initial, ledger.evolve)
KINDS: Final[Mapping[str, Scope[Any]]] = {
    "ledger": LEDGER,
    "execution": EXECUTION,
    "lock": LOCK,
    "unique": UNIQUE_KEY,
    "queue": QUEUE,
    "dead-letter": DEAD_LETTER,
    "cron": PUBLIC_EVENT,
}
"""The kind of the state of a scope, by the first token of its subjects."""
MAX_EVENTS: Final = 1_024
"""Events of a scope that decisions can look at."""
_ABSENT: Final = object()
_APPENDED: Final = object()

_log = telemetry.get_logger("tocsin.engine")


class BrokenKey(TocsinError):
    """An event of a key cannot be applied: no decision may rest on this key."""

    code = "broken-key"


class Journal:
    """The old values of tables since the last stored commit."""

    def __init__(self) -> None:
        self._old: list[tuple[dict[Any, Any], Any, Any]] = []

    def put(self, table: dict[Any, T], key: object, value: T) -> None:
        """Change an entry."""
        self._old.append((table, key, table.get(key, _ABSENT)))
        table[key] = value

    def append(self, table: dict[Any, list[T]], key: object, value: T) -> None:
        """Add to the list of an entry."""
        if (values := table.get(key)) is None:
            self.put(table, key, [value])
        else:
            values.append(value)
            self._old.append((table, key, _APPENDED))

    def __len__(self) -> int:
        return len(self._old)

    def undo(self, length: int = 0) -> set[str]:
        """Restore the entries of the last stored commit, or of an earlier length, and return the scopes among their keys."""
        keys = {key for _, key, _ in self._old[length:] if isinstance(key, str)}
        while len(self._old) > length:
            table, key, old = self._old.pop()
            if old is _ABSENT:
                del table[key]
            elif old is _APPENDED:
                table[key].pop()
            else:
                table[key] = old
        return keys

    def keep(self) -> None:
        """Forget the old values: the commit is stored."""
        self._old.clear()


class Fold:
    """The states of one partition."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.states: dict[str, Any] = {}
        """States by scope."""
        self.numbers: dict[str, int] = {}
        """The number of the newest event, by scope."""
        self.events: dict[str, list[Recorded[Message]]] = {}
        """The events of scopes whose events decisions look at, oldest first."""
        self.positions: dict[tuple[str, str], Position] = {}
        """What each stage has taken, by stage and source."""
        self.definitions: dict[tuple[str, int], Recorded[Defined]] = {}
        self.shard_maps: dict[int, tuple[Shard, ...]] = {0: ()}

    # --- changes -------------------------------------------------------------------------------------------------------

    def evolve(self, recorded: Recorded[Message]) -> str:
        """Apply the event with the next number, and return its scope."""
        message, number = recorded.message, recorded.sequence
        scope = subjects.scope_of(message)
        kind, put = KINDS.get(scope.partition(".")[0]), self.journal.put
        put(self.numbers, scope, number)
        self.journal.append(self.events, scope, recorded)
        if len(events := self.events[scope]) >= 2 * MAX_EVENTS:
            put(self.events, scope, events[-MAX_EVENTS:])
        if kind is None:
            return scope
        before = self.states.get(scope, kind.initial)
        if isinstance(before, BrokenKey):
            return scope
        try:
            state = kind.evolve(before, recorded)
        except Exception as error:  # noqa: BLE001 - any error breaks this key alone
            _log.exception("event cannot be applied", action="broken-key", scope=scope, number=number)
            put(self.states, scope, BrokenKey(f"{scope}: event {number:,} cannot be applied: {error!r}"))
            return scope
        put(self.states, scope, state)
        if isinstance(message, Defined):
            put(self.definitions, (message.job, number), Recorded(message, recorded.subject, number, recorded.time))
        elif isinstance(message, ShardsDefined):
            put(self.shard_maps, number, message.shards)
        return scope

    def evolve_terms(self, event: LogEvent, *, writer: str, number: int, at: datetime) -> None:
        """Apply an event of the log itself, which a process stored."""
        terms = evolve_terms(self.states.get(TERMS, {}), event, writer=writer, number=number, at=at)
        self.journal.put(self.states, TERMS, terms)

    def replace(self, other: "Fold") -> set[str]:
        """Take the content of another fold of the same events; return the scopes whose states differ."""
        differing = {
            scope
            for scope in self.states.keys() | other.states.keys()
            if self.states.get(scope) != other.states.get(scope)
        }
        vars(self).update(vars(other))
        return differing

    def note(self, subject: str, number: int) -> None:
        """Note that an event was stored, without its state."""
        self.numbers[subjects.guard_of(subject) or subject] = number

    def take(self, stage: str, source: str, taken: Taken) -> None:
        """Apply the positions that a commit takes for a stage."""
        place = stage, source
        self.journal.put(self.positions, place, self.positions.get(place, Position()).take(taken))

    # --- answers -------------------------------------------------------------------------------------------------------

    def state(self, kind: Scope[T], scope: str) -> T:
        """Return a state.

        Raises:
            BrokenKey: an event of it cannot be applied.
        """
        state: T | BrokenKey = self.states.get(scope, kind.initial)
        if isinstance(state, BrokenKey):
            raise state
        return state

    def terms(self, stage: str) -> Terms:
        """Return who leads a stage, and who died."""
        by_stage: Mapping[str, Terms] = self.states.get(TERMS, {})
        return by_stage.get(stage, NO_TERMS)

    def position(self, stage: str, source: str) -> Position:
        """Return how far a stage has taken a source."""
        return self.positions.get((stage, source), Position())

    # --- what decisions read beside states -----------------------------------------------------------------------------

    def in_force(self, job: str, at: int | None = None) -> tuple[JobDefinition, int] | None:
        """Return the definition in force, at an event or now; None: there is no job."""
        scope = subjects.ledger(job)
        regime = self.state(LEDGER, scope).current
        if at is not None and regime is not None and regime.fact > at:
            events = (recorded for recorded in reversed(self.events[scope]) if recorded.sequence <= at)
            regime = next(filter(None, (ledger.evolve(ledger.initial, recorded).current for recorded in events)), None)
        if regime is None or not regime.definition:
            return None
        return self.definitions[job, regime.definition].message.definition, regime.definition

    def after(self, subject: str, number: int) -> list[Recorded[Message]]:
        """Return the events of a scope or subject after a number, oldest first."""
        events = self.events.get(subject)
        is_scope = events is not None
        if events is None:
            events = self.events.get(subjects.guard_of(subject) or "", [])
        newer = list(takewhile(lambda recorded: recorded.sequence > number, reversed(events)))
        return [recorded for recorded in reversed(newer) if is_scope or subjects.matches(subject, recorded.subject)]
