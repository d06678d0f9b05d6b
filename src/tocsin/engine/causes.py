"""The causes of decisions: messages that stages subscribed to, deadlines of states, and proposals."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from .. import subjects, telemetry
from ..domain.events import InvalidMessage, Message, Recorded
from ..domain.log_events import LogEvent, Waits
from ..domain.text import utc_text
from ..ports import SequenceConflict
from ..subjects import Stream
from .asked import Asked, Promised
from .broken_keys import Broken
from .fold import EVENTS, KINDS, Fold
from .stage import BoundDeadlineRule, BoundStage, BoundSubscription, Deadline
from .step import Send, States, Step

_log = telemetry.get_logger("tocsin.engine")


class Notice(NamedTuple):
    """A signal for the stage's own process."""

    take: Callable[[object], None] | None
    signal: object


Effect: TypeAlias = Send | Notice
"""An effect that leaves the process after the commit: an input of another stream, or a stage's signal in the process."""
DECISIONS: Final = frozenset({Stream.LEDGER, Stream.LOG})
FIND_EACH: Final = timedelta(milliseconds=100)
"""The time after which the deadlines of changed states are found while decisions are made: most states change again sooner."""
FOUND_AT_ONCE: Final = 2_000
"""States with deadlines that are found at once: a leader of many jobs renews its leases meanwhile."""
MIN_STALE: Final = 1_024
STALE: Final = 4
"""Alarms of a stage that may be stale for each scope that has alarms."""


class MessageCause(msgspec.Struct, frozen=True):
    """A decision to make: of a stage, on an event or an input."""

    stage: BoundStage
    subscription: BoundSubscription
    source: str
    place: int
    recorded: Recorded[Message]
    waits: Waits | None = None
    """The state of an input that waited; None: it did not, and its decision takes its place."""

    @property
    def by(self) -> str:
        """The name of the stage."""
        return self.stage.name

    @property
    def key(self) -> tuple[str, str]:
        """The stage and the source."""
        return self.stage.name, self.source

    @property
    def cause(self) -> str:
        """The name of the cause (`domain.commit.CommitEvent`)."""
        return f"0-{self.place}" if self.source == EVENTS else f"{self.source}-{self.place}"

    def decide(self, states: States, now: datetime) -> Step:
        """Make the decision."""
        return self.subscription.decide(self.recorded, states, now)


MAX_SHAPES: Final = 10_000
"""The most kinds of subjects with remembered targets."""
Target = TypeVar("Target")


class Routes(Generic[Target]):
    """The receivers of the messages of each subject.

    Filters name few tokens of a subject, and subjects that agree in these have the same targets.
    """

    def __init__(self, filters: Iterable[tuple[str, Target]]) -> None:
        self._filters: dict[str, list[tuple[str, Target]]] = {}
        """Filters and their targets, by first token."""
        self._named: dict[str, tuple[int, ...]] = {}
        """The places of the tokens that filters name, by first token."""
        self._known: dict[str, dict[tuple[object, ...], tuple[Target, ...]]] = {}
        """Targets by the number of tokens and the named tokens, by first token."""
        for filter_, target in filters:
            first, *tokens = filter_.split(".")
            self._filters.setdefault(first, []).append((filter_, target))
            places = {place for place, token in enumerate(tokens, 1) if token not in {"*", ">"}}
            self._named[first] = tuple({*self._named.get(first, ()), *places})
            self._known[first] = {}

    def to(self, subject: str) -> tuple[Target, ...]:
        """Return the receivers of a message, each once."""
        tokens = subject.split(".")
        if (known := self._known.get(first := tokens[0])) is None:
            return ()
        last = len(tokens)
        named = self._named[first]
        if len(named) == 1 and named[0] < last:  # the usual filters name the type of an event alone
            shape: tuple[object, ...] = last, tokens[named[0]]
        else:
            shape = last, *[tokens[place] for place in named if place < last]
        if (targets := known.get(shape)) is None:
            if len(known) >= MAX_SHAPES:
                known.clear()
            matching = {
                id(target): target for filter_, target in self._filters[first] if subjects.matches(filter_, subject)
            }
            targets = known[shape] = tuple(matching.values())
        return targets


def routes_of(stages: Sequence[BoundStage]) -> Mapping[str, Routes[tuple[BoundStage, BoundSubscription]]]:
    """Return the receivers of the messages of each source."""
    filters: dict[str, list[tuple[str, tuple[BoundStage, BoundSubscription]]]] = {}
    for stage in stages:
        for subscription in stage.subscriptions:
            source = EVENTS if subscription.stream in DECISIONS else subscription.stream.value
            target = stage, subscription
            filters.setdefault(source, []).extend((filter_, target) for filter_ in subscription.filters)
    return {source: Routes(of_source) for source, of_source in filters.items()}


class DeadlineCause(NamedTuple):
    """A deadline of the state of a scope that is due."""

    stage: BoundStage
    deadlines: BoundDeadlineRule
    scope: str
    deadline: Deadline

    @property
    def by(self) -> str:
        """The name of the stage."""
        return self.stage.name

    @property
    def cause(self) -> str:
        """The name of the cause (`domain.commit.CommitEvent`)."""
        return f"@{utc_text(self.deadline.at, 'microseconds')}"

    def decide(self, states: States, now: datetime) -> Step:
        """Make the decision that is due."""
        return self.deadlines.decide(self.scope, self.deadline, states, now)


class Alarm(Protocol):
    """A call to come."""

    def cancel(self) -> None:
        """Let it not come."""


class Proposal(Promised[tuple[int, ...]]):
    """Events of one scope that a part of the process decided; their numbers answer it."""

    def __init__(self, by: str, events: Sequence[Message], expect: int) -> None:
        """`expect`: the number of the scope's newest event in the decision; 0: no event."""
        super().__init__(by)
        self.cause = f"0-{expect}"
        self.events = events
        self.bodies: list[bytes] = []
        try:
            self.bodies += [event.encode() for event in events]
        except InvalidMessage as error:
            self.fail(error)
        self.expect = expect
        self.numbers: tuple[int, ...] | None = None
        """The numbers of its events in the commit that is being decided; None: the scope has a newer event."""

    def settle(self) -> None:
        if self.numbers is None:
            self.refuse()
        else:
            self.answer(self.numbers)

    def refuse(self) -> None:
        """Answer: the event that it rests on is not the newest."""
        scope = subjects.scope_of(self.events[0])
        self.fail(SequenceConflict(f"event {self.expect:,} is not the newest of {scope}"))


class Note(Promised[None]):
    """An event of the log itself that a part of the process stores."""

    cause = "@"

    def __init__(self, by: str, event: LogEvent) -> None:
        super().__init__(by)
        self.event = event

    def settle(self) -> None:
        self.answer(None)


OfPart: TypeAlias = Proposal | Note | Asked
"""A decision that a part of the process made, or requests."""
Cause: TypeAlias = MessageCause | DeadlineCause | OfPart


_Entry: TypeAlias = tuple[datetime, str, int, DeadlineCause]


class Agenda:
    """The deadlines of the states of a fold, for the stages of one process."""

    def __init__(self, stages: Sequence[BoundStage], fold: Fold) -> None:
        self._fold = fold
        self._changed: dict[str, None] = {}
        """The scopes of states that changed since the deadlines were found."""
        self._find_at = datetime.min.replace(tzinfo=UTC)
        fold.on_change = self._changed.setdefault
        self._declared: dict[str, list[tuple[BoundStage, BoundDeadlineRule]]] = {}
        for stage in stages:
            for deadlines in stage.deadlines:
                self._declared.setdefault(deadlines.kind.name, []).append((stage, deadlines))
        self._alarms: dict[str, Sequence[DeadlineCause]] = {}
        """The deadlines of the newest state, by scope."""
        self._heaps: dict[str, list[_Entry]] = {s.name: [] for s in stages if s.deadlines}
        """By stage, and by time and scope, so that every process has the same order. An alarm of no newest state is stale."""
        self.unknown: set[str] = set()
        """Scopes with states for which no deadline could be found."""
        self._numbers = itertools.count()
        self.led = frozenset(stage.name for stage in stages)
        """The stages that the process decides for. No deadline of others is known; `note_all` when a stage is gained."""

    def note(self, scopes: Iterable[str]) -> None:
        """Note that states changed; their deadlines are found when any is needed."""
        self._changed.update(dict.fromkeys(scopes))

    def note_all(self) -> None:
        """Note all states, also states that left: the process decides for more stages."""
        self.note((*self._fold.states, *self._alarms))

    def find(self) -> bool:
        """Find deadlines of states that changed, of many at once; return whether any changed."""
        if not self.led:
            self._changed.clear()
        changed = min(len(self._changed), FOUND_AT_ONCE)
        for _ in range(changed):
            self._find_of(self._changed.popitem()[0])
        return changed > 0

    def _find_of(self, scope: str) -> None:
        """Find the deadlines of a state that changed."""
        self._changed.pop(scope, None)
        kind = KINDS.get(scope.partition(".")[0])
        if kind is None or (declared := self._declared.get(kind.name)) is None:
            return
        state = self._fold.states.get(scope, kind.initial)
        self.unknown.discard(scope)
        try:
            has_none = type(state) is Broken or (kind.is_over is not None and kind.is_over(state))
            alarms = [
                DeadlineCause(stage, rule, scope, deadline)
                for stage, rule in (() if has_none else declared)
                if stage.name in self.led
                for deadline in rule.of(state)
            ]
        except Exception:  # noqa: BLE001 - a defect of one rule, or one key, stops no other
            _log.exception("deadlines unknown", action="deadlines-unknown", scope=scope)
            self.unknown.add(scope)
            alarms = []
        before = self._alarms.pop(scope, ())
        if alarms:
            self._alarms[scope] = alarms
        for alarm in alarms:
            if alarm not in before:
                self.again(alarm)

    def alarms(self, stage: str, scope: str) -> Iterator[DeadlineCause]:
        """Yield the alarms of a stage, first the alarms of a scope."""
        self.find()
        yield from (alarm for alarm in self._alarms.get(scope, ()) if alarm.by == stage)
        for other, alarms in tuple(self._alarms.items()):
            if other != scope:
                yield from (alarm for alarm in alarms if alarm.by == stage)

    def again(self, alarm: DeadlineCause) -> None:
        """Note an alarm, or note an alarm again after its decision was undone."""
        heap = self._heaps[alarm.by]
        heapq.heappush(heap, (alarm.deadline.at, alarm.scope, next(self._numbers), alarm))
        if len(heap) > MIN_STALE and len(heap) > STALE * len(self._alarms):  # a standby takes none from it
            heap[:] = [entry for entry in heap if entry[3] in self._alarms.get(entry[1], ())]
            heapq.heapify(heap)

    def is_current(self, alarm: DeadlineCause) -> bool:
        """Return whether an alarm is of the newest state of its scope."""
        if alarm.scope in self._changed:
            self._find_of(alarm.scope)
        return alarm in self._alarms.get(alarm.scope, ())

    def next_due(self, now: datetime) -> DeadlineCause | None:
        """Return the earliest alarm up to a time (UTC); None: none is known yet.

        `look_again` or a new state ends it. `find` makes more alarms known.
        """
        heaps = [heap for stage, heap in self._heaps.items() if stage in self.led]
        if self._changed and (now >= self._find_at or any(heap and heap[0][0] <= now for heap in heaps)):
            self.find()
            self._find_at = now if self._changed else now + FIND_EACH
            if self._changed:
                return None  # an earlier alarm may be unknown
        for heap in heaps:
            while heap and heap[0][0] <= now and not self.is_current(heap[0][3]):
                heapq.heappop(heap)
        earliest = min((heap[0] for heap in heaps if heap and heap[0][0] <= now), default=None)
        return None if earliest is None else earliest[3]

    def look_again(self, alarm: DeadlineCause, at: datetime) -> None:
        """Put off an alarm that gave nothing, or could not be decided."""
        heap = self._heaps[alarm.by]
        entry = (at, alarm.scope, next(self._numbers), alarm)
        if heap[0][3] is alarm:
            heapq.heapreplace(heap, entry)
        else:
            heap[:] = [other for other in heap if other[3] is not alarm] + [entry]
            heapq.heapify(heap)

    def earliest(self, stage: str) -> datetime | None:
        """Return a time (UTC) no later than the next alarm of a stage.

        None: the stage has no alarm.
        """
        self.find()
        return heap[0][0] if (heap := self._heaps.get(stage)) else None

    @property
    def next_at(self) -> datetime | None:
        """A time (UTC) no later than the next alarm; None: no alarm is set."""
        self.find()
        return min((heap[0][0] for stage, heap in self._heaps.items() if heap and stage in self.led), default=None)
