"""The content of a snapshot: one row of JSON for each key of a fold.

A row has the key, the number of its newest event, and the fewest events that make its state, with their subjects and bodies as the log has
them. So states are made by the code that folds the log, and a version whose states have another shape reads the same rows. A value has only data that
no event has. It is the queue of a lock and the holders of a unique key (their events name each other), the ends that unique keys need, positions,
inputs that wait, and hashes of ids.

    kind          key                   events                                          value
  - ledger        ledger.<job>.>        changes of the definition, instants: the newest  its definitions that left the fold
  - definition    ledger.<job>.>        a definition that is not among these changes
  - execution     execution.<job>.….>   all; if it is over, the lasting events
  - rest          execution.<job>.….>                                                   its status: it is over
  - lock          lock.<job>….*                                                         its holder, fence and queue
  - unique        unique.<job>.<key>.>                                                  its holders
  - dead-letter   dead-letter.<job>….>  all, without attempts
  - queue         queue.<name>.>        the newest pause or resumption, the newest purge
  - runs          runs.<job>.>                                                          the runs (`dependency.JobRuns`)
  - use           use.<namespace>.>                                                     its daily use (`daily_use.DailyUse`)
  - cron          cron.….               the newest, and of open executions              the subject of each event
  - standing      agent.… ownership.…   the newest of each subject (`fold.STANDING`)
  - other         any other scope                                                       the shards, of a map
  - broken        any scope                                                             the error of its event
  - position      <stage> <source>                                                      the position
  - waiting       <stage> <durable>…                                                    the input (`log_events.Waits`)
  - terms         <stage>                                                               its leader, and dead leaders (`terms.Terms`)
  - known         requests, ends                                                        hashes of ids (`request_ids.KnownIds`)
  - snapshot      the digest of its head                                                (its number: 0 the older, 1 the newer)
  - head                                                                                the place of a snapshot (`domain.commit.LogHead`)
  - gap           a number after which numbers are left out                             (its number: up to which)
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import reduce
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from .. import subjects
from ..domain.commit import LogHead, Position, Range
from ..domain.daily_use import DailyUse
from ..domain.dead_letter import DeadLetter
from ..domain.dependency import JobRuns
from ..domain.events import Defined, DefinitionFact, Due, KeyHolder, Message, Passed, Recorded, Shard, ShardsDefined
from ..domain.execution import Execution, Status
from ..domain.lock import Lock, LockQueue, Waiter
from ..domain.log_events import Waits
from ..domain.queue import Queue
from ..domain.uniqueness import UniqueKey
from . import daily_quotas
from .broken_keys import Broken, StoredEvent
from .departures import RESTS
from .fold import KINDS, Fold, LedgerTail
from .request_ids import KnownIds
from .terms import Terms
from .upstream import restore
from .waiting import Entry

Line: TypeAlias = tuple[str, bytes]
"""The kind of a row, and the row as JSON."""


NOTHING: Final = msgspec.Raw(b"null")


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a key."""

    key: str
    number: int = 0
    events: tuple[StoredEvent, ...] = ()
    value: msgspec.Raw = NOTHING


class _Lock(msgspec.Struct, frozen=True):
    holder: str | None
    fence: int
    waiting: tuple[tuple[str, datetime, bool, int], ...]
    """By arrival: the id, the scheduled time, whether it yields to others, and the number."""


class FoldCopy(NamedTuple):
    """A fold at the number of a stored commit.

    Its states never change, so the copy is shallow.
    """

    states: dict[str, Any]
    numbers: dict[str, int]
    events: dict[str, tuple[Recorded[Message], ...]]
    ledgers: dict[str, LedgerTail]
    announcements: dict[str, tuple[tuple[str, Recorded[Message]], ...]]
    definitions: dict[tuple[str, int], Recorded[Defined]]
    shard_maps: dict[int, Any]
    standing: dict[str, dict[str, Recorded[Message]]]
    positions: dict[tuple[str, str], Position]
    waiting: tuple[Entry, ...]
    terms: dict[str, Terms]
    known: tuple[tuple[KnownIds, ...], ...]
    needed_definitions: int
    snapshots: tuple[str, ...]
    heads: tuple[LogHead, ...]
    gaps: tuple[Range, ...]

    @classmethod
    def of(cls, fold: Fold) -> "FoldCopy":
        """Copy a fold between two commits."""
        return cls(
            states=dict(fold.states),
            numbers=dict(fold.numbers),
            events={scope: tuple(events) for scope, events in fold.events.items()},
            ledgers=dict(fold.ledgers),
            announcements={name: tuple(about.items()) for name, about in fold.announcements.items()},
            definitions=dict(fold.definitions),
            shard_maps=dict(fold.shard_maps),
            standing=dict(fold.standing),
            positions=dict(fold.positions),
            waiting=tuple(fold.waiting),
            terms=dict(fold.terms_by_stage),
            known=tuple(tuple(ids.dump()) for ids in fold.departures.ids),
            needed_definitions=fold.departures.needed_definitions,
            snapshots=fold.snapshots,
            heads=fold.heads,
            gaps=fold.gaps,
        )


def lines(copy: FoldCopy) -> Iterator[Line]:  # noqa: C901, PLR0912 - one case a kind
    """Yield the rows of a fold."""
    for scope, state in copy.states.items():
        yield _line(*_state_row(copy, scope, state))
    for (job, number), defined in copy.definitions.items():
        scope = subjects.ledger(job)
        tail = copy.ledgers.get(scope)
        if tail is None or all(change.sequence != number for change in tail.changes):
            yield _line("definition", Row(scope, number, (_stored(defined),)))
    for scope, newest in copy.standing.items():
        yield _line("standing", Row(scope, copy.numbers[scope], tuple(map(_stored, newest.values()))))
    for scope in copy.numbers.keys() - copy.states.keys() - copy.standing.keys():
        yield _line("other", Row(scope, copy.numbers[scope]))
    for version, shards in copy.shard_maps.items():
        value = ShardsDefined(shards=shards).encode()
        yield _line("other", Row(subjects.shard_map(), version, (), msgspec.Raw(value)))
    for (stage, source), position in copy.positions.items():
        yield _line("position", Row(f"{stage} {source}", 0, (), _value(position)))
    for waiting, number in copy.waiting:
        yield _line("waiting", Row(" ".join(map(str, waiting.name)), number, (), _value(waiting)))
    for stage, terms in copy.terms.items():
        yield _line("terms", Row(stage, 0, (), _value(terms)))
    for name, known in zip(_KNOWN, copy.known, strict=True):
        for ids in known:
            yield _line("known", Row(name, 0, (), _value(ids)))
    for number, digest in enumerate(copy.snapshots):
        yield _line("snapshot", Row(digest, number))
    for head in copy.heads:
        yield _line("head", Row("", head.number, (), _value(head)))
    for first, last in copy.gaps:
        yield _line("gap", Row(str(first), last))


_KNOWN: Final = ("requests", "ends")


def _state_row(copy: FoldCopy, scope: str, state: object) -> tuple[str, Row]:  # noqa: C901, PLR0911 - one case a kind
    number, first = copy.numbers.get(scope, 0), scope.partition(".")[0]
    match state:
        case Broken(before=before):
            whole = None if before is None else _state_row(copy, scope, before)
            return "broken", Row(scope, number, state.since, _value((whole, state.aside)))
        case Execution() if scope not in copy.events:
            return "rest", Row(scope, 0, (), _value(state.status.value))
        case Execution():
            return first, Row(scope, number, tuple(map(_stored, copy.events[scope])))
        case Lock():
            return first, Row(scope, number, (), _value(_lock_value(state)))
        case UniqueKey():
            holders = [msgspec.Raw(holder.encode()) for holder in state.holders]
            return first, Row(scope, number, (), _value(holders))
        case DeadLetter():
            return first, Row(scope, number, tuple(map(_stored, _letter_events(state))))
        case JobRuns() | DailyUse():
            return first, Row(scope, 0, (), _value(state))
        case Queue():
            return first, Row(scope, number, tuple(map(_stored, state.events)))
        case _ if first == "ledger":
            tail = copy.ledgers[scope]
            unique = {event.sequence: event for event in (*tail.changes, tail.due, tail.time) if event is not None}
            defined = ((c.message.job, c.sequence) for c in tail.changes if isinstance(c.message, Defined))
            gone = [key[1] for key in defined if key not in copy.definitions]
            lasting = tuple(_stored(unique[key]) for key in sorted(unique))
            return first, Row(scope, number, lasting, _value(gone) if gone else NOTHING)
        case Message():
            about = copy.announcements.get(scope, ())
            newest = Recorded(state, scope, number, _EPOCH)
            stored = tuple(_stored(event) for event in (*(event for _, event in about), newest))
            return first, Row(scope, number, stored, _value([name for name, _ in about]))
        case _:
            raise AssertionError(f"{scope} has the unknown state {state!r}")


_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00Z")


def _lock_value(state: Lock) -> _Lock:
    waiting = ((name, time, yields, number) for name, number, yields, time in state.waiting.by_id)
    return _Lock(state.holder, state.fence, tuple(sorted(waiting, key=itemgetter(3))))


def _letter_events(state: DeadLetter) -> list[Recorded[Any]]:
    events: list[Recorded[Any]] = [event for event in (state.kept, state.resolved) if event is not None]
    events += [Recorded(r.fact, subjects.subject_of(r.fact), r.sequence, r.at) for r in state.replays]
    return sorted(events, key=lambda recorded: recorded.sequence)


def _stored(recorded: Recorded[Any]) -> StoredEvent:
    body = msgspec.Raw(recorded.message.encode())
    return StoredEvent(recorded.sequence, recorded.subject, recorded.time, body)


def _value(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _line(kind: str, row: Row) -> Line:
    return kind, msgspec.json.encode(row)


class FoldBuilder:
    """Makes a fold of rows."""

    def __init__(self, key: bytes, stages: frozenset[str] = frozenset()) -> None:
        """`key`, `stages`: the key and the stages of the fold."""
        self.fold = Fold(key)
        self.fold.stages = stages
        self._known: dict[str, list[KnownIds]] = {name: [] for name in _KNOWN}
        self._snapshots: dict[int, str] = {}

    def add(self, kind: str, line: bytes) -> None:  # noqa: C901, PLR0912 - one case a kind
        """Take a row; they may come in any order."""
        row, fold = _decode_row(line), self.fold
        match kind:
            case "definition":
                self._put_definition(recorded_of(row.events[0]))
            case "rest":
                fold.states[row.key] = RESTS[Status(_read(row, str))]
            case "broken":
                self._add_broken(row)
            case "other" if bytes(row.value) == b"null":
                fold.numbers[row.key] = row.number
            case "other":
                fold.shard_maps[row.number] = _shards(bytes(row.value))
            case "standing":
                fold.standing[row.key] = {event.subject: recorded_of(event) for event in row.events}
                fold.numbers[row.key] = row.number
            case "head":
                fold.heads = (*fold.heads, _read(row, LogHead))
            case "position":
                stage, _, source = row.key.partition(" ")
                fold.positions[stage, source] = _read(row, Position)
            case "waiting":
                fold.waiting.evolve(_read(row, Waits), row.number)
            case "terms":
                fold.terms_by_stage[row.key] = _read(row, Terms)
            case "snapshot":
                self._snapshots[row.number] = row.key
            case "gap":
                fold.gaps = tuple(sorted((*fold.gaps, (int(row.key), row.number))))
            case "known":
                self._known[row.key].append(_read(row, KnownIds))
            case _:
                self._add_state(kind, row)

    def finish(self, at: datetime, needed_definitions: int) -> Fold:
        """Return the fold, as it was after a commit of a time (UTC)."""
        fold = self.fold
        fold.journal.keep({})
        for ids, name in zip(fold.departures.ids, _KNOWN, strict=True):
            ids.load(sorted(self._known[name], key=lambda known: known.at))
        fold.departures.needed_definitions = needed_definitions
        restore(fold)
        daily_quotas.restore(fold)
        fold.departures.restore(at)
        fold.snapshots = tuple(digest for _, digest in sorted(self._snapshots.items()))
        fold.shard_maps = dict(sorted(fold.shard_maps.items()))
        return fold

    def _add_broken(self, row: Row) -> None:
        """Apply the events of a broken key again: this version may read more events."""
        fold, (whole, aside) = self.fold, _read(row, tuple[tuple[str, msgspec.Raw] | None, tuple[int, ...]])
        if whole is not None:
            self.add(whole[0], bytes(whole[1]))
        fold.apply_again(row.key, Broken(fold.states.get(row.key), row.events, aside, ""))

    def _put_definition(self, event: Recorded[Message]) -> None:
        if isinstance(defined := event.message, Defined):
            recorded = Recorded(defined, event.subject, event.sequence, event.time)
            self.fold.definitions[defined.job, event.sequence] = recorded

    def _add_state(self, kind: str, row: Row) -> None:
        fold, scope = self.fold, row.key
        if row.number:
            fold.numbers[scope] = row.number
        if kind == "lock":
            fold.states[scope] = _lock(_read(row, _Lock))
            return
        if (derived := _DERIVED.get(kind)) is not None:
            fold.states[scope] = _read(row, derived)
            return
        if kind == "unique":
            fold.states[scope] = UniqueKey(tuple(_read(row, list[KeyHolder])))
            return
        events = [recorded_of(event) for event in row.events]
        fold.states[scope] = state = reduce(KINDS[kind].evolve, events, KINDS[kind].initial)
        if kind == "execution":
            fold.events[scope] = events
        elif kind == "ledger":
            fold.ledgers[scope] = tail = _tail(events, state.watermark)
            gone = _read(row, list[int] | None) or ()
            for change in tail.changes:
                if change.sequence not in gone:
                    self._put_definition(change)
        elif kind == "cron" and (names := _read(row, list[str])):
            fold.announcements[scope] = dict(zip(names, events, strict=False))


_DERIVED: Final[dict[str, type]] = {"runs": JobRuns, "use": DailyUse}
"""States that follow from events of other scopes, by kind."""


def _tail(events: Iterable[Recorded[Message]], watermark: datetime | None) -> LedgerTail:
    tail = LedgerTail()
    for event in events:
        match event.message:
            case DefinitionFact():
                tail = tail._replace(changes=(*tail.changes, event))
            case Due() as due:
                time = event if due.scheduled_time == watermark else tail.time
                tail = tail._replace(due=event, time=time)
            case Passed(until=until) if until == watermark:
                tail = tail._replace(time=event)
    return tail


def _shards(body: bytes) -> tuple[Shard, ...]:
    message = subjects.decode(subjects.subject_of(ShardsDefined()), body)
    return message.shards if isinstance(message, ShardsDefined) else ()


def _lock(value: _Lock) -> Lock:
    queue = LockQueue()
    for execution_id, scheduled_time, yields, number in value.waiting:
        queue = queue.add(Waiter(execution_id, scheduled_time, yields), number)
    return Lock(value.holder, value.fence, queue)


def recorded_of(event: StoredEvent) -> Recorded[Message]:
    """Return the event of a row."""
    message = subjects.decode(event.subject, bytes(event.body))
    return Recorded(message, event.subject, event.number, event.time)


def _read(row: Row, kind: Any) -> Any:  # noqa: ANN401 - of the type
    return msgspec.json.decode(bytes(row.value), type=kind)


_decode_row: Final = msgspec.json.Decoder(Row).decode
