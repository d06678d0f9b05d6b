"""The loop of the stages of one process on the log of commits.

wait      for inputs, for events of others, or for a deadline
decide    and cascade: an event goes to the stages of this process before it is stored, and nothing leaves the process before
append    one commit under the guard
stored    send the effects
refused   undo, fold what others stored, decide all of it again in half the batch, also inputs that gave nothing
"""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec

from .. import subjects, telemetry
from ..domain.commit import Commit, CommitEvent, Taken, Untaken
from ..domain.events import Message, PoisonMessage, Recorded
from ..domain.log_events import Began, Left, LogEvent, Trying, decode, encode, is_log_event
from ..ports import Clock
from ..ports.commit_log import StoredBody
from ..subjects import Stream
from .batch import Batch, Mark
from .causes import (
    DECISIONS,
    Agenda,
    Alarm,
    Cause,
    DeadlineCause,
    Effect,
    MessageCause,
    Notice,
    Proposal,
    routes_of,
)
from .commit_writer import Chain, CommitWriter
from .fold import EVENTS, Fold
from .fold_view import View
from .intake import Intake, is_crowded
from .items import MAX_STEPS, EndlessDecision
from .leadership import Leadership
from .poison import (
    MAX_CALL_BYTES,
    MAX_CALL_EVENTS,
    DeadlyDecision,
    DecisionTooLarge,
    end_of,
    place_of,
    poison_of,
)
from .report_lists import UnreadableInput
from .stage import BoundStage
from .stage_leases import StageLeases
from .standby import Standby
from .step import Events, Put, Send, Step, Then, refuse
from .turns import Turns
from .watcher import NobodyWatches, Watcher, show
from .write_turns import WriteTurns

MAX_INPUTS: Final = 512
"""Inputs of one commit."""
MAX_EVENTLESS: Final = 4_096
"""Decisions without an event after which their positions are stored."""
MAX_EVENTS: Final = 2_048
"""Events after which a commit ends; the decision that exceeds them is its last."""
MAX_EVENT_BYTES: Final = 524_288
"""Bytes of events after which a commit ends."""
MAX_ALL_EVENTS: Final = 4_000
MAX_ALL_BYTES: Final = 700_000
"""Events of a commit, and their bytes, beyond which its last decision goes into the next commit."""
EVENT_BYTES: Final = 80
"""Bytes of an event in a commit beside its subject, cause and body."""
FRESH_FOR_S: Final = 60.0
"""Seconds in which the fold is loaded again once at most."""
MAX_DECIDING_S: Final = 0.02
"""Seconds of deciding after which a commit ends."""
MAX_SLEEP_S: Final = 1.0
"""Seconds after which the time is looked at again, because a clock may step."""
RIDES_FOR: Final = timedelta(seconds=1)
"""The longest time for which positions that moved without an event wait for the next commit."""
TURNS: Final = 6
"""Turns of the event loop that parts of the process have to propose decisions on what is not stored yet."""
ASK_AGAIN: Final = timedelta(seconds=4)
"""The time after which the ends of the streams are asked for again, if they were not reached."""
LOOK_AGAIN: Final = timedelta(seconds=30)
"""The time after which a deadline that gave nothing is looked at again."""

_log = telemetry.get_logger("tocsin.engine")


class CommitLoop:
    """Decides for the stages of one process, and appends their commits."""

    def __init__(  # noqa: PLR0913 - the parts of a process
        self,
        stages: Sequence[BoundStage],
        fold: Fold,
        writer: CommitWriter,
        clock: Clock,
        *,
        name: str,
        on_effects: Callable[[Sequence[tuple[str, Effect]]], Awaitable[None]],
        watcher: Watcher | None = None,
        wake_at: Callable[[datetime, Callable[[], None]], Alarm] | None = None,
        folds: bool = True,
        leases: StageLeases | None = None,
        turns: WriteTurns | None = None,
        ends: Callable[[], Awaitable[dict[Stream, int]]] | None = None,
        reload: Callable[[], Awaitable[Fold]] | None = None,
        is_cut_after_each_call: bool = False,
    ) -> None:
        """`on_effects` takes what each stage sends, after the commit is stored.

        `watcher` takes each commit, own or another's, before its effects. `wake_at` calls back at a time (UTC); None: the loop looks at
        the time itself, which may step. Without `folds`, it only takes proposals. `leases`: those of its stages; None: it decides for all of its stages.
        `turns`: those of this process among the writers; None: there are no others.
        `reload` returns the fold of the log up to the chain's head, for decisions that fail; None: its own fold is as fresh as can be.
        `ends` returns the ends of the streams that are read before deadlines and triggers are decided, when a term begins.
        """
        self._wake_at = wake_at
        self._folds = folds
        self.fold = fold
        self._stages = stages
        self._writer = writer
        self._chain: Chain = writer.chain
        self._clock = clock
        self._name = name
        self._on_effects = on_effects
        self._watcher: Watcher = watcher or NobodyWatches()
        self._may_propose = False
        self._is_cut_after_each_call = is_cut_after_each_call
        self._batch = Batch()
        self._first = 1
        """The number of the batch's first event."""
        self._max_inputs = MAX_INPUTS
        self._events: deque[MessageCause] = deque()
        self._proposals: deque[Proposal] = deque()
        self._arrived: deque[StoredBody] = deque()
        self._changed = asyncio.Event()
        self._turns = Turns()
        self.intake = Intake(self.floor)
        self._ends = ends
        self._must_read = False
        """Whether a term began, and the ends of the streams at that time are not known yet."""
        self._ask_again_at = self._look_at_unknown = clock.now()
        self._postponed: list[tuple[datetime, int, MessageCause]] = []
        """A heap of calls that could not be decided yet, by the time to try again."""
        self._untaken: dict[tuple[str, str], Untaken] = {}
        """What a stage has seen of a source and not taken, by stage and source."""
        self._seen: dict[str, int] = {}
        """The newest place of each source."""
        self._reload = reload
        self._fresh_until = float("-inf")
        """The monotonic time up to which the fold counts as freshly loaded."""
        self._first_of_next: Cause | None = None
        """What is decided first in the next commit."""
        self._suspect: MessageCause | DeadlineCause | None = None
        """A decision that raised an error. It is made again, alone."""
        self.agenda = Agenda(stages)
        self._routes = routes_of(stages)
        self._write_turns = turns or WriteTurns(name, clock)
        self._leadership = Leadership(name, [stage.name for stage in stages], fold, clock, leases)
        self._leadership.call(self._changed.set)
        self.agenda.led = self._leadership.led
        self._is_blind = False
        """Whether nothing but proposals can be decided."""
        self._standby = Standby()

    @property
    def streams(self) -> frozenset[Stream]:
        """The streams of inputs that its stages take."""
        streams = {subscription.stream for stage in self._stages for subscription in stage.subscriptions}
        return frozenset(streams - DECISIONS)

    def floor(self, stream: Stream) -> int:
        """Return the sequence of a stream up to which all of its stages took the inputs."""
        readers = (stage for stage in self._stages if any(s.stream is stream for s in stage.subscriptions))
        return min((self.fold.position(stage.name, stream.value).floor for stage in readers), default=0)

    # --- what comes in -------------------------------------------------------------------------------------------------

    def offer(self, stream: Stream, recorded: Recorded[Message]) -> None:
        """Take the next input of a stream. Sequences between this and the one before do not exist."""
        self.intake.note(stream, recorded.sequence, len(recorded.message.encode()))
        self._arrive(stream.value, recorded, self._turns.add)
        self._changed.set()

    def wake(self) -> None:
        """Look again at what can be decided."""
        self._changed.set()

    def receive(self, bodies: Iterable[StoredBody]) -> None:
        """Take messages of the log, in their order; `run_once` folds them."""
        self._arrived += bodies
        self._changed.set()

    def fold_received(self) -> None:
        """Fold the commits among what was received."""
        while self._arrived:
            if (commit := self._chain.take(self._arrived.popleft())) is not None:
                self.apply(commit)

    def propose(self, by: str, events: Sequence[Message], *, expect: int) -> "asyncio.Future[tuple[int, ...]]":
        """Have events of one scope stored with the next commit; return their numbers.

        Raises (in the future):
            SequenceConflict: the scope has an event after the number `expect`.
        """
        proposal = Proposal(by, events, expect)
        self._proposals.append(proposal)
        self._changed.set()
        return proposal.stored

    def apply(self, commit: Commit) -> None:
        """Fold a stored commit: another process's, or one of an earlier run.

        What was decided and is not stored rests on less than the log: it is decided again.
        """
        self._undo_open()
        self._write_turns.seen(commit.writer)
        for stage, sources in commit.taken.items():
            for source, taken in sources.items():
                self.fold.take(stage, source, taken)
                self._standby.forget_taken(stage, source, self.fold.position(stage, source))
        decoded = list[Recorded[Message]]()
        for number, event in enumerate(commit.events, commit.first):
            if not self._folds:  # proposals need no states
                self.fold.note(event.subject, number)
                continue
            if is_log_event(event.subject):
                if (change := decode(event)) is not None:
                    self._evolve_terms(change, commit.writer, number, commit.at)
                continue
            message = subjects.decode(event.subject, bytes(event.body))
            decoded.append(Recorded(message, event.subject, number, commit.at))
            self._evolve(decoded[-1], self._turns.add)
        self.fold.journal.keep()
        self.intake.free()
        show(self._watcher, commit.first, commit.at, commit.events, decoded, is_own=False)

    def _undo_open(self) -> None:
        """Have everything decided again that is decided and not stored."""
        if self._batch.calls:
            batch, self._batch = self._batch, Batch()
            self._undo(batch)

    def _evolve_terms(self, event: LogEvent, writer: str, number: int, at: datetime) -> None:
        self.fold.evolve_terms(event, writer=writer, number=number, at=at)
        if isinstance(event, Left):
            self._leadership.take_left(event)

    def _evolve(self, recorded: Recorded[Message], add: Callable[[MessageCause], None]) -> None:
        self.agenda.note(self.fold, (self.fold.evolve(recorded),))
        self._arrive(EVENTS, recorded, add)

    def _arrive(self, source: str, recorded: Recorded[Message], add: Callable[[MessageCause], None]) -> None:
        place = recorded.sequence
        self._seen[source] = max(place, self._seen.get(source, 0))
        if (routes := self._routes.get(source)) is None:
            return
        for stage, subscription in routes.to(recorded.subject):
            if not self.fold.position(stage.name, source).has(place):
                call = MessageCause(stage, subscription, source, place, recorded)
                if stage.name in self.agenda.led:
                    add(call)
                    self._untaken_of(stage.name, source).add(place)
                else:
                    self._standby.add(call)

    def _untaken_of(self, stage: str, source: str) -> Untaken:
        key = stage, source
        if (untaken := self._untaken.get(key)) is None:
            untaken = self._untaken[key] = Untaken(self.fold.position(stage, source).floor)
        return untaken

    # --- who leads -----------------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        """Decide for the stages whose terms are this process's, and for no other."""
        led = self._leadership.led
        if led == self.agenda.led:
            return
        lost, gained = self.agenda.led - led, led - self.agenda.led
        self.agenda.led = led
        if lost:
            self._undo_open()
            waiting = [*self._events, *(call for _, _, call in self._postponed)]
            waiting += self._let_go(lambda held: held.by in lost)
            self._standby.put([*self._turns.remove(lost), *(call for call in waiting if call.by in lost)])
            self._events = deque(call for call in self._events if call.by in led)
            self._postponed = [entry for entry in self._postponed if entry[2].by in led]
            heapq.heapify(self._postponed)
            self._untaken = {key: untaken for key, untaken in self._untaken.items() if key[0] in led}
        for call in self._standby.take(gained):
            if not self.fold.position(*call.key).has(call.place):
                self._turns.add(call)
                self._untaken_of(*call.key).add(call.place)

    def _let_go(self, fits: Callable[[Cause], bool]) -> list[MessageCause]:
        """Keep what fits no longer for the next commit; return the messages among it."""
        gone = [held for held in (self._first_of_next, self._suspect) if held is not None and fits(held)]
        self._first_of_next = None if self._first_of_next in gone else self._first_of_next
        self._suspect = None if self._suspect in gone else self._suspect
        return [held for held in gone if isinstance(held, MessageCause)]

    async def leave(self) -> None:
        """Wait until the terms of this process are over, and nothing is decided any more but proposals."""
        await self._leadership.leave()

    # --- one commit ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Decide and store until cancelled."""
        while True:
            self._changed.clear()
            await self._write_turns.hold_back(self.fold_received)
            while await self.run_once():
                await asyncio.sleep(0)  # a log in memory does not wait
                await self._write_turns.hold_back(self.fold_received)
            await self._wait()

    async def _wait(self) -> None:
        """Wait for something to decide on."""
        rides_until = None if self._batch.since is None else self._batch.since + RIDES_FOR
        times = [self.agenda.next_at, rides_until, self._postponed[0][0] if self._postponed else None]
        if self.agenda.unknown:
            times.append(self._look_at_unknown)
        if self.intake.is_reading:
            times.append(self._ask_again_at)
        until = min((at for at in times if at is not None), default=None)
        now = self._leadership.now()
        if until is None or self._is_blind:
            await self._changed.wait()
        elif self._wake_at is not None:
            alarm = self._wake_at(self._clock.now() + (until - now), self._changed.set)
            await self._changed.wait()
            alarm.cancel()
        else:
            seconds = max((until - now).total_seconds(), 0.0)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, MAX_SLEEP_S)):
                    await self._changed.wait()

    async def run_once(self) -> bool:
        """Decide, and store one commit; False: there is nothing to store yet."""
        is_late = self.intake.is_reading and self._clock.now() >= self._ask_again_at  # the newest may be removed
        if self._ends is not None and (self._must_read or is_late):
            self.intake.read_to(await self._ends())
            self._must_read, self._ask_again_at = False, self._clock.now() + ASK_AGAIN
        time_of_log = await self._leadership.time()
        self.fold_received()
        self._is_blind = time_of_log is None
        now = max(time_of_log or self._clock.now(), self._chain.head.at)
        self._lead()
        if self._suspect is not None and not self._batch.events:
            await self._refresh()
        is_full = self._decide(now)
        if self._may_propose:
            await self._wait_for_proposals()
            is_full = self._decide(now)
        batch, taken = self._batch, self._taken()
        if taken and batch.since is None:
            batch.since = now
        may_wait = batch.since is None or now - batch.since < RIDES_FOR
        is_long = batch.inputs >= self._max_inputs or len(batch.calls) >= MAX_EVENTLESS
        if not batch.events and may_wait and not (taken and is_long):
            _settle(batch)
            batch.calls = [call for call in batch.calls if not isinstance(call, Proposal)]
            return is_full
        draft = self._chain.seal.write(self._chain.head, writer=self._name, at=now, taken=taken, events=batch.events)
        appended = await self._writer.append(draft)
        self._batch = Batch()
        if appended.sequence is None:
            self._undo(batch)
            await self._write_turns.refused()
        else:
            self._keep(taken)
            self._write_turns.stored()
            at = max(now, self._chain.head.at)
            show(self._watcher, self._first, at, batch.events, batch.recorded, is_own=True)
            _settle(batch)
            self._leadership.settle()
        for _, commit in appended.others:
            self.apply(commit)
        if appended.sequence is not None and batch.effects:
            await self._on_effects(batch.effects)
        return True

    async def _wait_for_proposals(self) -> None:
        """Let parts of the process decide on what is not stored yet, so that one commit has both."""
        self._may_propose = False
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if self._proposals:
                return

    def _keep(self, taken: dict[str, dict[str, Taken]]) -> None:
        for stage, sources in taken.items():
            for source, gain in sources.items():
                self.fold.take(stage, source, gain)
                self._untaken[stage, source].keep()
        self.fold.journal.keep()
        self.intake.free()
        self._max_inputs = min(MAX_INPUTS, 2 * self._max_inputs)

    def _undo(self, batch: Batch) -> None:
        """Forget what was decided since the last stored commit, and have all of it decided again."""
        self.agenda.note(self.fold, self.fold.journal.undo())
        newest = self._first - 1
        self._watcher.undone({subjects.guard_of(one.subject) or one.subject for one in batch.recorded}, newest)
        self._seen[EVENTS] = min(self._seen.get(EVENTS, 0), newest)
        self._events = deque(call for call in self._events if call.place <= newest)
        self._let_go(lambda h: isinstance(h, MessageCause) and h.source == EVENTS and h.place > newest)
        for call in reversed(batch.calls):
            if isinstance(call, Proposal):
                self._proposals.appendleft(call)
            elif isinstance(call, DeadlineCause):
                self.agenda.again(call)  # it may have been put off
        calls = [call for call in batch.calls if isinstance(call, MessageCause)]
        again = [call for call in calls if call.source != EVENTS or call.place <= newest]
        decided = {id(call) for call in batch.calls}
        self._postponed = [entry for entry in self._postponed if id(entry[2]) not in decided]
        heapq.heapify(self._postponed)
        self._events.extendleft(call for call in reversed(again) if call.source == EVENTS)
        self._turns.put_back(call for call in again if call.source != EVENTS)
        self._standby.forget_newer(newest)
        for call in batch.closed:
            self._untaken[call.key].reopen(call.place)
        for (_, source), untaken in self._untaken.items():
            untaken.undo(newest if source == EVENTS else None)
        self._max_inputs = max(1, self._max_inputs // 2)

    def _taken(self) -> dict[str, dict[str, Taken]]:
        """Return what each stage has taken since the last stored commit: all that it saw, but for what is open."""
        taken: dict[str, dict[str, Taken]] = {}
        for stage in self._stages:
            if stage.name not in self.agenda.led:
                continue
            for source, seen in self._seen.items():
                untaken = self._untaken_of(stage.name, source)
                if ranges := untaken.ranges(seen, self.fold.position(stage.name, source)):
                    taken.setdefault(stage.name, {})[source] = Taken(ranges)
        return taken

    # --- decisions -----------------------------------------------------------------------------------------------------

    def _decide(self, now: datetime) -> bool:
        """Decide until the batch is full; False: nothing waits any more."""
        started = time.perf_counter()
        self._first = self._chain.head.number + 1
        if changes := self._leadership.changes():
            self._undo_open()
            for change in changes:
                self._append_of_log(change, now)
                self._must_read = self._must_read or (self._ends is not None and isinstance(change, Began))
            return True
        batch = self._batch
        self._bring_forward(now)
        if self._suspect is not None and not batch.events and not self._is_blind:
            self._decide_alone(batch, self._suspect, now)
            return True
        is_reading = self._must_read or self.intake.is_reading
        due = partial(self.agenda.next_due, now)
        has_deaths = any(self.fold.terms(stage).deaths for stage in self.agenda.led)
        while not self._is_full(batch, started):
            if (following := self._next(due, is_reading=is_reading)) is None:
                return False
            if has_deaths and not self._may_be_decided(batch, following, now):
                break
            if not self._attempt(batch, following, now):
                break
            if self._is_cut_after_each_call and batch.events:
                break
        return True

    def _bring_forward(self, now: datetime) -> None:
        """Let wait in turns what waited for its time, and go first what holds a position back."""
        while self._postponed and self._postponed[0][0] <= now:
            self._turns.add(heapq.heappop(self._postponed)[2])
        if self.agenda.unknown and now >= self._look_at_unknown:
            self._look_at_unknown = now + LOOK_AGAIN
            self.agenda.note(self.fold, tuple(self.agenda.unknown))
        for key, position in self.fold.positions.items():
            if is_crowded(position) and key[0] in self.agenda.led:
                self._turns.bring_forward(key, MAX_INPUTS)

    def _is_full(self, batch: Batch, started: float) -> bool:
        return (
            batch.inputs >= self._max_inputs
            or len(batch.events) >= MAX_EVENTS
            or batch.size >= MAX_EVENT_BYTES
            or time.perf_counter() - started > MAX_DECIDING_S
        )

    def _next(self, due: Callable[[], DeadlineCause | None], *, is_reading: bool) -> Cause | None:
        """Return the next cause: own events come first, so that a cascade runs to its end, then proposals, then turns."""
        while True:
            cause: Cause | None
            if self._first_of_next is not None and not (
                self._is_blind and not isinstance(self._first_of_next, Proposal)
            ):
                cause, self._first_of_next = self._first_of_next, None
            elif self._events and not self._is_blind:
                cause = self._events.popleft()
            elif self._proposals:
                return self._proposals.popleft()
            else:
                cause = None if self._is_blind else self._turns.next(due, is_reading=is_reading)
            if cause is None or self._is_open(cause):
                return cause

    def _is_open(self, cause: Cause) -> bool:
        """Return whether a decision is still to be made."""
        if isinstance(cause, DeadlineCause):
            return self.agenda.is_current(cause)
        if isinstance(cause, MessageCause) and self.fold.position(*cause.key).has(cause.place):
            self._untaken[cause.key].close(cause.place)  # another process took it
            return False
        return True

    def _may_be_decided(self, batch: Batch, cause: Cause, now: datetime) -> bool:
        """Return whether a decision can be made now: no leader died of it, or the log names it first."""
        if isinstance(cause, Proposal):
            return True
        terms, place = self.fold.terms(cause.by), place_of(cause)
        if terms.is_poison(place):
            batch.calls.append(cause)
            self._end(batch, cause, DeadlyDecision("it killed each process that made it"), now)
            return False
        if not terms.is_careful(now) or (terms.open is not None and terms.open.place == place):
            return True
        self._first_of_next = cause
        if not batch.events:
            self._append_of_log(Trying(cause.by, place), now, cause)
        return False

    def _attempt(self, batch: Batch, cause: Cause, now: datetime) -> bool:
        """Decide on one cause; False: it failed, and is decided on alone after this commit."""
        mark, length = batch.mark(), len(self.fold.journal)
        batch.calls.append(cause)
        try:
            self._decide_on(batch, cause, now)
        except Exception as error:  # noqa: BLE001 - a defect of a decision stops no other
            self._take_back(batch, mark, length)
            if mark.events and isinstance(error, DecisionTooLarge):
                self._first_of_next = cause
            elif isinstance(cause, Proposal):
                cause.fail(error)
            else:
                _log.exception(
                    "decision failed; making it again", action="decision-failed", stage=cause.by, place=place_of(cause)
                )
                self._suspect = cause
            return False
        return True

    def _decide_alone(self, batch: Batch, cause: MessageCause | DeadlineCause, now: datetime) -> None:
        """Make a decision again that failed; if it fails again, the key of its cause gets its end."""
        self._suspect = None
        if not self._is_open(cause):
            return
        mark, length = batch.mark(), len(self.fold.journal)
        batch.calls.append(cause)
        try:
            self._decide_on(batch, cause, now)
        except Exception as error:  # noqa: BLE001 - as in `_attempt`
            self._take_back(batch, mark, length)
            batch.calls.append(cause)
            if isinstance(cause, MessageCause):
                self._end(batch, cause, error, now)
            else:
                _log.error(
                    "deadline put off",
                    action="deadline-failed",
                    stage=cause.by,
                    place=place_of(cause),
                    error=str(error),
                )
                self.agenda.look_again(cause, now + LOOK_AGAIN)

    def _end(self, batch: Batch, cause: MessageCause | DeadlineCause, error: Exception, now: datetime) -> None:
        """End the key of a decision that nobody makes any more."""
        end = end_of(self.fold, cause, error)
        if not end:
            self.agenda.look_again(cause, now + LOOK_AGAIN)  # type: ignore[arg-type] # a message has an end
            return
        poison = poison_of(cause, error)
        _log.error("decision is poison", action="poison", **msgspec.structs.asdict(poison))
        self._append_of_log(poison, now, cause)
        for event in end:
            self._append(batch, cause, event, now)
        if isinstance(cause, MessageCause):
            self._close(batch, cause)

    def _take_back(self, batch: Batch, mark: Mark, length: int) -> None:
        """Forget what a decision that failed has changed."""
        scopes = {subjects.guard_of(one.subject) or one.subject for one in batch.recorded[mark.recorded :]}
        self.agenda.note(self.fold, self.fold.journal.undo(length))
        batch.cut(mark)
        newest = self._first + len(batch.events) - 1
        self._seen[EVENTS] = min(self._seen.get(EVENTS, 0), newest)
        while self._events and self._events[-1].place > newest:
            self._events.pop()
        self._standby.forget_newer(newest)
        for (_, source), untaken in self._untaken.items():
            if source == EVENTS:
                untaken.forget(newest)
        if scopes:
            self._watcher.undone(scopes, newest)

    async def _refresh(self) -> None:
        """Load the fold again, at most once a minute."""
        if self._reload is None or self._clock.monotonic() < self._fresh_until:
            return
        differing = self.fold.replace(await self._reload())
        self._fresh_until = self._clock.monotonic() + FRESH_FOR_S
        if differing:
            _log.error("the fold was wrong, and is loaded again", action="wrong-fold", scopes=sorted(differing)[:20])
            self.agenda.note(self.fold, differing)

    def _decide_on(self, batch: Batch, cause: Cause, now: datetime) -> None:
        """Decide on one cause to its end."""
        if isinstance(cause, Proposal):
            self._decide_proposal(batch, cause, now)
            return
        if isinstance(cause, MessageCause) and isinstance(unreadable := cause.recorded.message, UnreadableInput):
            error = unreadable.error
            is_proven = cause.subscription.is_proven
            if is_proven is None or is_proven(cause.recorded.subject):
                step = refuse(f"unreadable: {error}", code=error.code)
                self._append(batch, cause, _dead_letter(cause, step), now)
            self._close(batch, cause)
            return
        before, size = len(batch.events), batch.size
        step = self._call(batch, cause, now)
        if len(batch.events) > MAX_ALL_EVENTS or batch.size > MAX_ALL_BYTES:
            raise DecisionTooLarge.of(len(batch.events) - before, batch.size - size)
        if isinstance(cause, DeadlineCause):
            if len(batch.events) == before:
                self.agenda.look_again(cause, now + LOOK_AGAIN)
            return
        if step.then is Then.WAIT:
            heapq.heappush(self._postponed, (now + timedelta(seconds=step.delay), len(batch.calls), cause))
            return
        if step.then is Then.REFUSE:
            self._append(batch, cause, _dead_letter(cause, step), now)
        self._close(batch, cause)
        batch.inputs += cause.source != EVENTS

    def _call(self, batch: Batch, cause: MessageCause | DeadlineCause, now: datetime) -> Step:
        """Call `decide` until it has no more steps, and return the last."""
        view = View(self.fold, now)
        for _ in range(MAX_STEPS):
            events, bytes_before = len(batch.events), batch.size
            if isinstance(cause, MessageCause):
                step = cause.subscription.decide(cause.recorded, view, now)
            else:
                step = cause.deadlines.decide(cause.scope, cause.deadline, view, now)
            self._add(batch, cause, step, view, now)
            if len(batch.events) - events > MAX_CALL_EVENTS or batch.size - bytes_before > MAX_CALL_BYTES:
                raise DecisionTooLarge.of(len(batch.events) - events, batch.size - bytes_before)
            if step.then is not Then.AGAIN:
                return step
        raise EndlessDecision(f"the decision on {cause.cause} has {MAX_STEPS} steps")

    def _decide_proposal(self, batch: Batch, proposal: Proposal, now: datetime) -> None:
        proposal.numbers = None
        if self.fold.numbers.get(subjects.scope_of(proposal.events[0]), 0) == proposal.expect:
            first = self._first + len(batch.events)
            proposal.numbers = tuple(range(first, first + len(proposal.events)))
            mark = batch.mark()
            for event in proposal.events:
                self._append(batch, proposal, event, now)
            if len(batch.events) > MAX_ALL_EVENTS or batch.size > MAX_ALL_BYTES:
                raise DecisionTooLarge.of(len(batch.events) - mark.events, batch.size - mark.size)

    def _close(self, batch: Batch, call: MessageCause) -> None:
        self._untaken[call.key].close(call.place)
        batch.closed.append(call)

    def _add(self, batch: Batch, cause: MessageCause | DeadlineCause, step: Step, view: View, now: datetime) -> None:
        for change in step.changes:
            match change:
                case Events(ref, events):
                    for event in events:
                        self._append(batch, cause, event, now)
                    view.changed.add(ref)
                case Send(_, _, message_id):
                    view.sent.add(message_id)
                    batch.effects.append((cause.by, change))
                case Put():
                    batch.effects.append((cause.by, change))
                case _:
                    pass  # a timer: the deadlines of a state come from its events
        take = cause.subscription.on_signal if isinstance(cause, MessageCause) else None
        batch.effects += ((cause.by, Notice(take, signal)) for signal in step.signals)

    def _append_of_log(self, event: LogEvent, now: datetime, cause: Cause | None = None) -> None:
        """Append an event of the log itself; without a cause, it rests on everything before it."""
        batch = self._batch
        number = self._first + len(batch.events)
        by, of = ("", f"0-{number - 1}") if cause is None else (cause.by, cause.cause)
        batch.events.append(encode(event, by=by, cause=of))
        self._evolve_terms(event, self._name, number, now)

    def _append(self, batch: Batch, cause: Cause, message: Message, now: datetime) -> None:
        recorded = Recorded(message, subjects.subject_of(message), self._first + len(batch.events), now)
        body = message.encode()
        batch.events.append(CommitEvent(recorded.subject, cause.by, cause.cause, msgspec.Raw(body)))
        batch.recorded.append(recorded)
        batch.size += len(body) + len(recorded.subject) + len(cause.cause) + EVENT_BYTES
        self._evolve(recorded, self._events.append)
        self._may_propose |= self._watcher.decided(batch.events[-1], recorded)


def _settle(batch: Batch) -> None:
    for call in batch.calls:
        if isinstance(call, Proposal):
            call.settle()


def _dead_letter(call: MessageCause, step: Step) -> PoisonMessage:
    recorded = call.recorded
    return PoisonMessage.of(
        step.job or subjects.job_of(recorded.subject),
        call.subscription.durable,
        recorded.subject,
        recorded.sequence,
        recorded.message.encode(),
        step.reason,
        code=step.code,
        partition=subjects.partition(recorded.subject),
    ).identified(recorded.message_id)
