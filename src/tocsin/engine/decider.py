"""The decider of one cause after another within a batch.

It has limits, and a decision that fails stops no other.
"""

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec

from .. import subjects, telemetry
from ..domain.commit import MAX_CALL_BYTES, CommitEvent
from ..domain.events import Message, Recorded, Report
from ..domain.json_codec import written
from ..domain.log_events import ABOUT_THE_LOG, LogEvent, Trying, Waited, Waits, encode
from .asked import Asked, AskedView, is_in_log
from .batch import Batch, Mark
from .broken_keys import PATIENCE as KEY_PATIENCE
from .broken_keys import Broken, BrokenKey
from .causes import Agenda, Cause, DeadlineCause, MessageCause, Note, Notice, OfPart, Proposal
from .fold import EVENTS, Fold
from .fold_view import View
from .pending import Pending
from .poison import (
    MAX_CALL_EVENTS,
    DeadlyDecision,
    DecisionTooLarge,
    end_of,
    letter_of,
    place_of,
    poison_of,
)
from .report_lists import UnreadableInput
from .ripe_inputs import PATIENCE, wait_for
from .step import DONE, MAX_STEPS, EndlessDecision, Events, Rest, Send, Step, Then
from .watcher import Watcher

MAX_ALL_EVENTS: Final = 4_000
MAX_ALL_BYTES: Final = 700_000
"""Events of a commit, and their bytes, beyond which its last decision goes into the next commit."""
PART_EVENTS: Final = 512
PART_BYTES: Final = 131_072
"""Events of one decision, and their bytes, after which its next step is in the next commit: with the largest step, it still fits."""
MAX_PARTS: Final = 2_000
"""Commits over which a decision goes on: a fan-out over 1,000 shards may fill a commit with each plan."""
EVENT_BYTES: Final = 80
"""Bytes of an event in a commit beside its subject, cause and body."""
LOOK_AGAIN: Final = timedelta(seconds=30)
"""The time after which a deadline that gave nothing is looked at again."""

LONG_AGO: Final = timedelta(days=10)
"""The apparent age of an input when its time is over; no stage is patient for so long."""

_log = telemetry.get_logger("tocsin.engine")


class Decider:
    """Makes the decisions of a process."""

    def __init__(self, fold: Fold, agenda: Agenda, pending: Pending, watcher: Watcher, writer: str) -> None:
        """`writer`: the name of the process."""
        self._fold = fold
        self._agenda = agenda
        self._pending = pending
        self._watcher = watcher
        self._writer = writer
        self.batch = Batch()
        self.first = 1
        """The number of the batch's first event."""
        self._parts = ("", 0)
        """The place of the decision that goes on over several commits, and in how many."""
        self.may_propose = False
        """Whether parts of the process may propose more on the decisions."""

    @property
    def newest(self) -> int:
        """The number of the newest event that exists, stored or not."""
        return self.first + len(self.batch.events) - 1

    def may_be_decided(self, cause: Cause, now: datetime) -> bool:
        """Return whether a decision can be made now.

        Either no leader died of it, or the log names it first.
        """
        if isinstance(cause, OfPart):
            return True
        terms, place = self._fold.terms(cause.by), place_of(cause)
        if terms.is_poison(place):
            self.batch.calls.append(cause)
            self._end(cause, DeadlyDecision("it killed each process that made it"), now)
            return False
        if not terms.is_careful(now) or (terms.open is not None and terms.open.place == place):
            return True
        self._pending.first = cause
        if not self.batch.events:
            self.append_of_log(Trying(cause.by, place), now, cause)
        return False

    def attempt(self, cause: Cause, now: datetime) -> bool:
        """Decide on one cause; False: it failed, and is decided on alone after this commit."""
        mark, length = self.batch.begin(cause), len(self._fold.journal)
        try:
            is_over = self.decide_on(cause, now)
            if not is_over:
                self._go_on(cause)
        except Exception as error:  # noqa: BLE001 - a defect of a decision stops no other
            self.take_back(mark, length)
            if mark.events and isinstance(error, DecisionTooLarge):
                self._pending.first = cause
            elif isinstance(cause, OfPart):
                cause.fail(error)
            elif isinstance(error, BrokenKey):  # a fresh fold has it too
                self.batch.calls.append(cause)
                if not self._waits_for_key(cause, error, now):
                    self._give_up(cause, error, now)
                return True
            else:
                _log.exception(
                    "decision failed; making it again", action="decision-failed", stage=cause.by, place=place_of(cause)
                )
                self._pending.suspect = cause
            return False
        return is_over

    def _go_on(self, cause: Cause) -> None:
        """Have a decision go on in the next commit, on its changed states.

        Raises:
            DecisionTooLarge: it was in too many commits.
        """
        before, parts = self._parts
        self._parts = cause.cause, parts + 1 if cause.cause == before else 1
        if self._parts[1] > MAX_PARTS:
            raise DecisionTooLarge.of(len(self.batch.events), self.batch.size)
        self.batch.calls.pop()
        self._pending.first, self.batch.is_cut = cause, True

    def decide_alone(self, cause: MessageCause | DeadlineCause, now: datetime) -> None:
        """Make a decision again that failed.

        If it fails again, the key of its cause gets its end.
        """
        self._pending.suspect = None
        if not self._pending.is_open(cause):
            return
        mark, length = self.batch.begin(cause), len(self._fold.journal)
        try:
            if not self.decide_on(cause, now):
                self._go_on(cause)
        except Exception as error:  # noqa: BLE001 - as in `attempt`
            self.take_back(mark, length)
            self.batch.calls.append(cause)
            self._give_up(cause, error, now)

    def _give_up(self, cause: MessageCause | DeadlineCause, error: Exception, now: datetime) -> None:
        """End the key of a message that cannot be decided; put off a deadline."""
        if isinstance(cause, MessageCause):
            self._end(cause, error, now)
            return
        place = place_of(cause)
        _log.error("deadline put off", action="deadline-failed", stage=cause.by, place=place, error=str(error))
        self._agenda.look_again(cause, now + LOOK_AGAIN)

    def _end(self, cause: MessageCause | DeadlineCause, error: Exception, now: datetime) -> None:
        """End the key of a decision that no process makes any more."""
        end = end_of(self._fold, cause, error)
        if not end and isinstance(cause, DeadlineCause):
            self._agenda.look_again(cause, now + LOOK_AGAIN)
            return
        poison = poison_of(cause, error)
        _log.error("decision is poison", action="poison", **msgspec.structs.asdict(poison))
        self.append_of_log(poison, now, cause)
        for event in end:
            with suppress(BrokenKey):  # the key is broken, and so is its end
                self._append(cause, event, now)
        if isinstance(cause, MessageCause):
            self._end_wait(cause, now)
            self._close(cause)

    def take_back(self, mark: Mark, length: int) -> None:
        """Forget the changes of a decision that failed."""
        scopes = self.batch.scopes(mark.events)
        self._agenda.note(self._fold.undo(length))
        self.batch.cut(mark)
        self._pending.forget_newer(self.newest)
        if scopes:
            self._watcher.undone(scopes, self.newest)

    def decide_on(self, cause: Cause, now: datetime) -> bool:
        """Decide on one cause; return whether the decision is complete.

        If not, it went as far as one commit takes.

        Raises:
            DecisionTooLarge: the commit would be too large. Other errors come from the stage.
        """
        events, size, is_over = len(self.batch.events), self.batch.size, True
        if isinstance(cause, MessageCause):
            is_over = self._decide_message(cause, now)
        elif isinstance(cause, Proposal):
            self._decide_proposal(cause, now)
        elif isinstance(cause, Note):
            self.append_of_log(cause.event, now, cause)
        elif isinstance(cause, Asked):
            self._decide_asked(cause, now)
        else:
            is_over = self._call(cause, View(self._fold, now), now).then is not Then.AGAIN
            if len(self.batch.events) == events:
                self._agenda.look_again(cause, now + LOOK_AGAIN)
        if len(self.batch.events) > MAX_ALL_EVENTS or self.batch.size > MAX_ALL_BYTES:
            raise DecisionTooLarge.of(len(self.batch.events) - events, self.batch.size - size)
        if is_over and isinstance(cause, MessageCause):
            self._close(cause)
        return is_over

    def _decide_proposal(self, proposal: Proposal, now: datetime) -> None:
        proposal.numbers = None
        if self._fold.allows(subjects.scope_of(proposal.events[0]), proposal.expect):
            first = self.newest + 1
            proposal.numbers = tuple(range(first, first + len(proposal.events)))
            for event, body in zip(proposal.events, proposal.bodies, strict=True):
                self._append(proposal, event, now, body)

    def _decide_asked(self, asked: Asked, now: datetime) -> None:
        """Make one step of a decision that a part of the process requested.

        The part handles everything that follows except events.
        """
        asked.step = DONE
        if isinstance(unreadable := asked.recorded.message, UnreadableInput):
            self._refuse(asked, unreadable, now)
            return
        step = asked.step = asked.subscription.decide(asked.recorded, AskedView(self._fold, now, asked), now)
        for change in step.changes:
            for event in change.events if isinstance(change, Events) and is_in_log(change.ref) else ():
                self._append(asked, event, now)
        if step.then is Then.REFUSE:
            self._append(asked, letter_of(asked, step.reason, step.code, step.job), now)

    def _refuse(self, cause: MessageCause | Asked, unreadable: UnreadableInput, now: datetime) -> None:
        """Keep an unreadable input as a dead letter, but no report without a proof."""
        is_proven = cause.subscription.is_proven
        if is_proven is None or is_proven(cause.recorded.subject):
            letter = letter_of(cause, f"unreadable: {unreadable.error}", unreadable.error.code)
            self._append(cause, letter, now)

    def _decide_message(self, cause: MessageCause, now: datetime) -> bool:
        message = cause.recorded.message
        if isinstance(message, UnreadableInput):
            self._refuse(cause, message, now)
            self._end_wait(cause, now)
            return True
        if isinstance(message, Report) and self._fold.is_lost(message.claim):
            return True  # the log forgot that it gave the task: it is given again
        waited = cause.waits
        is_late = waited is not None and waited.until <= now
        view = View(self._fold, now, now + LONG_AGO if is_late else cause.recorded.time)
        step = self._call(cause, view, now)
        if step.then is Then.AGAIN:
            return False
        patience = max(PATIENCE, timedelta(seconds=step.delay))
        waits = wait_for(cause, view.read, now, patience) if step.then is Then.WAIT and not is_late else None
        if waits is not None and waited is None and not self._fold.waiting.has_room(waits):
            waits, step = None, self._call(cause, View(self._fold, now, now + LONG_AGO), now)
        if waits is not None:
            if waits != waited:  # it may wait on for the same
                self.append_of_log(waits, now, cause)
            return True
        if step.then is Then.REFUSE or step.then is Then.WAIT:
            self._append(cause, letter_of(cause, step.reason, step.code, step.job), now)
        if waited is not None:
            self._end_wait(cause, now)
        return True

    def _waits_for_key(self, cause: MessageCause | DeadlineCause, error: BrokenKey, now: datetime) -> bool:
        """Have a message wait until a key is whole.

        False: it may wait no longer, or the decision itself would break the key.
        """
        if isinstance(cause, DeadlineCause) or type(self._fold.states.get(error.scope)) is not Broken:
            return False
        waits = wait_for(cause, {error.repair}, now, KEY_PATIENCE)
        if waits.until <= now or (cause.waits is None and not self._fold.waiting.has_room(waits)):
            return False
        if waits != cause.waits:
            self.append_of_log(waits, now, cause)
        self._close(cause)
        return True

    def _end_wait(self, cause: MessageCause, now: datetime) -> None:
        if cause.waits is not None:
            self.append_of_log(Waited(*cause.waits.name), now, cause)

    def _call(self, cause: MessageCause | DeadlineCause, view: View, now: datetime) -> Step:
        """Call `decide` until it has no more steps, and return the last step.

        The rest of a large decision belongs into the next commit.
        """
        decide: Rest = cause.decide
        first, before = len(self.batch.events), self.batch.size
        for _ in range(MAX_STEPS):
            events, size = len(self.batch.events), self.batch.size
            step = decide(view, now)
            self._add(cause, step, view, now)
            events, size = len(self.batch.events) - events, self.batch.size - size
            if events > MAX_CALL_EVENTS or size > MAX_CALL_BYTES:
                raise DecisionTooLarge.of(events, size)
            is_part = len(self.batch.events) - first >= PART_EVENTS or self.batch.size - before >= PART_BYTES
            if is_part or step.then is not Then.AGAIN:
                return step
            decide = step.rest or cause.decide
        raise EndlessDecision(f"the decision on {cause.cause} has {MAX_STEPS} steps")

    def _close(self, call: MessageCause) -> None:
        """Note that a message was decided.

        The place of an input that waited counts as taken before.
        """
        if call.waits is None:
            self._pending.close(call)
            self.batch.closed.append(call)
        self.batch.inputs += call.source != EVENTS

    def _add(self, cause: MessageCause | DeadlineCause, step: Step, view: View, now: datetime) -> None:
        for change in step.changes:  # no stage of the loop puts an entry
            if isinstance(change, Events):
                for event in change.events:
                    self._append(cause, event, now)
                view.changed.add(change.ref)
            elif isinstance(change, Send):
                view.sent.add(change.message_id)
                self.batch.effects.append((cause.by, change))
        if step.signals:
            take = cause.subscription.on_signal if isinstance(cause, MessageCause) else None
            self.batch.effects += ((cause.by, Notice(take, signal)) for signal in step.signals)

    def append_of_log(self, event: LogEvent, now: datetime, cause: Cause | None = None) -> None:
        """Append an event of the log itself.

        Without a cause, it rests on everything before it.
        """
        number = self.newest + 1
        by, of = ("", f"0-{number - 1}") if cause is None else (cause.by, cause.cause)
        batch = self.batch
        batch.events.append(encode(event, by=by, cause=of))
        batch.recorded.append(Recorded(ABOUT_THE_LOG, batch.events[-1].subject, number, now))
        batch.size += len(batch.events[-1].body) + EVENT_BYTES
        self._fold.evolve_log(event, writer=self._writer, number=number, at=now)
        if isinstance(event, Waits):
            self._pending.note_wait(event, number)

    def _append(self, cause: Cause, message: Message, now: datetime, body: bytes | None = None) -> None:
        """Append an event; `body`: its body, if its proposer wrote it."""
        batch, of = self.batch, cause.cause
        if body is None:
            body = written(message)  # its values come from messages that were read: no look that they read back
        subject, scope = subjects.subject_and_scope(message)
        recorded = Recorded(message, subject, self.first + len(batch.events), now)
        event = CommitEvent(subject, cause.by, of, msgspec.Raw(body))
        batch.events.append(event)
        batch.recorded.append(recorded)
        batch.size += len(body) + len(subject) + len(of) + EVENT_BYTES
        self._fold.evolve(recorded, scope)
        self._pending.arrive(EVENTS, recorded, is_own=True, scope=scope)
        self.may_propose |= self._watcher.decided(event, recorded)
        if type(state := self._fold.states.get(scope)) is Broken and state.number == recorded.sequence:
            raise BrokenKey(state)
