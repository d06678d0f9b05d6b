"""The check that decides again on the commits of a log.

It decides from the fold before each commit, and from the causes that the events of the commit name.

A stage is a pure function of the fold, so a fresh process gives the same events. A stage that gives others keeps a state of its own, or its code was
different. Only decisions of the loop of commits are compared: parts that propose decide by themselves, and events about processes have no cause in
the log.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Final, NamedTuple

from ... import subjects
from ...archive.commit_reader import CommitReader
from ...domain.commit import Commit, CommitEvent, LogHead
from ...domain.events import Message, Recorded
from ...domain.log_events import ABOUT_THE_LOG, SUBJECTS, Poison, Waited, Waits, decode, is_log_event
from ...engine import report_lists
from ...engine.broken_keys import BrokenKey, StoredEvent
from ...engine.causes import Agenda, DeadlineCause, MessageCause, Routes, routes_of
from ...engine.decider import Decider
from ...engine.fold import EVENTS, Fold
from ...engine.ripe_inputs import cause_of
from ...engine.stage import BoundStage, BoundSubscription
from ...engine.watcher import NobodyWatches
from ...ports import StoredLog
from ...subjects import MESSAGE_ID, Stream
from .check import Violation

Input = tuple[str, int]
"""A stream of inputs, and the sequence of a message."""
_DECIDED: Final = frozenset({SUBJECTS[Waits], SUBJECTS[Waited]})
"""Events of the log itself that a decision on a message yields."""


class Difference(NamedTuple):
    """An event that a fresh process does not decide."""

    number: int
    stage: str
    cause: str
    reason: str


class DecideAgain:
    """Decides each commit of a log again, in order."""

    def __init__(self, stages: Callable[[], Sequence[BoundStage]], key: bytes) -> None:
        """`stages` returns new stages, which remember nothing. `key`: the key of the fold."""
        self.fold = Fold(key)
        self._stages = stages
        bound = stages()
        self.fold.stages = frozenset(stage.name for stage in bound)
        self._rules = {stage.name: stage.deadlines for stage in bound}
        self._agenda = Agenda(bound, self.fold)
        self._events: dict[int, Recorded[Message]] = {}
        """The events that a stage may decide on."""

    def inputs_of(self, commit: Commit) -> set[Input]:
        """Return the inputs that a commit was decided on, as far as `take` needs them."""
        causes = {event.cause for event in commit.events if event.by in self.fold.stages}
        named = (cause.rpartition("-") for cause in causes if not cause.startswith(("@", "0-")))
        return {(source, int(place)) for source, _, place in named if source}

    def take(self, commit: Commit, inputs: Mapping[Input, Sequence[Recorded[Message]]]) -> list[Difference]:
        """Decide the next commit again, fold it, and return the differences.

        `inputs`: its inputs; a list of reports has several messages. A missing input is no difference.
        """
        again = _Again(self.fold, self._agenda, self._stages(), self._rules, commit, inputs, self._events)
        differences = list(again.differences())
        for stage, sources in commit.taken.items():
            for source, taken in sources.items():
                self.fold.take(stage, source, taken)
        self.fold.keep(commit.at)
        floor = self.fold.floor
        while self._events and (oldest := next(iter(self._events))) <= floor:
            del self._events[oldest]
        return differences


class _Again:
    """One commit, decided again."""

    def __init__(
        self,
        fold: Fold,
        agenda: Agenda,
        stages: Sequence[BoundStage],
        rules: Mapping[str, Sequence[object]],
        commit: Commit,
        inputs: Mapping[Input, Sequence[Recorded[Message]]],
        events: dict[int, Recorded[Message]],
    ) -> None:
        self._fold = fold
        self._agenda = agenda
        self._stages = {stage.name: stage for stage in stages}
        self._routes = routes_of(stages)
        self._rules = rules
        self._commit = commit
        self._inputs = inputs
        self._events = events
        self._arrived = _Arrived(events)
        self._decider = Decider(fold, agenda, self._arrived, NobodyWatches(), commit.writer)  # type: ignore[arg-type]
        self._decider.first = commit.first
        self._used: set[tuple[str, str, str, int, str, int]] = set()

    def differences(self) -> Iterator[Difference]:
        """Fold the events of the commit, each by the decision that gives it."""
        events, place = self._commit.events, 0
        poisoned: tuple[str, str] | None = None
        while place < len(events):
            event = events[place]
            decision = event.by, event.cause
            if event.subject == SUBJECTS[Poison]:
                poisoned = decision  # what follows ends its key
            if not self._is_decided(event) or decision == poisoned:
                self._adopt(event)
                place += 1
                continue
            made = self._decide(place)
            if isinstance(made, int):
                place += made
                continue
            if made:
                yield Difference(self._commit.first + place, *decision, made)
            while place < len(events) and (events[place].by, events[place].cause) == decision:
                self._adopt(events[place])
                place += 1

    def _is_decided(self, event: CommitEvent) -> bool:
        return event.by in self._stages and (not is_log_event(event.subject) or event.subject in _DECIDED)

    def _adopt(self, event: CommitEvent) -> None:
        """Take an event as it is."""
        decider, batch = self._decider, self._decider.batch
        number, at = decider.newest + 1, self._commit.at
        if is_log_event(event.subject):
            recorded: Recorded[Message] = Recorded(ABOUT_THE_LOG, event.subject, number, at)
            if (change := decode(event)) is not None:
                self._fold.evolve_log(change, writer=self._commit.writer, number=number, at=at)
        else:
            read = self._fold.take_event(StoredEvent(number, event.subject, at, event.body))
            recorded = read or Recorded(ABOUT_THE_LOG, event.subject, number, at)  # a key that is broken
            if read is not None:
                self._events[number] = read
        batch.events.append(event)
        batch.recorded.append(recorded)

    def _decide(self, place: int) -> int | str:
        """Return how many events from a place on one decision gives.

        A text is the reason why no decision gives them. An empty text: the decision cannot be made.
        """
        decider, events = self._decider, self._commit.events
        reason, tried, is_broken = "", False, False
        for cause in self._causes(events[place]):
            tried = True
            mark, length = decider.batch.begin(cause), len(self._fold.journal)
            made: list[CommitEvent] = []
            try:
                decider.decide_on(cause, self._commit.at)
            except BrokenKey:
                is_broken = True  # the input waits until the key is whole
            except Exception as error:  # noqa: BLE001 - a decision that fails is a difference
                reason = f"the decision fails: {error!r}"
            else:
                made = decider.batch.events[mark.events :]
            if made and made == list(events[place : place + len(made)]):
                self._used.add(_name(cause))
                return len(made)
            reason = reason or _told(made, events[place])
            decider.take_back(mark, length)
        if is_broken:
            return ""
        if not tried and not self._is_gone(events[place].cause):
            return "its stage has no such input, event or deadline"
        return reason

    def _is_gone(self, cause: str) -> bool:
        """Return whether this process did not get the cause of a decision."""
        source, _, place = cause.rpartition("-")
        return source != "0" and not cause.startswith("@") and (source, int(place)) not in self._inputs

    def _causes(self, event: CommitEvent) -> Iterator[MessageCause | DeadlineCause]:
        """Yield the possible causes of an event.

        A place may have several messages, each for several subscriptions.
        """
        if event.cause.startswith("@"):
            yield from self._deadlines(event)
            return
        source, _, place = event.cause.rpartition("-")
        yield from (cause for cause in self._messages(event.by, source, int(place)) if _name(cause) not in self._used)

    def _messages(self, by: str, source: str, place: int) -> Iterator[MessageCause]:
        stage = self._stages[by]
        for subscription in stage.subscriptions:
            waiting = self._fold.waiting.entries.get((by, subscription.durable, source, place), {})
            yield from (cause_of(stage, subscription, waits) for waits, _ in waiting.values())
        key, known = source, self._inputs.get((source, place), ())
        if source == "0":
            key, known = EVENTS, [self._events[place]] if place in self._events else []
        for recorded in known:
            for target, subscription in self._targets(key, recorded.subject):
                if target is stage:
                    yield MessageCause(stage, subscription, key, place, recorded)

    def _targets(self, source: str, subject: str) -> Sequence[tuple[BoundStage, BoundSubscription]]:
        routes: Routes[tuple[BoundStage, BoundSubscription]] | None = self._routes.get(source)
        return () if routes is None else routes.to(subject)

    def _deadlines(self, event: CommitEvent) -> Iterator[DeadlineCause]:
        stage = self._stages[event.by]
        for alarm in self._agenda.alarms(event.by, subjects.guard_of(event.subject) or event.subject):
            if alarm.cause == event.cause:
                rule = stage.deadlines[list(self._rules[event.by]).index(alarm.deadlines)]
                yield DeadlineCause(stage, rule, alarm.scope, alarm.deadline)


class _Arrived:
    """The state of a commit's own events for the decisions on them (`pending.Pending`)."""

    def __init__(self, events: dict[int, Recorded[Message]]) -> None:
        self._events = events

    def arrive(self, source: str, recorded: Recorded[Message], *, is_own: bool = False, scope: str = "") -> None:
        del source, is_own, scope
        self._events[recorded.sequence] = recorded

    def forget_newer(self, newest: int) -> None:
        while self._events and (last := next(reversed(self._events))) > newest:
            del self._events[last]

    def close(self, call: MessageCause) -> None:
        """Do nothing: positions are taken from the commit."""

    def note_wait(self, waits: Waits, number: int) -> None:
        """Do nothing: the commit names the causes."""


def _name(cause: MessageCause | DeadlineCause) -> tuple[str, str, str, int, str, int]:
    if isinstance(cause, DeadlineCause):
        return cause.by, cause.cause, cause.scope, 0, "", 0
    return cause.by, cause.subscription.durable, cause.source, cause.place, cause.recorded.subject, cause.waits is None


def _told(made: Sequence[CommitEvent], event: CommitEvent) -> str:
    if not made:
        return "a fresh process decides nothing"
    other = next((one for one in made if one.subject != event.subject), made[0])
    return f"a fresh process decides {other.subject}: {bytes(other.body)[:300].decode(errors='replace')}"


AGAIN: Final = "AGAIN"
"""The invariant of these findings."""
PROMISE: Final = "each commit, decided again from the fold before it and the causes that it names, has the same events"


async def decided_again(
    commits: CommitReader,
    inputs: StoredLog,
    stages: Callable[[], Sequence[BoundStage]],
    key: bytes,
    *,
    until: datetime | None = None,
) -> AsyncIterator[Violation]:
    """Yield each decision of a log that a fresh process makes otherwise.

    A missing input is no difference.

    `inputs`: the streams of inputs, with their archive. `stages` returns new stages, with the settings of the installation. `key`: the key of the
    installation. `until`: the time (UTC) of the last commit.

    Raises:
        UnknownFormat: this version cannot read the log.
    """
    seal, head, again = await commits.seal(), LogHead(commits.key), DecideAgain(stages, key)
    async with aclosing(commits.bodies()) as bodies:
        async for body in bodies:
            if until is not None and body.time >= until:
                return
            head, commit = seal.read(head, body.sequence, body.body)
            if isinstance(commit, Commit):
                for one in again.take(commit, await _read(inputs, again.inputs_of(commit))):
                    reason = f"{one.stage} decided it on {one.cause}, but {one.reason}"
                    yield Violation(AGAIN, f"event {one.number:,} of commit {body.sequence:,}", reason)


async def _read(stored: StoredLog, wanted: set[Input]) -> dict[Input, list[Recorded[Message]]]:
    """Return inputs by stream and sequence, as far as they are stored.

    The inputs of a stream are read in one request.
    """
    found: dict[Input, list[Recorded[Message]]] = {}
    for source in sorted({source for source, _ in wanted}):
        places = [place for of, place in wanted if of == source]
        async for portion in stored.messages(Stream(source), after=min(places) - 1, upto=max(places)):
            for one in portion:
                if (source, one.sequence) in wanted:
                    message = report_lists.decode(one.subject, one.body)
                    message_id = one.headers.get(MESSAGE_ID)
                    recorded = Recorded(message, one.subject, one.sequence, one.time, message_id)
                    found[source, one.sequence] = list(report_lists.listed(recorded))
    return found
