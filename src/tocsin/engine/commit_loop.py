"""The loop of the stages of one process on the log of commits.

wait      for inputs, for events of others, or for a deadline.
decide    and cascade. An event goes to the stages of this process before it is stored, and nothing leaves the process before.
append    one commit under the guard.
stored    send the effects.
refused   undo, fold what others stored, decide all of it again in half the batch, also inputs that gave nothing.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, Protocol

from .. import subjects, telemetry
from ..domain.commit import FORMAT, Commit, LogHead, Taken
from ..domain.events import Message, Recorded
from ..domain.log_events import Began, LogEvent, Waits, decode, is_log_event
from ..ports import Clock
from ..ports.commit_log import StoredBody
from ..subjects import DecodeError, Stream
from .asked import Asked
from .batch import Batch
from .broken_keys import StoredEvent
from .causes import DECISIONS, Agenda, Alarm, Effect, Note, OfPart, Proposal
from .change_requests import REGISTRAR
from .clock_guard import ClockGuard
from .commit_writer import Chain, CommitWriter
from .decider import LOOK_AGAIN, Decider
from .fold import EVENTS, Fold
from .fold_places import FoldPlaces
from .fresh_fold import apply
from .intake import Intake
from .leadership import Leadership
from .pending import Pending
from .snapshots import FoldPlace, Loaded
from .stage import BoundStage
from .stage_leases import StageLeases
from .step import Step
from .watcher import NobodyWatches, Shown, Watcher
from .write_turns import WriteTurns

MAX_INPUTS: Final = 512
"""Inputs of one commit."""
MAX_EVENTLESS: Final = 4_096
"""Decisions without an event after which their positions are stored."""
MAX_EVENTS: Final = 2_048
"""Events after which a commit ends; the decision that exceeds them is its last."""
MAX_EVENT_BYTES: Final = 524_288
"""Bytes of events after which a commit ends."""
FRESH_FOR_S: Final = 60.0
"""Seconds in which the fold is loaded again once at most."""
MAX_DECIDING_S: Final = 0.02
"""Seconds of deciding after which a commit ends."""
MAX_SLEEP_S: Final = 1.0
"""Seconds after which the time is looked at again, because a clock may step."""
RIDES_FOR: Final = timedelta(seconds=1)
"""The longest time for which positions that moved without an event wait for the next commit."""
TURNS: Final = 6
"""Turns of the event loop in which parts propose decisions before the commit is stored."""
LATE: Final = timedelta(seconds=3)
"""How long a deadline may be over until it is late."""
ASK_AGAIN: Final = timedelta(seconds=4)
"""The time after which the ends of the streams are requested again, if they were not reached."""

_log = telemetry.get_logger("tocsin.engine")


class CommitLoop:
    """Decides for the stages of one process, and appends their commits.

    `on_effects` takes the effects of each stage, after the commit is stored.

    `watcher` takes each commit, own or another's, before its effects. `wake_at` calls back at a time (UTC); None: the loop looks
    at the time itself, which may step. `leases`: the leases of its stages; None: it decides for all stages. `turns`: the turns
    of this process among the writers; None: this process is the only writer. `ends` returns the ends of the streams that are
    read before deadlines and triggers are decided, when a term begins. `reload` returns the fold of the log up to the chain's
    head, for decisions that fail; None: its own is as fresh as can be. `steady` returns the seconds that limit the deciding for
    a commit. `snapshot`: the snapshot of the fold; the chain begins at its start. `newest_format`: the newest format that all
    readers know. `log_clock`: as in `Leadership`.
    """

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
        leases: StageLeases | None = None,
        turns: WriteTurns | None = None,
        ends: Callable[[], Awaitable[dict[Stream, int]]] | None = None,
        reload: Callable[[], Awaitable[Fold | None]] | None = None,
        steady: Callable[[], float] = time.perf_counter,
        snapshot: Loaded | None = None,
        newest_format: Callable[[], int] = lambda: FORMAT,
        log_clock: ClockGuard | None = None,
    ) -> None:
        self._newest_format = newest_format
        self._wake_at = wake_at
        self.fold = fold
        fold.stages = frozenset(stage.name for stage in stages)
        self._stages = stages
        self.writer = writer
        self._chain: Chain = writer.chain
        self._clock = clock
        self._name = name
        self._on_effects = on_effects
        self._watcher: Watcher = watcher or NobodyWatches()
        self._steady = steady
        self._max_inputs = MAX_INPUTS
        self._arrived: deque[StoredBody] = deque()
        self._changed = asyncio.Event()
        self.agenda = Agenda(stages, fold)
        self.pending = Pending(stages, fold, self.agenda)
        self._decider = Decider(fold, self.agenda, self.pending, self._watcher, name)
        self.intake = Intake(self.floor, self.streams)
        self._ends = ends
        self._must_read = False
        """Whether a term began, and the ends of the streams at that time are not known yet."""
        self._ask_again_at = self._look_at_unknown = clock.now()
        self._reload = reload
        self._fresh_until = float("-inf")
        """The monotonic time up to which the fold counts as freshly loaded."""
        self._write_turns = turns or WriteTurns(name, clock)
        self._leases = leases
        self._leadership = Leadership(
            name, [stage.name for stage in stages], fold, clock, leases, self._changed.set, log_clock
        )
        self.agenda.led = self._leadership.led
        self._begin_reading(self.agenda.led)
        self._is_blind = False
        """Whether only proposals can be decided."""
        self.places = FoldPlaces(fold, writer.chain, snapshot)
        self.pending.look()

    @property
    def streams(self) -> frozenset[Stream]:
        """The streams of inputs that its stages take, or wait for."""
        streams = {subscription.stream for stage in self._stages for subscription in stage.subscriptions}
        return frozenset((streams | {Stream.REQUESTS}) - DECISIONS if self._stages else ())

    def _begin_reading(self, led: frozenset[str]) -> None:
        """Read the streams that led stages take, and the changes that these wait for."""
        for stage in (stage for stage in self._stages if stage.name in led):
            for stream in sorted(self.streams & {Stream.REQUESTS, *(one.stream for one in stage.subscriptions)}):
                self.intake.begun[stream].set()

    def floor(self, stream: Stream) -> int:
        """Return the sequence of a stream up to which its stages took the inputs."""
        readers = [stage.name for stage in self._stages if any(s.stream is stream for s in stage.subscriptions)]
        return min(self.fold.position(stage, stream.value).floor for stage in readers or [REGISTRAR])

    def offer(self, stream: Stream, recorded: Recorded[Message]) -> None:
        """Take the next input of a stream.

        The stream has no sequences between this input and the input before.
        """
        self.pending.arrive(stream.value, recorded)
        if stream is Stream.REQUESTS and subjects.is_change(recorded.subject):
            self.pending.heed(recorded, self._leadership.now())
        self._changed.set()

    def wake(self) -> None:
        """Look again for messages and deadlines that can be decided."""
        self._changed.set()

    def receive(self, bodies: Iterable[StoredBody]) -> None:
        """Take messages of the log, in their order; `run_once` folds them."""
        self._arrived += bodies
        if self._arrived and self._arrived[-1].sequence > self._chain.head.sequence:  # another process stored it
            self._changed.set()

    def fold_received(self) -> None:
        """Fold the commits among the received messages."""
        while self._arrived:
            stored = self._arrived.popleft()
            self.places.log_bytes += len(stored.body)
            if (commit := self._chain.take(stored)) is None:
                continue
            if self.places.begins_after(stored.sequence):
                self._take_events(commit)
            else:
                self.apply(commit)
                self.places.note_boundary()

    def _take_events(self, commit: Commit) -> None:
        """Take the events of a folded commit for stages that have not taken them."""
        for number, event in enumerate(commit.events, commit.first):
            if not is_log_event(event.subject):
                with suppress(DecodeError):  # its key is broken in the fold
                    self.pending.arrive(EVENTS, StoredEvent(number, event.subject, commit.at, event.body).read())

    @property
    def head(self) -> LogHead:
        """The place up to which this process read the log."""
        return self._chain.head

    def shown_heads(self) -> tuple[LogHead, ...] | None:
        """Return places at which processes without stages can begin; None: this process leads no stage."""
        return self._chain.heads.shown(self._chain.newest, self.fold.heads) if self.agenda.led else None

    @property
    def log_bytes(self) -> int:
        """The bytes of the messages of the log that were read."""
        return self.places.log_bytes

    async def copy(self) -> FoldPlace:
        """Return the fold between two commits, its place, and where untaken events begin."""
        return await self.places.copy(self._changed.set)

    def note(self, by: str, event: LogEvent) -> "asyncio.Future[None]":
        """Have an event of the log itself stored with the next commit."""
        note = Note(by, event)
        self.pending.proposals.append(note)
        self._changed.set()
        return note.stored

    def ask(self, asked: Asked) -> "asyncio.Future[Step]":
        """Have a decision made, and its events stored with the next commit; return it then.

        Raises (in the future):
            Missing: the decision needs data that the fold does not have. Other errors come from the stage.
        """
        self.pending.proposals.append(asked)
        self._changed.set()
        return asked.stored

    def is_late(self, stage: str) -> bool:
        """Return whether a deadline of a stage is over for some seconds, and not decided."""
        at = self.agenda.earliest(stage)
        return at is not None and at < self._leadership.now() - LATE

    def look(self) -> None:
        """Find all deadlines of states again, because their conditions have changed."""
        self.pending.look()
        self._changed.set()

    def leads(self, stage: str) -> bool:
        """Return whether this process decides for a stage."""
        return stage in self.agenda.led

    def propose(self, by: str, events: Sequence[Message], *, expect: int) -> "asyncio.Future[tuple[int, ...]]":
        """Have events of one scope stored with the next commit, and return their numbers.

        Raises (in the future):
            SequenceConflict: the scope has an event after the number `expect`.
            InvalidMessage: an event has a value that no reader accepts.
        """
        proposal = Proposal(by, events, expect)
        if not proposal.stored.done():
            self.pending.proposals.append(proposal)
            self._changed.set()
        return proposal.stored

    def apply(self, commit: Commit) -> None:
        """Fold a stored commit of another process, or of an earlier run.

        Decisions that are not stored rest on less than the log: they are made again.
        """
        self._undo_open()
        self._write_turns.seen(commit.writer)
        recorded = apply(self.fold, commit)
        for one, event in zip(recorded, commit.events, strict=True):
            if one is None:
                continue
            if not is_log_event(event.subject):
                self.pending.arrive(EVENTS, one)
            elif isinstance(change := decode(event), Waits):
                self.pending.note_wait(change, one.sequence)
            elif self._leases is not None:
                self._leases.take(change)
        self.pending.forget_taken(commit.taken)
        self.intake.free()
        self._watcher.explode(Shown(commit.first, commit.at, commit.events, recorded, is_own=False))

    async def leave(self) -> None:
        """Wait until the terms of this process are over, and only proposals are decided."""
        await self._leadership.leave()

    async def run(self) -> None:
        """Decide and store until cancelled."""
        while True:
            self._changed.clear()
            await self._write_turns.hold_back(self.fold_received)
            if await self.run_once():
                await asyncio.sleep(0)  # a log in memory does not wait
            else:
                await self._wait()

    async def _wait(self) -> None:
        """Wait for something to decide on."""
        since = self._decider.batch.since
        times = [
            None if since is None else since + RIDES_FOR,
            # No deadline is decided until the streams are read, so a deadline that is due does not wake the loop.
            self._ask_again_at if self.intake.is_reading else self.pending.next_at,
            self._look_at_unknown if self.agenda.unknown else None,
        ]
        until = min((at for at in times if at is not None), default=None)
        now = await self._leadership.time() or self._leadership.now()  # a leader of last resort has an earlier clock
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
        """Decide, and store one commit; False: nothing to decide or to store yet."""
        is_late = self.intake.is_reading and self._leadership.now() >= self._ask_again_at  # the newest may be removed
        if self._ends is not None and (self._must_read or is_late):
            self.intake.read_to(await self._ends())
            self._must_read, self._ask_again_at = False, self._leadership.now() + ASK_AGAIN
        time_of_log = await self._leadership.time()
        self.fold_received()
        self.places.hand_out()
        self._is_blind = time_of_log is None
        at = self._chain.head.at
        if time_of_log is None and self.pending.proposals:
            time_of_log = await self._leadership.time_of_proposals(at if self._chain.head.digest else None)
        now = max(time_of_log or at, at)
        if (led := self._leadership.led) != self.agenda.led:
            if self.agenda.led - led:
                self._undo_open()
            self._begin_reading(led)
            self.pending.lead(led, now)
        if self.pending.suspect is not None and not self._decider.batch.events:
            await self._refresh()
        is_full = self._decide(now)
        if self._decider.may_propose:
            await self._wait_for_proposals()
            is_full = self._decide(now)
        batch, taken = self._decider.batch, self.pending.taken()
        if taken and batch.since is None:
            batch.since = now
        may_wait = batch.since is None or now - batch.since < RIDES_FOR
        is_long = batch.inputs >= self._max_inputs or len(batch.calls) >= MAX_EVENTLESS
        if batch.events or batch.is_awaited or not may_wait or (taken and is_long):
            await self._store(batch, taken, now)
            return True
        batch.settle()
        batch.calls = [call for call in batch.calls if not isinstance(call, OfPart)]
        return is_full

    async def _store(self, batch: Batch, taken: dict[str, dict[str, Taken]], now: datetime) -> None:
        """Append a commit, and send its effects once it is stored."""
        draft = self._chain.seal.write(
            self._chain.head,
            writer=self._name,
            at=now,
            taken=taken,
            events=batch.events,
            format_=self._newest_format(),
        )
        appended = await self.writer.append(draft)
        self._decider.batch = Batch()
        if appended.sequence is None:
            self._undo(batch)
            await self._write_turns.refused()
        else:
            self._keep(taken, now)
            if not appended.others:
                self.places.note_boundary()
            self._write_turns.stored()
            at = max(now, self._chain.head.at)
            batch.settle()  # first, because the matcher hands the claimed tasks over
            self._watcher.explode(Shown(self._decider.first, at, batch.events, batch.recorded, is_own=True))
            self._leadership.settle()
        for _, commit in appended.others:
            self.apply(commit)
        if appended.sequence is not None and batch.effects:
            await self._on_effects(batch.effects)

    async def _wait_for_proposals(self) -> None:
        """Let parts of the process make decisions for the commit that is not stored yet."""
        self._decider.may_propose = False
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if self.pending.proposals:
                return

    def _keep(self, taken: dict[str, dict[str, Taken]], at: datetime) -> None:
        for stage, sources in taken.items():
            for source, gain in sources.items():
                self.fold.take(stage, source, gain)
                self.pending.keep(stage, source)
        self.fold.keep(at)
        self.intake.free()
        self._max_inputs = min(MAX_INPUTS, 2 * self._max_inputs)

    def _undo_open(self) -> None:
        """Have everything decided again that is decided and not stored."""
        if self._decider.batch.calls or self._decider.batch.is_cut:
            batch, self._decider.batch = self._decider.batch, Batch()
            self._undo(batch)

    def _undo(self, batch: Batch) -> None:
        """Forget the decisions since the last commit, and have them made again."""
        self.agenda.note(self.fold.undo())
        newest = self._decider.first - 1
        self._watcher.undone(batch.scopes(), newest)
        self.pending.undo(batch, newest)
        self._decider.batch.since = batch.since  # other processes' commits put no position off
        self._max_inputs = max(1, self._max_inputs // 2)

    async def _refresh(self) -> None:
        """Load the fold again, at most once a minute."""
        if self._reload is None or self._clock.monotonic() < self._fresh_until:
            return
        fresh = await self._reload()
        self._fresh_until = self._clock.monotonic() + FRESH_FOR_S
        if fresh is None:
            _log.warning("the fold cannot be loaded again: the log begins later", action="fold-not-reloaded")
        elif differing := self.fold.replace(fresh):
            _log.error("the fold was wrong, and is loaded again", action="wrong-fold", scopes=sorted(differing)[:20])
            self.pending.look()

    def _decide(self, now: datetime) -> bool:
        """Decide until the batch is full; False: nothing waits any more."""
        self._decider.first = self._chain.head.number + 1
        if self._change_terms(now):
            return True
        if self.agenda.unknown and now >= self._look_at_unknown:
            self._look_at_unknown = now + LOOK_AGAIN
            self.agenda.note(tuple(self.agenda.unknown))
        self.pending.bring_forward()
        decider, pending = self._decider, self.pending
        if pending.suspect is not None and not decider.batch.events and not self._is_blind:
            decider.decide_alone(pending.suspect, now)
            return True
        is_reading = self._must_read or self.intake.is_reading
        has_deaths = any(self.fold.terms(stage).deaths for stage in self.agenda.led)
        until = self._steady() + MAX_DECIDING_S
        while not self._is_full(decider.batch):
            if (following := pending.next(now, is_reading=is_reading, only_proposals=self._is_blind)) is None:
                if decider.batch.events or not self.agenda.find():  # unknown deadlines wait until nothing else does
                    return False
            elif (has_deaths and not decider.may_be_decided(following, now)) or not decider.attempt(following, now):
                break
            if self._steady() > until:
                break
        return True

    def _change_terms(self, now: datetime) -> bool:
        """Begin and end terms of this process, in an own commit.

        Return whether a term began or ended.
        """
        changes = self._leadership.changes()
        if changes:
            self._undo_open()
        for change in changes:
            self._decider.append_of_log(change, now)
            self._must_read = self._must_read or (self._ends is not None and isinstance(change, Began))
        return bool(changes)

    def _is_full(self, batch: Batch) -> bool:
        return (
            batch.is_cut
            or batch.inputs >= self._max_inputs
            or len(batch.events) >= MAX_EVENTS
            or batch.size >= MAX_EVENT_BYTES
        )


class HasLoop(Protocol):
    """The view of a process on its loop, once the loop runs."""

    loop: CommitLoop
