"""Departures: states that no later decision needs leave the fold when a commit is stored.

An execution leaves when every stage has taken its end. A state that a later decision reads keeps some parts of executions that are over:

    lock            executions in its queue, and its holder while others wait; a lock that is free leaves with its last holder
    unique key      the ends of its holders, for the time in which they may count, and their replays
    dead letter     the failed execution, for a replay that adopts its steps; for `KEPT_FOR` after the newest event of the letter. The letter
                    itself stays until it is resolved, because it may be replayed at any time
    fan-out         its one event, until the executions on all shards are over
    agent           for `KEPT_FOR` after it was forgotten
    request id      a hash (`request_ids`): the same request again, or a cancellation, finds that the execution is over

All departures follow from the events, the positions and the times of the commits, so every process forgets the same at the same number. An
execution that another state needs keeps the fewest events that make its beginning, its results and its end; it is looked at again when that
state changes.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .. import subjects
from ..domain import execution
from ..domain.dead_letter import DeadLetter
from ..domain.events import (
    Admitted,
    Advanced,
    AgentForgotten,
    CronAnswer,
    DeadLettered,
    Dispatched,
    FannedOut,
    Message,
    Planned,
    Recorded,
    Skipped,
    Terminal,
)
from ..domain.execution import Execution, Status, Step
from ..domain.fan_out import execution_ids
from ..domain.ids import KEYED, time_of
from ..domain.ledger import Ledger
from ..domain.lock import Lock
from ..domain.uniqueness import UniqueKey
from .broken_keys import Broken
from .request_ids import DEDUP_WINDOW, RequestIds

if TYPE_CHECKING:
    from .fold import Fold

KEPT_FOR: Final = timedelta(hours=24)
"""How long a resolved dead letter and a unique key stay after their newest event, and longer if anything open needs them."""
JUST_ENDED: Final = timedelta(seconds=60)
"""How long the end of an execution is known that no request with an id began.

A cancellation may come so much later than the end. After it, the time in the id says that the execution is over.
"""
MAX_COME: Final = timedelta(seconds=30)
"""The time in an id, before the time of a cancellation, that makes the id too old.

No execution with such an id can follow any more.
"""
SWEEP_FROM: Final = 1_024
"""Definitions that may be too many before all are looked at.

From 8,192 needed definitions on, it is an eighth of them.
"""
RESTS: Final[dict[Status, Execution]] = {
    status: Execution(status, steps={"": Step()}) for status in Status if status is not Status.UNKNOWN
}
"""The part of an execution that is over which a unique key needs."""
LEFT: Final = RESTS[Status.COMPLETED]
"""The state of an execution that has left: it is over."""
REQUESTED: Final = frozenset({"manual", "api", "event", "backfill"})
"""The triggers of executions that a request began."""


class Departures:
    """The search for states that leave a fold."""

    def __init__(self, fold: "Fold", key: bytes) -> None:
        self._fold = fold
        self._requests = RequestIds(key, DEDUP_WINDOW)
        self._ends = RequestIds(key, JUST_ENDED)
        self._at = datetime.min.replace(tzinfo=UTC)
        self._floor = 0
        """The number up to which every stage has taken all events, at the last commit."""
        self._ended: list[tuple[int, str]] = []
        """A heap of scopes that may leave once all stages have taken the events up to a number."""
        self._noted = 0
        """The number up to which announcements are in it."""
        self._due: list[tuple[datetime, str]] = []
        """A heap of scopes that may leave from a time on."""
        self._timed: set[str] = set()
        """The scopes in it."""
        self._blocked: dict[str, dict[str, None]] = {}
        """The scopes that may leave when another scope changes, by that scope."""
        self._holders: dict[str, tuple[str, ...]] = {}
        """The executions of a unique key, by its scope."""
        self._key_of: dict[str, str] = {}
        self.partial: set[str] = set()
        """Executions that are in the fold without some of their events."""
        self.on_left: Callable[[str, list[Recorded[Message]]], None] = lambda *_: None
        """Takes all events of each execution that all stages have taken to its end."""
        self.needed_definitions = 0
        """The number of definitions that were needed when all were looked at."""

    @property
    def ids(self) -> tuple[RequestIds, RequestIds]:
        """The ids of requests, and of executions that ended just now."""
        return self._requests, self._ends

    def knows(self, scope: str) -> bool:
        """Return whether an execution that is not in the fold has left it."""
        hashed = self._requests.hash_of(scope)  # both have the same key
        return self._requests.has(hashed) or self._ends.has(hashed)

    def cannot_come(self, scope: str, asked_at: datetime) -> bool:
        """Return whether no execution of a scope can begin any more.

        The times (UTC) in the scope's id and of a request decide this.
        """
        at = time_of(scope.split(".")[2])
        return at is not None and at != KEYED and at < asked_at - MAX_COME

    def settle(self, changed: Sequence[str], at: datetime) -> None:
        """Remove the states that no later decision needs, after a commit that changed some scopes.

        `at`: the time of the commit (UTC).
        """
        self._at, self._floor = max(self._at, at), self._fold.floor
        for scope in changed:
            self._note(scope)
            if scope in self._blocked:
                self._release(scope)
        self._noted = max((self._fold.numbers.get(scope, 0) for scope in changed), default=self._noted)
        self._look_at_taken()
        self._look_at_due()
        for ids in self.ids:
            ids.expire(self._at)
        definitions = len(self._fold.definitions)
        if definitions - self.needed_definitions > max(SWEEP_FROM, self.needed_definitions // 8):
            self._sweep()

    def belong_to(self, fold: "Fold", on_left: Callable[[str, list[Recorded[Message]]], None]) -> None:
        """Go on for a fold that took the content of the former one."""
        self._fold = fold
        self.on_left = on_left

    def restore(self, at: datetime) -> None:
        """Look at all scopes of a loaded fold, at its newest commit's time (UTC)."""
        self._at, self._floor = at, self._fold.floor
        for scope in (*self._fold.states, *self._fold.standing):
            self._note(scope)
        self._noted = max(self._fold.numbers.values(), default=0)
        self._look_at_taken()

    def _note(self, scope: str) -> None:
        state = self._fold.states.get(scope)
        match state:
            case Execution():
                if state.is_over:
                    self._after_number(scope)
            case UniqueKey():
                self._note_key(scope, state)
            case DeadLetter():
                self._note_letter(scope, state)
            case _ if scope.startswith("cron.") and not scope.startswith("cron.triggered."):
                for recorded in reversed(self._fold.announcements.get(scope, {}).values()):
                    if recorded.sequence <= self._noted:
                        break
                    heapq.heappush(self._ended, (recorded.sequence, scope))
            case _ if scope.startswith("shards."):
                self._drop_shard_maps()
            case _ if (forgotten_at := self._forgotten_at(scope)) is not None:
                self._when_due(scope, forgotten_at)

    def _after_number(self, scope: str) -> None:
        heapq.heappush(self._ended, (self._fold.numbers.get(scope, 0), scope))

    def _note_key(self, scope: str, state: UniqueKey) -> None:
        job = scope.split(".")[1]
        holders = tuple(f"execution.{job}.{holder.execution_id}.>" for holder in state.holders)
        for gone in set(self._holders.get(scope, ())).difference(holders):
            self._key_of.pop(gone, None)
        self._holders[scope] = holders
        self._key_of.update(dict.fromkeys(holders, scope))
        self._when_due(scope, _newest(state))

    def _note_letter(self, scope: str, state: DeadLetter) -> None:
        kept = state.kept
        if kept is not None and isinstance(kept.message, DeadLettered) and kept.message.attempts:
            # A replay needs the input alone; the letter is in the log.
            slim = msgspec.structs.replace(kept.message, attempts=(), last_error=None)
            self._fold.states[scope] = DeadLetter(_with(kept, slim), state.replays, state.resolved)
        self._when_due(scope, _newest(state))

    def _forgotten_at(self, scope: str) -> datetime | None:
        """Return the time (UTC) of the newest event of an agent that is forgotten.

        None: the agent is not forgotten.
        """
        newest = next(reversed(self._fold.standing.get(scope, {}).values()), None)
        return newest.time if newest is not None and isinstance(newest.message, AgentForgotten) else None

    def _when_due(self, scope: str, newest: datetime) -> None:
        if scope not in self._timed:  # it has one entry, however often it changes
            self._timed.add(scope)
            heapq.heappush(self._due, (newest + KEPT_FOR, scope))

    def _look_at_taken(self) -> None:
        """Look at the states that may leave now, in the order of their last events.

        All stages have taken the events up to the floor.
        """
        while self._ended and self._ended[0][0] <= self._floor:
            number, scope = heapq.heappop(self._ended)
            if number == self._fold.numbers.get(scope, 0) or scope.startswith(
                "cron."
            ):  # else a later event has an entry
                self._look_at(scope)

    def _look_at_due(self) -> None:
        while self._due and self._due[0][0] <= self._at:
            scope = heapq.heappop(self._due)[1]
            self._timed.discard(scope)
            state = self._fold.states.get(scope)
            newest = _newest(state) if isinstance(state, UniqueKey | DeadLetter) else self._forgotten_at(scope)
            if newest is not None and newest + KEPT_FOR > self._at:
                self._when_due(scope, newest)
            elif isinstance(state, DeadLetter) and state.resolved is None:
                self._release(scope)
            else:
                self._look_at(scope)

    def _drop_shard_maps(self) -> None:
        maps = self._fold.shard_maps
        for version, following in zip(list(maps)[1:], list(maps)[2:], strict=False):
            if following <= self._floor:
                del maps[version]

    def _release(self, scope: str) -> None:
        """Look again at the executions that a scope held back."""
        if scope in self._blocked:
            for blocked in sorted(self._blocked.pop(scope)):  # in each process in the same order
                self._look_at(blocked)

    def _look_at(self, scope: str) -> None:
        state = self._fold.states.get(scope)
        match state:
            case Execution(is_over=True):
                if self._fold.numbers.get(scope, 0) <= self._floor:  # else a later event has it looked at again
                    self._look_at_execution(scope, state)
            case UniqueKey() if _newest(state) + KEPT_FOR <= self._at:
                self._leave_unless(self._open(self._holders[scope]), scope)
            case DeadLetter(resolved=resolved) if resolved is not None and _newest(state) + KEPT_FOR <= self._at:
                job = scope.split(".")[1]
                replays = (f"execution.{job}.{replay.execution_id}.>" for replay in state.replays)
                if self._fold.numbers.get(scope, 0) > self._floor:
                    self._after_number(scope)
                    return
                self._leave_unless(
                    self._open(replays) or self._key_around(scope.replace("dead-letter", "execution", 1)), scope
                )
            case _ if scope.startswith("cron."):
                self._look_at_announcements(scope)
            case _ if self._forgotten_at(scope) is not None:
                self._drop(scope)

    def _leave_unless(self, blocker: str | None, scope: str) -> None:
        if blocker is not None:
            self._blocked.setdefault(blocker, {})[scope] = None
            return
        self._drop(scope)
        for holder in self._holders.pop(scope, ()):
            self._key_of.pop(holder, None)
        self._release(scope)

    def _drop(self, scope: str) -> None:
        fold = self._fold
        self.partial.discard(scope)
        tables: tuple[dict[str, Any], ...] = fold.states, fold.numbers, fold.events, fold.announcements, fold.standing
        for table in tables:
            table.pop(scope, None)

    def _look_at_execution(self, scope: str, state: Execution) -> None:
        fold = self._fold
        if scope not in self.partial and scope in fold.events:
            self.on_left(scope, fold.events[scope])
        blocker = self._blocker(scope, state)
        if blocker is None:
            self._forget(scope, state)
            self._drop(scope)
        else:
            self._blocked.setdefault(blocker, {})[scope] = None
            if blocker == self._key_of.get(scope):
                self._forget(scope, state)
                self._drop(scope)
                fold.states[scope] = RESTS[state.status]
            else:
                events = fold.events[scope] = [one for one in fold.events[scope] if _is_lasting(one.message)]
                fold.states[scope] = execution.fold(events)
                self.partial.add(scope)
        self._release(scope)

    def _forget(self, scope: str, state: Execution) -> None:
        """Keep the id of an execution alone, and end the states that only it needs."""
        if state is RESTS.get(state.status):
            return
        fold, (_, job, execution_id, _) = self._fold, scope.split(".")
        asked: Any = state.requested or (None if state.decided is None else state.decided.message)
        if state.requested is not None:
            lock = subjects.lock(state.requested.job, state.requested.plan.shard)
            held = fold.states.get(lock)
            if isinstance(held, Lock) and held.holder == execution_id:
                self._drop(lock)
        if (announced := fold.announcements.get(f"cron.triggered.{job}")) is not None:
            announced.pop(execution_id, None)
            if not announced:
                del fold.announcements[f"cron.triggered.{job}"]
        is_part = state.requested is not None and state.requested.plan.occurrence is not None
        # The part of a fan-out has no request of its own; a time in its id says that it is over, unless the id has none.
        is_part = is_part and time_of(execution_id) != KEYED
        if asked is not None and asked.trigger in REQUESTED and not is_part:
            by = getattr(asked, "by", None)
            self._requests.add("" if by is None else by.identity, scope, self._at)
        else:
            self._ends.add("", scope, self._at)

    def _blocker(self, scope: str, state: Execution) -> str | None:
        """Return the scope of a state that needs an execution that is over.

        None: it may leave.
        """
        _, job, execution_id, _ = scope.split(".")
        if state.decided is not None and isinstance(fanned := state.decided.message, FannedOut):
            return self._open(f"execution.{job}.{part}.>" for part in execution_ids(fanned).values())
        letter = f"dead-letter.{job}.{execution_id}.>"
        kept = self._fold.states.get(letter)
        if state.status is Status.FAILED and isinstance(kept, DeadLetter) and _newest(kept) + KEPT_FOR > self._at:
            return letter
        if state.requested is not None:
            lock = subjects.lock(state.requested.job, state.requested.plan.shard)
            held = self._fold.states.get(lock)
            if isinstance(held, Lock) and (
                held.has_waiter(execution_id) or (held.holder == execution_id and len(held.waiting))
            ):
                return lock
        return self._key_around(scope)

    def _key_around(self, scope: str) -> str | None:
        """Return the unique key held by an execution, or by the execution that it replays."""
        while (key := self._key_of.get(scope)) is None:
            state = self._fold.states.get(scope)
            if not isinstance(state, Execution) or state.requested is None or state.requested.replay_of is None:
                return None
            scope = f"execution.{scope.split('.')[1]}.{state.requested.replay_of}.>"
        return key

    def _open(self, scopes: Iterable[str]) -> str | None:
        """Return the first of some executions that is in the fold and not over.

        None: all are over or gone.
        """
        states = self._fold.states
        return next(
            (scope for scope in scopes if (state := states.get(scope)) is not None and not _is_over(state)), None
        )

    def _look_at_announcements(self, subject: str) -> None:
        """Drop public events of a subject that no stage can decide on any more.

        Each stage has taken the events before them.
        """
        fold = self._fold
        announced = fold.announcements.get(subject, {})
        newest = fold.states.get(subject)
        if isinstance(newest, CronAnswer) and newest.data.job_id is not None:
            answered = self._open((f"execution.{subject.split('.')[2]}.{newest.data.job_id}.>",))
            if answered is not None:  # it may be decided on again
                self._blocked.setdefault(answered, {})[subject] = None
                return
        for about in [about for about, recorded in announced.items() if recorded.sequence <= self._floor]:
            del announced[about]
        if not announced:
            self._drop(subject)

    def _sweep(self) -> None:
        """Drop the definitions that no state and no event to decide on needs."""
        definitions, needed = self._fold.definitions, set(self._definitions())
        for scope, tail in self._fold.ledgers.items():
            if len(tail.changes) > 1:
                job = subjects.job_of(scope)
                needed.update((job, number) for number in tail.in_force_since(self._floor))
        for name in [name for name in definitions if name not in needed]:
            del definitions[name]
        self.needed_definitions = len(definitions)

    def _definitions(self) -> Iterator[tuple[str, int]]:
        for state in self._fold.states.values():
            match state.before if type(state) is Broken else state:
                case Ledger():
                    yield from ((state.job, number) for number in state.definitions)
                case Execution(requested=asked) if asked is not None:
                    yield asked.job, asked.plan.definition
                case Execution(decided=decided) if decided is not None and isinstance(decided.message, FannedOut):
                    yield decided.message.job, decided.message.definition
                case DeadLetter(kept=kept) if kept is not None and isinstance(kept.message, DeadLettered):
                    yield kept.message.job, kept.message.definition


def _is_lasting(message: Message) -> bool:
    """Return whether an event of an execution that is over is needed.

    The event is its beginning, a result, or its end.
    """
    if isinstance(message, Dispatched):
        return message.admits is not None
    return isinstance(message, Planned | Admitted | Skipped | FannedOut | Advanced | Terminal)


def _is_over(state: object) -> bool:
    return isinstance(state, Execution) and state.is_over


def _newest(state: UniqueKey | DeadLetter) -> datetime:
    """Return the time (UTC) of the newest request or event of a state."""
    if isinstance(state, UniqueKey):
        times = [holder.enqueued_at for holder in state.holders]
    else:
        recorded = [recorded.time for recorded in (state.kept, state.resolved) if recorded is not None]
        times = [*recorded, *(replay.at for replay in state.replays)]
    return max(times, default=datetime.min.replace(tzinfo=UTC) + KEPT_FOR)


def _with(recorded: Any, message: Any) -> Any:  # noqa: ANN401 - of the same type
    return type(recorded)(message, recorded.subject, recorded.sequence, recorded.time, recorded.message_id)
