"""The states of a partition in memory, folded from its events, and their old values since the last stored commit.

Nothing is read from a server to decide. Only `evolve` and `take` change a fold, and each change is in its journal, so that a commit that was
refused can be undone. An event that a state cannot apply breaks the key of that state, and no other.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from .. import subjects, telemetry
from ..domain import execution, ledger
from ..domain.commit import Position, Taken
from ..domain.definition import JobDefinition
from ..domain.errors import TocsinError
from ..domain.events import (
    Defined,
    ExpiryTimer,
    Message,
    Recorded,
    Shard,
    ShardsDefined,
    Timer,
)
from ..domain.execution import Execution
from .kinds import DEAD_LETTER, EXECUTION, PUBLIC_EVENT, QUEUE
from .locks import LOCK
from .step import Scope
from .unique_keys import UNIQUE_KEY

T = TypeVar("T")

EVENTS: Final = "events"
"""The source of positions that are numbers of events; every other source is a stream."""
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
_ABSENT: Final = object()

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

    def undo(self) -> None:
        """Restore the entries of the last stored commit."""
        while self._old:
            table, key, old = self._old.pop()
            if old is _ABSENT:
                del table[key]
            else:
                table[key] = old

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
        self.events: dict[str, tuple[Recorded[Message], ...]] = {}
        """The events of scopes whose events decisions look at, oldest first."""
        self.positions: dict[tuple[str, str], Position] = {}
        """What each stage has taken, by stage and source."""
        self.definitions: dict[tuple[str, int], Recorded[Defined]] = {}
        self.shard_maps: dict[int, tuple[Shard, ...]] = {0: ()}
        self._deadlines: dict[str, tuple[tuple[datetime, Timer], ...]] = {}
        """The deadlines of the state of a scope."""
        self._agenda: list[tuple[datetime, str]] = []
        """A heap over the deadlines; an entry whose scope has another deadline by now is stale."""

    # --- changes -------------------------------------------------------------------------------------------------------

    def evolve(self, recorded: Recorded[Message]) -> None:
        """Apply the event with the next number."""
        message, number = recorded.message, recorded.sequence
        scope = subjects.scope_of(message)
        kind, put = KINDS.get(scope.partition(".")[0]), self.journal.put
        put(self.numbers, scope, number)
        put(self.events, scope, (*self.events.get(scope, ()), recorded))
        if kind is None:
            return
        before = self.states.get(scope, kind.initial)
        if isinstance(before, BrokenKey):
            return
        try:
            state = kind.evolve(before, recorded)
        except Exception as error:  # noqa: BLE001 - whatever it is, it breaks one key
            _log.exception("event cannot be applied", action="broken-key", scope=scope, number=number)
            put(self.states, scope, BrokenKey(f"{scope}: event {number:,} cannot be applied: {error!r}"))
            return
        put(self.states, scope, state)
        if isinstance(message, Defined):
            put(self.definitions, (message.job, number), Recorded(message, recorded.subject, number, recorded.time))
        elif isinstance(message, ShardsDefined):
            put(self.shard_maps, number, message.shards)
        elif isinstance(state, Execution):
            self._set_deadlines(scope, state)

    def take(self, stage: str, source: str, taken: Taken) -> None:
        """Apply the positions that a commit takes for a stage."""
        place = stage, source
        self.journal.put(self.positions, place, self.positions.get(place, Position()).take(taken))

    def _set_deadlines(self, scope: str, state: Execution) -> None:
        deadlines = tuple(_deadlines_of(state))
        if deadlines == self._deadlines.get(scope, ()):
            return
        self.journal.put(self._deadlines, scope, deadlines)
        for until, _ in deadlines:
            heapq.heappush(self._agenda, (until, scope))

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

    def position(self, stage: str, source: str) -> Position:
        """Return how far a stage has taken a source."""
        return self.positions.get((stage, source), Position())

    def due(self, now: datetime) -> Iterator[tuple[datetime, Timer]]:
        """Yield the deadlines up to a time (UTC), earliest first; those that remain are yielded again."""
        looked_at = []
        while self._agenda and self._agenda[0][0] <= now:
            until, scope = heapq.heappop(self._agenda)
            current = [timer for at, timer in self._deadlines.get(scope, ()) if at == until]
            if current:
                looked_at.append((until, scope))
                yield from ((until, timer) for timer in current)
        for entry in dict.fromkeys(looked_at):
            heapq.heappush(self._agenda, entry)

    def next_deadline(self) -> datetime | None:
        """Return a time (UTC) no later than the next deadline; None: there is none."""
        return self._agenda[0][0] if self._agenda else None

    def undo(self) -> None:
        """Return to the last stored commit."""
        self.journal.undo()
        self._agenda = sorted({(until, scope) for scope, of in self._deadlines.items() for until, _ in of})

    # --- what decisions read beside states -----------------------------------------------------------------------------

    def in_force(self, job: str, at: int | None = None) -> tuple[JobDefinition, int] | None:
        """Return the definition that is in force, or was at an event; None: the job does not exist."""
        for recorded in reversed(self.events.get(subjects.ledger(job), ())):
            if at is not None and recorded.sequence > at:
                continue
            regime = ledger.evolve(ledger.initial, recorded).current
            if regime is None:
                continue  # a decision on an instant
            if not regime.definition:
                return None
            return self.definitions[job, regime.definition].message.definition, regime.definition
        return None

    def after(self, subject: str, number: int) -> tuple[Recorded[Message], ...]:
        """Return the events of a scope or subject after a number."""
        scope = next((scope for scope in (subject, subjects.guard_of(subject)) if scope in self.events), subject)
        return tuple(
            r for r in self.events.get(scope, ()) if r.sequence > number and subjects.matches(subject, r.subject)
        )


def _deadlines_of(state: Execution) -> Iterable[tuple[datetime, Timer]]:
    for timer, until in execution.retry_timers(state):
        yield until, timer
    if state.requested is not None and not state.is_over and (expires_at := state.request.plan.expires_at) is not None:
        yield expires_at, ExpiryTimer(job=state.request.job, execution_id=state.request.execution_id)
