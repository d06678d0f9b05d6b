"""The states of a partition in memory, folded from its events, with a journal.

Nothing is read from a server to decide. Only `evolve` and `take` change a fold, and each change is in its journal, so that a commit that was
refused can be undone. An event that a state cannot apply breaks the key of that state, and no other. When a commit is stored, the states that no
later decision needs leave the fold (`departures`).
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from .. import subjects, telemetry
from ..domain import ledger
from ..domain.commit import LogHead, Position, Range, Restoration, Taken
from ..domain.definition import JobDefinition
from ..domain.events import (
    CronTriggered,
    Defined,
    DefinitionFact,
    Deleted,
    Due,
    LeaseExtended,
    Message,
    Namespace,
    NamespacesDefined,
    Passed,
    Paused,
    Recorded,
    Resumed,
    Shard,
    ShardsDefined,
    Voided,
)
from ..domain.log_events import LogEvent, NamedSnapshot, RunFound, Waited, Waits
from .broken_keys import Broken, BrokenKey, OnBroken, StoredEvent
from .daily_quotas import on_event, on_namespaces
from .departures import LEFT, Departures
from .journal import Journal
from .kinds import DEAD_LETTER, EXECUTION, PUBLIC_EVENT, QUEUE
from .locks import LOCK
from .step import Scope
from .terms import NO_TERMS, Terms
from .terms import evolve as evolve_terms
from .unique_keys import UNIQUE_KEY
from .upstream import RUNS, on_execution, on_found, on_ledger
from .waiting import WaitingInputs

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
    "runs": RUNS,
}
"""The kind of the state of a scope, by the first token of its subjects."""
STANDING: Final = frozenset({"agent", "ownership", "shards", "policy", "namespaces", "silences", "repair"})
"""The first tokens of scopes that few events change and that have no state: their newest events are enough."""
MAX_HEADS: Final = 64
"""Places of snapshots that are remembered; of more, every second is left out."""
MAX_CHANGES: Final = 16
"""The most changes of a definition that are kept for requests with an earlier moment, beside the changes that its undecided time needs."""
UNKNOWN_TIME: Final = datetime.min.replace(tzinfo=UTC)
"""The time of an event of which only the number and the content are known."""
_NOWHERE: Final = Position()

_log = telemetry.get_logger("tocsin.engine")


class LedgerTail(NamedTuple):
    """The events of a job's ledger that decisions need, and that make its state."""

    changes: tuple[Recorded[Message], ...] = ()
    """Changes of the definition, oldest first."""
    due: Recorded[Message] | None = None
    """The newest instant that fired."""
    time: Recorded[Message] | None = None
    """The event that decided on the latest time."""

    def add(self, recorded: Recorded[Message], state: ledger.Ledger) -> "LedgerTail":
        """Return the events with one more, after which the ledger has a state."""
        message = recorded.message
        if isinstance(message, DefinitionFact):
            needed = {*state.definitions, *(regime.fact for regime in state.regimes)}
            changes = (*self.changes, recorded)
            earlier = (change for change in changes[:-MAX_CHANGES] if change.sequence in needed)
            return self._replace(changes=(*earlier, *changes[-MAX_CHANGES:]))
        is_latest = isinstance(message, Due | Passed) and _upto(message) == state.watermark
        return LedgerTail(
            self.changes, recorded if isinstance(message, Due) else self.due, recorded if is_latest else self.time
        )

    def at(self, number: int) -> int:
        """Return the number of the definition in force at the number of an event.

        0: the job did not exist.
        """
        earlier = (change for change in reversed(self.changes) if change.sequence <= number)
        return _defined_by(next(earlier, self.changes[0]))

    def in_force_since(self, number: int) -> set[int]:
        """Return the numbers of the definitions in force at and after an event's number."""
        return {self.at(number), *(_defined_by(change) for change in self.changes if change.sequence > number)}


def _upto(message: Due | Passed) -> datetime:
    return message.scheduled_time if isinstance(message, Due) else message.until


class Fold:
    """The states of one partition."""

    def __init__(self, key: bytes = b"") -> None:
        """`key`: a secret of the installation, for the hashes of ids."""
        self.journal = Journal()
        self.stages: frozenset[str] = frozenset()
        """The stages of this process. An execution stays until they took its end, also before their first position is stored."""
        self.states: dict[str, Any] = {}
        """States by scope."""
        self.numbers: dict[str, int] = {}
        """The number of the newest event, by scope."""
        self.events: dict[str, list[Recorded[Message]]] = {}
        """The events of executions, oldest first, until all stages took the end."""
        self.ledgers: dict[str, LedgerTail] = {}
        """The events of ledgers, by scope."""
        self.announcements: dict[str, dict[str, Recorded[Message]]] = {}
        """Public events by subject, oldest first, each by its execution in the fold, or by a decision that stages may take."""
        self.positions: dict[tuple[str, str], Position] = {}
        """The positions of each stage, by stage and source."""
        self.terms_by_stage: dict[str, Terms] = {}
        self.definitions: dict[tuple[str, int], Recorded[Defined]] = {}
        self.shard_maps: dict[int, tuple[Shard, ...]] = {0: ()}
        self.standing: dict[str, dict[str, Recorded[Message]]] = {}
        """The newest event of each subject of a standing scope, oldest first."""
        self.quotas: dict[str, Namespace] = {}
        """The namespaces with daily quotas, by name."""
        self.waiting = WaitingInputs(self.journal)
        self.on_broken: OnBroken = lambda *_: None
        self.upstream: dict[str, None] = {}
        """The scopes of the runs of jobs that others need."""
        self.held: dict[tuple[str, bool], tuple[str, ...]] = {}
        """The executions that wait before their lock, by kind (`upstream.kind_of`), the oldest first."""
        self.proposed: dict[str, None] = {}
        """The executions that wait for acknowledgements of agents."""
        self.on_change: Callable[[str], object] = lambda _: None
        """Takes each scope with a new state."""
        self.snapshots: tuple[str, ...] = ()
        """The digests of the newest two snapshots that commits name, the older first."""
        self.heads: tuple[LogHead, ...] = ()
        """The places of snapshots that commits name, the oldest first."""
        self.gaps: tuple[Range, ...] = ()
        """The numbers that a restored log left out, after the first up to the second."""
        self.departures = Departures(self, key)

    def evolve(self, recorded: Recorded[Message], scope: str) -> None:
        """Apply the event with the next number, which is of a scope."""
        message, number = recorded.message, recorded.sequence
        first, put = scope.partition(".")[0], self.journal.put
        kind, before = KINDS.get(first), self.states.get(scope)
        if type(before) is Broken:
            self._break(scope, StoredEvent.of(recorded), before.error)
            return
        put(self.numbers, scope, number)
        if kind is None:
            if first in STANDING:
                self._put_standing(scope, recorded)
            if isinstance(message, Voided):
                self._mend(message)
            return
        try:
            before = kind.initial if before is None else before
            state = kind.evolve(before, recorded)
        except Exception as error:  # noqa: BLE001 - any error breaks this key alone
            self._break(scope, StoredEvent.of(recorded), repr(error), does_decode=True)
            return
        put(self.states, scope, state)
        self.on_change(scope)
        # The parts of an event that decisions need beside the state of its scope.
        if self.quotas and first in {"execution", "dead-letter"}:
            on_event(self, recorded, before, state)
        if first == "execution":
            self._keep_event(recorded, scope)
            on_execution(self, recorded, scope, before, state)
        elif first == "ledger":
            self._keep_ledger(recorded, scope, before, state)
        elif first == "cron":
            self._keep_public(recorded, scope)

    def _keep_event(self, recorded: Recorded[Message], scope: str) -> None:
        """Keep an event of an execution; of heartbeats in a row, only the last."""
        events = self.events.get(scope, ())
        if events and isinstance(recorded.message, LeaseExtended) and events[-1].subject == recorded.subject:
            self.journal.put(self.events, scope, [*events[:-1], recorded])
        else:
            self.journal.append(self.events, scope, recorded)

    def _keep_public(self, recorded: Recorded[Message], scope: str) -> None:
        message, put = recorded.message, self.journal.put
        if (about := self.announcements.get(scope)) is None:
            put(self.announcements, scope, about := {})
        put(about, message.data.job_id if isinstance(message, CronTriggered) else str(recorded.sequence), recorded)

    def _keep_ledger(
        self, recorded: Recorded[Message], scope: str, before: ledger.Ledger, state: ledger.Ledger
    ) -> None:
        """Keep the parts of a ledger's change that decisions need beside its state."""
        message, number = recorded.message, recorded.sequence
        self.journal.put(self.ledgers, scope, self.ledgers.get(scope, LedgerTail()).add(recorded, state))
        on_ledger(self, recorded, before, state)
        if isinstance(message, Defined):
            defined = Recorded(message, recorded.subject, number, recorded.time)
            self.journal.put(self.definitions, (message.job, number), defined)

    def _put_standing(self, scope: str, recorded: Recorded[Message]) -> None:
        before = self.standing.get(scope, {})
        others = {subject: one for subject, one in before.items() if subject != recorded.subject}
        self.journal.put(self.standing, scope, others | {recorded.subject: recorded})
        if isinstance(message := recorded.message, ShardsDefined):
            self.journal.put(self.shard_maps, recorded.sequence, message.shards)
        elif isinstance(message, NamespacesDefined):
            on_namespaces(self, message)

    def take_event(self, event: StoredEvent) -> Recorded[Message] | None:
        """Apply the event with the next number as it is stored, and return it.

        None: this version cannot read it.
        """
        try:
            recorded = event.read()
        except Exception as error:  # noqa: BLE001 - any error breaks its key alone
            self._break(event.scope, event, str(error))
            return None
        self.evolve(recorded, subjects.scope_of(recorded.message))
        return recorded

    def _break(self, scope: str, event: StoredEvent, error: str, *, does_decode: bool = False) -> None:
        """Note that an event cannot be applied, or comes after such an event."""
        put, before = self.journal.put, self.states.get(scope)
        put(self.numbers, scope, event.number)
        self.on_change(scope)
        if type(before) is Broken:
            put(self.states, scope, before.add(event))
            return
        put(self.states, scope, Broken(before, (event,), (), error))
        _log.error("event cannot be applied", action="broken-key", scope=scope, number=event.number, error=error)
        self.on_broken(event, error, does_decode)

    def _mend(self, voided: Voided) -> None:
        """Apply the events of a broken key again, because an operator set an event aside."""
        scope = subjects.guard_of(voided.subject) or voided.subject
        broken = self.states.get(scope)
        if type(broken) is Broken and (mended := broken.without(voided)) is not broken:
            self.apply_again(scope, mended)

    def apply_again(self, scope: str, broken: Broken) -> None:
        """Apply the events of a broken key again, without set-aside events that fail."""
        self._put_state(scope, broken.before)
        for event in broken.since:
            self.take_event(event)
            state = self.states.get(scope)
            if type(state) is Broken and event.number == state.number and event.number in broken.aside:
                self._put_state(scope, state.before)
        state = self.states.get(scope)
        if type(state) is Broken:
            self.journal.put(self.states, scope, msgspec.structs.replace(state, aside=broken.aside))

    def _put_state(self, scope: str, state: object) -> None:
        if state is not None:
            self.journal.put(self.states, scope, state)
        elif scope in self.states:
            self.journal.remove(self.states, scope)

    def evolve_log(self, event: LogEvent, *, writer: str, number: int, at: datetime) -> None:
        """Apply an event of the log itself, which a process stored."""
        put, own = self.journal.put, vars(self)
        match event:
            case Waits() | Waited():
                self.waiting.evolve(event, number)
            case RunFound():
                on_found(self, event, number)
            case Restoration():
                put(own, "gaps", (*self.gaps, (event.from_, event.to)))
            case NamedSnapshot():
                heads = (*self.heads, event.log)
                put(own, "snapshots", (*self.snapshots[-1:], event.digest))
                put(own, "heads", heads if len(heads) <= MAX_HEADS else (heads[0], *heads[1::2]))
            case _:
                changed = evolve_terms(self.terms_by_stage, event, writer=writer, number=number, at=at)
                for stage, terms in changed.items():
                    put(self.terms_by_stage, stage, terms)

    def replace(self, other: "Fold") -> set[str]:
        """Take another fold of the same events; return the keys with other states."""
        differing = {
            key
            for mine, others in ((self.states, other.states), (self.terms_by_stage, other.terms_by_stage))
            for key in mine.keys() | others.keys()
            if mine.get(key) != others.get(key)
        }
        on_left, on_broken, on_change = self.departures.on_left, self.on_broken, self.on_change
        vars(self).update(vars(other))
        self.on_broken, self.on_change = on_broken, on_change
        self.departures.belong_to(self, on_left)
        return differing

    def is_lost(self, number: int | None) -> bool:
        """Return whether an event was given a number, and was lost."""
        return number is not None and any(first < number <= last for first, last in self.gaps)

    def keep(self, at: datetime) -> None:
        """Note that a commit of a time (UTC) is stored.

        The states that no later decision needs leave.
        """
        self.departures.settle(self.journal.keep(self.numbers), at)

    def undo(self, length: int = 0) -> set[str]:
        """Forget the changes since the last stored commit, or a length of the journal.

        Return the scopes of states that changed.
        """
        return self.journal.undo(self.states, length)

    def take(self, stage: str, source: str, taken: Taken) -> None:
        """Apply the positions that a commit takes for a stage."""
        place = stage, source
        self.journal.put(self.positions, place, self.position(stage, source).take(taken))

    def state(self, kind: Scope[T], scope: str) -> T:
        """Return a state.

        Raises:
            BrokenKey: one of its events cannot be applied.
        """
        state: T | Broken | None = self.states.get(scope)
        if state is None:
            if kind.name == EXECUTION.name and self.departures.knows(scope):
                return LEFT  # type: ignore[return-value] # the state of an execution
            return kind.initial
        if type(state) is Broken:
            raise BrokenKey(state)
        return cast("T", state)

    def check(self, scope: str) -> None:
        """Check that all events of a scope are applied.

        Raises:
            BrokenKey: one cannot be applied.
        """
        if type(state := self.states.get(scope)) is Broken:
            raise BrokenKey(state)

    def terms(self, stage: str) -> Terms:
        """Return the leader of a stage, and the leaders that died."""
        return self.terms_by_stage.get(stage, NO_TERMS)

    def position(self, stage: str, source: str) -> Position:
        """Return how far a stage has taken a source."""
        return self.positions.get((stage, source), _NOWHERE)

    @property
    def floor(self) -> int:
        """The number up to which every stage has taken all events.

        Each stage counts that has a position, had a term, or is of this process.
        """
        floors = {stage: position.floor for (stage, source), position in self.positions.items() if source == EVENTS}
        return min((floors.get(stage, 0) for stage in {*floors, *self.terms_by_stage, *self.stages}), default=0)

    def in_force(self, job: str, at: int | None = None) -> tuple[JobDefinition, int] | None:
        """Return the definition in force, at an event or now; None: there is no job."""
        scope = subjects.ledger(job)
        regime = self.state(LEDGER, scope).current
        if regime is None:
            return None
        number = regime.definition
        if at is not None and regime.fact > at:
            number = self.ledgers[scope].at(at)
        return (self.definitions[job, number].message.definition, number) if number else None

    def after(self, subject: str, number: int) -> list[Recorded[Message]]:
        """Return the events of an execution, or of a subject, after a number, oldest first."""
        if subject.startswith("cron."):
            known = [one for one in self.announcements.get(subject, {}).values() if one.sequence > number]
            newest, last = self.states.get(subject), self.numbers.get(subject, 0)
            if isinstance(newest, Message) and last > max(number, known[-1].sequence if known else 0):
                known.append(Recorded(newest, subject, last, UNKNOWN_TIME))  # its execution is over
            return known
        scope = subject if subject in self.events else subjects.guard_of(subject) or ""
        self.check(scope)
        newer = list(takewhile(lambda recorded: recorded.sequence > number, reversed(self.events.get(scope, ()))))
        return [one for one in reversed(newer) if scope == subject or subjects.matches(subject, one.subject)]

    def all_events(self, scope: str) -> list[Recorded[Message]] | None:
        """Return all events of an execution.

        None: some have left the fold, or the execution has no event.
        """
        is_whole = scope not in self.departures.partial and type(self.states.get(scope)) is not Broken
        return self.events.get(scope) if is_whole else None

    def allows(self, scope: str, expect: int) -> bool:
        """Return whether the event with a number is the newest of a scope.

        The proposer read it just now. 0: the scope has no event. A dead letter leaves a day after its newest event, so a newer event is in the fold.
        """
        number = self.numbers.get(scope)
        return (number or 0) == expect or (number is None and scope.startswith("dead-letter."))


def _defined_by(change: Recorded[Message]) -> int:
    """Return the number of the definition that a change puts in force.

    0: the job does not exist.
    """
    match change.message:
        case Paused() | Resumed() as fact:
            return fact.definition
        case Deleted():
            return 0
        case _:
            return change.sequence
