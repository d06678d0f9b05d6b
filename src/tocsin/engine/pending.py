"""The causes that wait in a process, and the places that its stages have seen."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import filterfalse
from typing import Final

from .. import subjects
from ..domain.commit import Taken, Untaken
from ..domain.events import Message, Recorded
from ..domain.log_events import Waits
from ..subjects import Stream
from .batch import Batch
from .causes import Agenda, Cause, DeadlineCause, MessageCause, OfPart, Proposal, routes_of
from .change_requests import REGISTRAR
from .fold import EVENTS, Fold
from .intake import is_crowded
from .ripe_inputs import RipeInputs
from .stage import BoundStage
from .turns import AwaitedChanges, Kind, Turns, kind_of

MAX_BROUGHT_FORWARD: Final = 512
"""Messages of a stage and source that go first if its position has too many ranges."""
LOOK_AGAIN: Final = timedelta(milliseconds=100)
"""The time after which a deadline that waits for a change is looked at again."""
_CHANGES: Final = (REGISTRAR, Stream.REQUESTS.value)
"""The stage and the source of changes."""


class Pending:
    """The causes of decisions that are not made yet, in their order."""

    def __init__(self, stages: Sequence[BoundStage], fold: Fold, agenda: Agenda) -> None:
        self._stages = stages
        self._fold = fold
        self._agenda = agenda
        self._routes = routes_of(stages)
        self._sources = {stage.name: {EVENTS, *(s.stream.value for s in stage.subscriptions)} for stage in stages}
        """The sources that each stage takes.

        A stage has no position of another source: in a process of its own, such a position would never move.
        """
        self._events: deque[MessageCause] = deque()
        """Events of this process that are decided before all others, so that a cascade runs to its end."""
        self.proposals: deque[OfPart] = deque()
        self._turns = Turns()
        self._standby = _Standby()
        self._ripe = RipeInputs(stages, fold)
        self.first: Cause | None = None
        """The cause that is decided first in the next commit."""
        self.suspect: MessageCause | DeadlineCause | None = None
        """A decision that raised an error. It is made again, alone."""
        self._untaken: dict[tuple[str, str], Untaken] = {}
        """The places that a stage has seen and not taken, by stage and source."""
        self._seen: dict[str, int] = {}
        """The newest place of each source."""
        self._has_moved = True
        """Whether a place was seen or closed since nothing was to be taken."""
        self._awaited = AwaitedChanges()

    def arrive(
        self, source: str, recorded: Recorded[Message], *, is_own: bool = False, scope: str | None = None
    ) -> None:
        """Take the next input or event of a source.

        `is_own`: an event that this process decided, and that is not stored. `scope`: the scope of an event, if it is known.
        """
        place = recorded.sequence
        self._has_moved = True
        if place > self._seen.get(source, 0):
            self._seen[source] = place
        if source == EVENTS and self._fold.waiting.entries:
            self._ripe.note(scope or subjects.scope_of(recorded.message))
        if (routes := self._routes.get(source)) is None:
            return
        if len(led := self._agenda.led) < len(self._stages):
            self._standby.add(source, recorded)
        for stage, subscription in routes.to(recorded.subject) if led else ():
            if stage.name not in led or self._fold.position(stage.name, source).has(place):
                continue
            call = MessageCause(stage, subscription, source, place, recorded)
            self._untaken_of(call.key).add(place)
            if is_own:
                self._events.append(call)
            else:
                self._turns.add(call)

    def heed(self, change: Recorded[Message], now: datetime) -> None:
        """Take a change; unless this process decides it, newer messages of its job wait."""
        if REGISTRAR not in self._agenda.led and not self._fold.position(*_CHANGES).has(change.sequence):
            self._awaited.add(subjects.job_of(change.subject), change.sequence, change.time, now)

    def note_wait(self, waits: Waits, number: int) -> None:
        """Note that an input waits, by the number of its event."""
        self._ripe.note_wait(waits, number)

    def look(self) -> None:
        """Look at all deadlines and waiting inputs: the fold has other states than before."""
        self._has_moved = True
        self._agenda.note_all()
        self._ripe.look()

    def forget_taken(self, taken: Mapping[str, Mapping[str, Taken]]) -> None:
        """Forget what leaders of stages took with a commit, by stage and source."""
        for stage, sources in taken.items():
            for source in sources:
                self._ripe.note_taken(stage, source)
        self._standby.forget_taken(self._floor)
        if REGISTRAR in taken:
            position = self._fold.position(*_CHANGES)
            self._turns.put_back(self._awaited.end(lambda sequence, _: position.has(sequence)))

    def _floor(self, source: str) -> int:
        """Return the place up to which the leaders in other processes have taken a source."""
        others = (name for name, sources in self._sources.items() if source in sources and name not in self._agenda.led)
        return min((self._fold.position(name, source).floor for name in others), default=sys.maxsize)

    def _due(self, now: datetime) -> DeadlineCause | None:
        """Return the earliest deadline of a job that waits for no change."""
        while (alarm := self._agenda.next_due(now)) is not None:
            if not self._awaited.is_before(subjects.job_of(alarm.scope), alarm.deadline.at):
                break
            self._agenda.look_again(alarm, now + LOOK_AGAIN)
        return alarm

    def _is_early(self, cause: Cause) -> bool:
        """Return whether a message was held, because its job waits for a change."""
        if not isinstance(cause, MessageCause) or kind_of(cause.source, cause.recorded.subject) is Kind.REPORTS:
            return False
        is_early = self._awaited.holds(subjects.job_of(cause.recorded.subject), cause)
        if is_early and cause.waits is not None:
            self._ripe.put_back(cause.waits)
        return is_early

    @property
    def next_at(self) -> datetime | None:
        """A time (UTC) before which nothing can be decided by itself.

        None: nothing can be decided by itself.
        """
        times = self._agenda.next_at, self._ripe.next_at, self._awaited.until
        return min((at for at in times if at is not None), default=None)

    def next(self, now: datetime, *, is_reading: bool, only_proposals: bool) -> Cause | None:
        """Return and remove the next cause: own events, then proposals, then turns; None: nothing waits.

        `is_reading`: as in `Turns.next`.
        """
        if (until := self._awaited.until) is not None and until <= now:
            self._turns.put_back(self._awaited.end(lambda _, end: end <= now))
        awaits = self._awaited.until is not None
        due = partial(self._due if awaits else self._agenda.next_due, now)
        while True:
            cause: Cause | None = None
            if self.first is not None and (not only_proposals or isinstance(self.first, OfPart)):
                cause, self.first = self.first, None
            elif self._events and not only_proposals:
                cause = self._events.popleft()
            elif self.proposals:
                return self.proposals.popleft()
            elif not only_proposals:
                for call in self._ripe.take(now, self._agenda.led):
                    self._turns.add(call)
                cause = self._turns.next(due, is_reading=is_reading)
            if cause is None or (self.is_open(cause) and not (awaits and self._is_early(cause))):
                return cause

    def is_open(self, cause: Cause) -> bool:
        """Return whether a decision is still to be made."""
        if isinstance(cause, DeadlineCause):
            return self._agenda.is_current(cause)
        if not isinstance(cause, MessageCause):
            return True
        if cause.waits is not None:
            return self._ripe.is_open(cause.waits)
        key = cause.key
        if is_taken := self._fold.position(*key).has(cause.place):
            self.close(cause)  # by another process
        return not is_taken

    def bring_forward(self) -> None:
        """Let go of the causes first that hold a position back."""
        for key, position in self._fold.positions.items():
            if is_crowded(position) and key[0] in self._agenda.led:
                self._turns.put_back(self._awaited.end())
                self._turns.bring_forward(key, MAX_BROUGHT_FORWARD)

    def close(self, call: MessageCause) -> None:
        """Note that the place of a message was decided."""
        self._has_moved = True
        self._untaken[call.key].close(call.place)

    def taken(self) -> dict[str, dict[str, Taken]]:
        """Return the ranges that each stage has taken since the last stored commit.

        They are all places that it saw, except the open places.
        """
        taken: dict[str, dict[str, Taken]] = {}
        if not self._has_moved:
            return taken
        for stage in self._stages:
            if stage.name not in self._agenda.led:
                continue
            for source in self._seen.keys() & self._sources[stage.name]:
                untaken = self._untaken_of((stage.name, source))
                if ranges := untaken.ranges(self._seen[source], self._fold.position(stage.name, source)):
                    taken.setdefault(stage.name, {})[source] = Taken(ranges)
        self._has_moved = bool(taken)
        return taken

    def keep(self, stage: str, source: str) -> None:
        """Note that a commit is stored that takes something for a stage."""
        self._untaken[stage, source].keep()
        self._ripe.note_taken(stage, source)

    def undo(self, batch: Batch, newest: int) -> None:
        """Have all causes of a batch decided again, as far as they exist.

        A proposal that rests on an undone event is refused. `newest`: the number of the newest stored event.
        """
        rests = partial(_rests, newest)
        self._seen[EVENTS] = min(self._seen.get(EVENTS, 0), newest)
        for cause in filter(rests, (*batch.calls, *self.proposals, self.first)):
            if isinstance(cause, Proposal):
                cause.refuse()
        self._let_go(rests)
        self.proposals = deque(filterfalse(rests, self.proposals))
        self._events = deque(filterfalse(rests, self._events))
        calls = [*filterfalse(rests, batch.calls)]
        self.proposals.extendleft(call for call in reversed(calls) if isinstance(call, OfPart))
        for call in calls:
            if isinstance(call, DeadlineCause):
                self._agenda.again(call)  # it may have been put off
        again = [call for call in calls if isinstance(call, MessageCause)]
        self._events.extendleft(call for call in reversed(again) if call.source == EVENTS)
        self._turns.put_back(call for call in again if call.source != EVENTS)
        for call in again:
            if call.waits is not None:
                self._ripe.put_back(call.waits)
        self._standby.forget_newer(newest)
        for call in batch.closed:
            self._untaken[call.key].reopen(call.place)
        for (_, source), untaken in self._untaken.items():
            untaken.undo(newest if source == EVENTS else None)

    def forget_newer(self, newest: int) -> None:
        """Forget the events of a decision that failed.

        `newest`: the number of the newest event that exists.
        """
        self._seen[EVENTS] = min(self._seen.get(EVENTS, 0), newest)
        while self._events and self._events[-1].place > newest:
            self._events.pop()
        self._standby.forget_newer(newest)
        for (_, source), untaken in self._untaken.items():
            if source == EVENTS:
                untaken.forget(newest)

    def lead(self, led: frozenset[str], now: datetime) -> None:
        """Decide for these stages, and for no other. Nothing is decided and not stored."""
        lost, gained = self._agenda.led - led, led - self._agenda.led
        self._agenda.led = led
        self._turns.put_back(self._awaited.end() if REGISTRAR in gained else self._awaited.release())
        if lost:
            gone = [*self._turns.remove(lost), *(call for call in self._events if call.by in lost)]
            gone += self._let_go(lambda held: held.by in lost)
            self._ripe.forget_turns(call.waits for call in gone if call.waits is not None)
            self._standby.put(call for call in gone if call.waits is None)
            changes = (call for call in gone if call.by == REGISTRAR and call.source != EVENTS)
            for call in sorted(changes, key=lambda call: call.place):
                self.heed(call.recorded, now)
            self._events = deque(call for call in self._events if call.by in led)
            self._untaken = {key: untaken for key, untaken in self._untaken.items() if key[0] in led}
        for source, recorded in self._standby.messages() if gained else ():
            for stage, subscription in self._routes[source].to(recorded.subject):
                call = MessageCause(stage, subscription, source, recorded.sequence, recorded)
                if stage.name in gained and not self._fold.position(*call.key).has(call.place):
                    self._turns.add(call)
                    self._untaken_of(call.key).add(call.place)
        self._standby.forget_taken(self._floor)
        if gained:
            self.look()

    def _let_go(self, fits: Callable[[Cause], bool]) -> Iterable[MessageCause]:
        """Let go of the causes for the next commit that `fits` takes.

        Return the messages among them.
        """
        gone = [held for held in (self.first, self.suspect) if held is not None and fits(held)]
        self.first = None if self.first in gone else self.first
        self.suspect = None if self.suspect in gone else self.suspect
        return [held for held in gone if isinstance(held, MessageCause)]

    def _untaken_of(self, key: tuple[str, str]) -> Untaken:
        if (untaken := self._untaken.get(key)) is None:
            untaken = self._untaken[key] = Untaken(self._fold.position(*key).floor)
        return untaken


def _rests(newest: int, cause: Cause | None) -> bool:
    """Return whether a cause rests on an undone event; another may get its number."""
    if isinstance(cause, Proposal):
        return cause.expect > newest
    return isinstance(cause, MessageCause) and cause.source == EVENTS and cause.place > newest


class _Standby:
    """Messages for stages that another process leads, for a takeover.

    They are kept by source, place and subject: a list has several reports.
    """

    def __init__(self) -> None:
        self._messages: dict[str, dict[tuple[int, str], Recorded[Message]]] = {}

    def add(self, source: str, recorded: Recorded[Message]) -> None:
        self._messages.setdefault(source, {})[recorded.sequence, recorded.subject] = recorded

    def put(self, calls: Iterable[MessageCause]) -> None:
        """Add the messages of stages that this process leads no more."""
        for call in calls:
            self.add(call.source, call.recorded)
        self._messages = {source: dict(sorted(kept.items())) for source, kept in self._messages.items()}

    def messages(self) -> list[tuple[str, Recorded[Message]]]:
        """Return the messages, each source in order."""
        return [(source, recorded) for source, kept in self._messages.items() for recorded in kept.values()]

    def forget_taken(self, floor: Callable[[str], int]) -> None:
        """Forget the messages up to the floor of each source, which all leaders have taken."""
        for source, kept in self._messages.items():
            upto = floor(source)
            while kept and (first := next(iter(kept)))[0] <= upto:
                del kept[first]

    def forget_newer(self, newest: int) -> None:
        """Forget the events after the newest that exists."""
        kept = self._messages.get(EVENTS, {})
        while kept and next(reversed(kept))[0] > newest:
            kept.popitem()
