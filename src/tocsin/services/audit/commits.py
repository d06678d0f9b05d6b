"""The log of commits, judged as it is stored.

The checks cover its chain, its numbers, its positions and its causes.

It reads the messages of the log by themselves, and not as a process of the engine does. The other checks judge the events that it returns, by the
server's time of their commit, so that no leader's clock decides what was late.

Memory: the positions of the stages, the inputs that wait, and the inputs that a stage has not taken yet.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

import msgspec

from ...archive.commit_reader import CommitReader, events_of
from ...archive.stream_reader import Selection, extents, read
from ...domain.commit import (
    RESTORED,
    Commit,
    CommitEvent,
    ForeignBody,
    LogHead,
    OverlappingRanges,
    Position,
    Restoration,
    Seal,
)
from ...domain.log_events import Trying, Waited, Waits, decode, is_log_event
from ...ports import StoredLog, StoredMessage
from ...ports.commit_log import StoredBody
from ...subjects import DECISION_STREAMS, Stream
from .auditor import Auditor
from .check import CLOCK_SKEW, PATIENCE, Violation

EVENTS: Final = "events"
"""The source of positions that are numbers of events."""
LOG: Final = "the log"
Takes: TypeAlias = Callable[[str, str], object]
"""Returns whether a stage takes the inputs with a subject."""


class _Beginning(msgspec.Struct, frozen=True):
    """The violations that a commit has against the commits before it."""

    key: str
    first: int
    previous: str


class _Input(NamedTuple):
    sequence: int
    time: datetime
    subject: str


class CommitRules:
    """Judges the messages of one partition, in their order."""

    def __init__(self, seal: Seal, key: str, *, patience: timedelta = PATIENCE, takes: Takes = lambda *_: True) -> None:
        """`key`: the id of the key of the first commit.

        `patience`: the time for which a stage may leave an input that it `takes`.
        """
        self._takes = takes
        self._seal = seal
        self._head = LogHead(key)
        self._patience = patience
        self._positions: dict[tuple[str, str], Position] = {}
        self._waiting: dict[tuple[str, str, int], set[str]] = {}
        """The subjects of the inputs that wait, by stage, source and place. They count as taken, and are decided later."""
        self._untaken: dict[str, deque[_Input]] = {}
        """By stream: the inputs that some stage has not taken, or that stages took before they were read here."""
        self._foreign: tuple[int, ForeignBody] | None = None
        self._gaps: list[Restoration] = []

    @property
    def number(self) -> int:
        return self._head.number

    def take(self, stored: StoredBody) -> tuple[list[Violation], list[StoredMessage]]:
        """Judge the next message of the log; return the violations, and its events.

        Raises:
            UnknownFormat: a genuine commit is of a newer version.
        """
        violations = list(self._begin(stored)) if not self._head.sequence else []
        before = self._head
        self._head, content = self._seal.read(before, stored.sequence, stored.body)
        if isinstance(content, ForeignBody):
            number, first = self._foreign or (0, content)
            self._foreign = number + 1, first
            return violations, []
        entity = f"commit {stored.sequence:,}"
        if content.at > stored.time + CLOCK_SKEW:
            reason = f"its time is {content.at.isoformat()}, and the server stored it at {stored.time.isoformat()}"
            violations.append(Violation("I2", entity, reason))
        violations += self._judge_causes(content, entity)
        violations += self._judge_positions(content, entity)
        return violations, list(events_of(content, stored.time))

    def is_foreign(self, stored: StoredBody) -> bool:
        """Return whether the next message is no commit of this log."""
        return isinstance(self._seal.read(self._head, stored.sequence, stored.body)[1], ForeignBody)

    def _begin(self, stored: StoredBody) -> Iterator[Violation]:
        """Find the chain where the log begins, although its beginning may be lost."""
        try:
            beginning = msgspec.json.decode(stored.body.partition(b"\n")[2], type=_Beginning)
        except msgspec.MsgspecError:
            return
        if beginning.previous:
            lost = f"commits before sequence {stored.sequence:,} were removed, and no archive holds them"
            yield Violation("I9", LOG, lost)
            self._head = LogHead(beginning.key, stored.sequence - 1, beginning.first - 1, beginning.previous)

    def _judge_causes(self, commit: Commit, entity: str) -> Iterator[Violation]:
        for number, event in enumerate(commit.events, commit.first):
            change = decode(event) if is_log_event(event.subject) else None
            if event.subject == RESTORED:
                self._gaps.append(msgspec.json.decode(event.body, type=Restoration))
            elif not isinstance(change, Waited):
                yield from self._judge_cause(commit, number, event, entity, is_new=not isinstance(change, Trying))
            if isinstance(change, Waits):
                self._waiting.setdefault((change.stage, change.source, change.place), set()).add(change.subject)

    def _judge_cause(
        self, commit: Commit, number: int, event: CommitEvent, entity: str, *, is_new: bool
    ) -> Iterator[Violation]:
        """Judge whether an event rests on an earlier cause that its stage still had open."""
        what, (source, _, place) = f"{event.subject} ({number:,})", event.cause.rpartition("-")
        if event.cause.startswith("@"):
            at = event.cause.removeprefix("@")
            if at and datetime.fromisoformat(at) > commit.at:
                yield Violation("I2", entity, f"{what} was decided on a deadline after the time of its commit")
        elif not place.isdecimal():
            yield Violation("I9", entity, f"{what} names no cause: {event.cause!r}")
        elif source == "0":
            if int(place) >= number:
                yield Violation("I9", entity, f"{what} names a cause that is not before it: {event.cause}")
        elif is_new and (event.by, source, int(place)) not in self._waiting:
            position = self._positions.get((event.by, source), Position())
            if position.has(int(place)):
                yield Violation("I4", entity, f"{what} was decided on {event.cause}, which {event.by} had taken before")

    def _judge_positions(self, commit: Commit, entity: str) -> Iterator[Violation]:
        newest = commit.first + len(commit.events) - 1
        for stage, sources in commit.taken.items():
            for source, taken in sources.items():
                before = self._positions.get((stage, source), Position())
                try:
                    self._positions[stage, source] = before.take(taken)
                except OverlappingRanges as error:
                    yield Violation("I4", entity, f"{stage} took some of {source} twice: {error}")
                if source == EVENTS and taken.ranges and max(last for _, last in taken.ranges) > newest:
                    yield Violation("I3", entity, f"{stage} took events after {newest:,}, which do not exist")
                self._forget(source)
        for event in commit.events:
            if is_log_event(event.subject) and isinstance(change := decode(event), Waited):
                place = change.stage, change.source, change.place
                if left := {one for one in self._waiting.pop(place, ()) if change.subject not in {"", one}}:
                    self._waiting[place] = left

    def read(self, message: StoredMessage) -> None:
        """Take a message of a stream of inputs.

        Each stream comes in its order, before or after the decisions on it.
        """
        source = message.stream.value
        self._untaken.setdefault(source, deque()).append(_Input(message.sequence, message.time, message.subject))
        self._forget(source)

    def _takers(self, source: str) -> list[tuple[str, Position]]:
        return [(stage, position) for (stage, each), position in self._positions.items() if each == source]

    def _forget(self, source: str) -> None:
        untaken = self._untaken.get(source)
        if not untaken:
            return
        takers = self._takers(source)
        while untaken and any(position.has(untaken[0].sequence) for _, position in takers):
            if any(self._lacks(stage, position, untaken[0]) for stage, position in takers):
                return
            untaken.popleft()

    def _lacks(self, stage: str, position: Position, one: _Input) -> bool:
        return not position.has(one.sequence) and bool(self._takes(stage, one.subject))

    def finish(self, until: datetime | None, ends: Mapping[Stream, int]) -> Iterator[Violation]:
        """Judge the inputs that are left.

        `until`: the time (UTC) up to which the log was read. `ends`: the last sequences of the streams of inputs.
        """
        for source, inputs in self._untaken.items():
            for stage, position in self._takers(source):
                late = [
                    one
                    for one in inputs
                    if self._lacks(stage, position, one) and until is not None and until - one.time >= self._patience
                ]
                if late:
                    reason = f"{len(late):,} inputs are not decided, the oldest ({late[0].sequence:,}) since {late[0].time.isoformat()}"
                    yield Violation("I3", f"{stage} on {source}", reason)
        for (stage, source), position in self._positions.items():
            newest = max([position.floor, *(last for _, last in position.above)])
            if source != EVENTS and (end := ends.get(Stream(source), newest)) < newest:
                lost = f"it took inputs up to {newest:,}, and the stream ends at {end:,}: the stream lost its tail"
                yield Violation("I3", f"{stage} on {source}", lost)

    def remarks(self) -> Iterator[str]:
        """Yield the findings that are no violations.

        They are messages that no stage stored, which no reader counts, and numbers that were lost.
        """
        if self._foreign is not None:
            number, first = self._foreign
            yield (
                f"{number:,} of the messages of the log are no commits of this installation, and count for no reader; "
                f"the first is {first.sequence:,}: {first.reason}"
            )
        for gap in self._gaps:
            yield f"the log was restored to event {gap.from_:,}; numbers up to {gap.to:,} are not used again"


async def stored_log(
    auditor: Auditor,
    stored: StoredLog,
    selection: Selection,
    commits: CommitReader,
    *,
    patience: timedelta = PATIENCE,
    takes: Takes,
) -> AsyncIterator[StoredMessage]:
    """Yield the selected messages of a log in the order of time.

    The auditor judges the log itself meanwhile.
    """
    auditor.judge_log()
    upto = await extents(stored, selection)
    rules = CommitRules(await commits.seal(), commits.key, patience=patience, takes=takes)
    inputs = replace(selection, streams=tuple(stream for stream in selection.streams if stream not in DECISION_STREAMS))
    last = max((upto[stream].last for stream in DECISION_STREAMS if stream in upto), default=0)
    messages = _judged(rules, auditor, commits.bodies(), read(stored, inputs, upto), last)
    async with aclosing(messages) as judged:
        async for message in judged:
            if message.stream in selection.streams and selection.has(message):
                yield message
    auditor.found(rules.finish(auditor.until, {stream: extent.last for stream, extent in upto.items()}))
    auditor.remark(rules.remarks())


async def _judged(
    rules: CommitRules,
    auditor: Auditor,
    commits: AsyncIterator[StoredBody],
    inputs: AsyncIterator[StoredMessage],
    last: int,
) -> AsyncGenerator[StoredMessage, None]:
    """Judge the log, and yield its events and the inputs, merged by server time.

    `last`: the number of the event at which it stops, because the inputs of later commits are not read.
    """
    commit, one = await anext(commits, None), await anext(inputs, None)
    while commit is not None or one is not None:
        if commit is not None and (one is None or commit.time < one.time):
            violations, events = rules.take(commit)
            auditor.found(violations)
            for event in events:
                yield event
            commit = await anext(commits, None)
            if commit is not None and rules.number >= last and not rules.is_foreign(commit):
                commit = None
        elif one is not None:
            rules.read(one)
            yield one
            one = await anext(inputs, None)
