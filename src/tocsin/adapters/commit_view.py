"""The decisions of a process on the log of commits, as an event log.

Followers share the events of each commit, which is read once. An event's sequence is its number. An event that was stored before a follower began is
read from the log of commits again, so that no event stays in memory. A scope is read from the fold if it has it.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import Final, cast

import msgspec

from .. import subjects, telemetry
from ..domain import lock
from ..domain.commit import Commit, CommitEvent, Seal
from ..domain.events import Message, Recorded, Started, Voided
from ..domain.log_events import LeaderChange
from ..engine.broken_keys import Broken
from ..engine.causes import Routes
from ..engine.commit_loop import CommitLoop
from ..engine.commit_writer import Chain
from ..engine.fold import Fold
from ..engine.snapshots import Snapshots
from ..engine.watcher import Shown
from ..ports import Append, Batch, Decode, Loaded, LogUnavailable, Write, Written, check_scopes
from ..ports.commit_log import CommitLog
from ..subjects import STREAM_SUBJECTS, DecodeError, Stream
from .decision_lines import note_decisions
from .log_terms import LogTerms
from .scope_reads import ReadsLog, ScopeReads, SharedEvent, scope_of
from .scope_tails import ScopeTails, are_in_fold, are_open, newest_events, stays

PAUSE_S: Final = 0.5
"""The time after which a follower requests a snapshot again that cannot be read."""
SETTLES_WITHIN_S: Final = 1.0
"""How long a read waits until its own process stores decisions, before it reads the log."""
PORTION: Final = 2_048
"""Events of the past that a follower gets at once."""
MAX_SCOPES: Final = 1_000
"""The most scopes with remembered events that are not in the fold, the last that were read."""
MAX_LEFT: Final = 10_000
"""The most executions that left the fold and have remembered events."""
NEVER: Final = -1
"""The expected number of a write after its events were undone."""
MAX_EVENTS: Final = 2_048
"""The most events of a remembered scope, before only the events that make its state are remembered."""

_log = telemetry.get_logger("tocsin")


class _Feed:
    """The events that a follower has not taken yet."""

    def __init__(self, stream: Stream, filters: Sequence[str], since: int, *, is_early: bool = False) -> None:
        """Begin after the number `since`. `is_early`: take events of the process before their store."""
        self.is_early = is_early
        self.since = self._taken = since
        self.undone: dict[str, None] = {}
        """Scopes with events that the follower has and that are not stored."""
        self.handed: dict[str, None] = {}
        """Such scopes in the batch that the follower takes now."""
        self.filters = filters or STREAM_SUBJECTS[stream]
        self.events: deque[SharedEvent] = deque()
        self.is_stored = False
        """Whether events were stored that its follower saw before."""
        self.changed = asyncio.Event()

    @property
    def newest(self) -> int:
        """The number of its newest event, or else of its beginning."""
        return self.events[-1].sequence if self.events else self._taken

    async def take(self) -> list[SharedEvent]:
        """Wait for events, or until the taken events are stored; take all."""
        while not (self.events or self.undone or self.is_stored):
            self.changed.clear()
            await self.changed.wait()
        self.is_stored, self._taken = False, self.newest
        events, self.events = list(self.events), deque()
        return events


class CommitView:
    """Implement the part of `ports.EventLog` for streams of decisions."""

    loop: CommitLoop
    reader: ReadsLog | None = None
    """The reader of a process without stages; None: its loop reads the log."""

    def __init__(
        self,
        log: CommitLog,
        partition: int,
        seal: Seal,
        snapshots: Snapshots,
        *,
        early: Sequence[str] = (),
    ) -> None:
        """`early`: the filters of the follower that sees events before they are stored."""
        self._early = tuple(early)
        self._commits = log
        self._partition = partition
        self._seal = seal
        self._tails = ScopeTails(self, snapshots)
        self._fold = Fold()
        self._left: dict[str, list[Recorded[Message]]] = {}
        """The events of executions that left the fold just now, as followers read them after their end."""
        self.forgotten = 0
        """The number after which each event of an execution is in the fold, or among these."""
        self.reads = ScopeReads(self)
        self.is_folding = False
        """Whether the fold has the states of all events. An execution that left it counts as archived, a while after its end."""
        self.chain: Chain | None = None
        self._number = 0
        """The number of the newest event that followers got."""
        self._feeds: list[_Feed] = []
        self._has_settled = asyncio.Event()
        """Set when decisions of this process were stored or undone."""
        self._routes = self._early_routes = self._late_routes = Routes[_Feed](())
        self._terms: dict[str, LogTerms] = {}
        """The terms of leaders that were read, by lease."""
        self._known: dict[str, list[Recorded[Message] | DecodeError]] = {}
        self._kinds = set[str]()
        """The first tokens of scopes with remembered events."""

    @property
    def number(self) -> int:
        return self._number

    @property
    def fold(self) -> Fold:
        """The states of this process; a process without stages has none."""
        return self._fold

    @fold.setter
    def fold(self, fold: Fold) -> None:
        self._fold = fold
        fold.departures.on_left = self._keep_left

    def begin(self, chain: Chain, number: int) -> None:
        """Begin after the event with a number, where a chain begins or later."""
        self.chain, self._number, self.forgotten = chain, number, number
        self._known.clear()
        self._kinds.clear()
        self.forget_base()

    def forget_base(self) -> None:
        """Read scopes from a newer snapshot."""
        self._tails.base = None

    @property
    def is_followed(self) -> bool:
        """Whether a part of the process follows events."""
        return bool(self._feeds)

    def _keep_left(self, scope: str, events: list[Recorded[Message]]) -> None:
        self._left[scope] = events
        while len(self._left) > MAX_LEFT:
            oldest = self._left.pop(next(iter(self._left)))
            self.forgotten = max(self.forgotten, *(recorded.sequence for recorded in oldest[-1:]))

    def decided(self, event: CommitEvent, recorded: Recorded[Message], /) -> bool:
        """Show an event that is not stored yet to the followers that decide on it."""
        early = self._early_routes.to(event.subject)
        for feed in early:
            feed.events.append(
                SharedEvent(recorded.sequence, event.subject, recorded.time, event.body, event.cause, recorded)
            )
            feed.changed.set()
        return bool(early) and not isinstance(recorded.message, Started)  # a new task, or a free slot

    def undone(self, scopes: Iterable[str], newest: int, /) -> None:
        """Take back shown decisions of scopes. `newest`: the newest stored event's number."""
        self._has_settled.set()
        early = [feed for feed in self._feeds if feed.is_early]
        known = {scope: newest_events(self.fold, (scope,)) for scope in scopes} if early else {}
        for feed in early:
            covers = subjects.any_of(feed.filters)
            feed.events = deque(one for one in feed.events if one.sequence <= newest)
            for scope, stored in known.items():
                feed.undone[scope] = None
                again = (recorded for recorded in stored if covers(recorded.subject))
                feed.events += (_stored_event(recorded) for recorded in again)
            feed.changed.set()

    def explode(self, shown: Shown, /) -> None:
        if shown.is_own:
            note_decisions(shown)
            self._has_settled.set()
        receivers, kinds = (self._late_routes if shown.is_own else self._routes).to, self._kinds
        for place, event in enumerate(shown.events if self._feeds or kinds else ()):
            feeds, is_known = receivers(event.subject), bool(kinds) and event.subject.partition(".")[0] in kinds
            if feeds or is_known:
                recorded = shown.recorded[place] if shown.recorded else None
                one = SharedEvent(shown.first + place, event.subject, shown.at, event.body, event.cause, recorded)
                for feed in feeds:
                    feed.events.append(one)
                if is_known:
                    self._remember(one)
        self._number = shown.first + len(shown.events) - 1
        for feed in self._feeds:
            feed.is_stored |= shown.is_own and feed.is_early
            if feed.events or feed.is_stored:
                feed.changed.set()

    def _remember(self, one: SharedEvent) -> None:
        """Add an event to its scope, if that is remembered."""
        if (known := self._known.get(scope_of(one.subject))) is not None:
            known.append(one.read_or_error())
            if len(known) > MAX_EVENTS and not any(isinstance(event, DecodeError) for event in known):
                known[:] = _needed(cast("Sequence[Recorded[Message]]", known))

    async def follow(
        self, stream: Stream, *filters: str, after: int | None, decode: Decode = subjects.decode
    ) -> AsyncGenerator[Batch, None]:
        if self.reader is not None:
            await self.reader.begin()
        is_early = self.is_folding and bool(filters) and filters == self._early  # else nothing could be taken back
        async with aclosing(self._follow(stream, filters, after, is_early=is_early)) as batches:
            async for events, caught_up, upto, undone in batches:
                messages = _readable(events, decode)
                yield Batch(messages, caught_up=caught_up, upto=upto, undone=undone, encoded=events)

    async def _follow(
        self, stream: Stream, filters: Sequence[str], after: int | None, *, is_early: bool = False
    ) -> AsyncGenerator[tuple[Sequence[SharedEvent], bool, int, tuple[str, ...]], None]:
        """Yield events, whether all are stored, up to which number, and undone scopes."""
        if after is None and not is_early:
            await self._settled()  # nothing is taken back from a follower that is not early
        feed = _Feed(stream, filters, self._number, is_early=is_early)
        with self._fed(feed):
            takes, past, upto = subjects.any_of(feed.filters), list[SharedEvent](), feed.since
            if after is not None:
                async for event in self.past(takes, after=after, upto=upto):
                    past.append(event)
                    if len(past) >= PORTION:
                        yield past, False, event.sequence, ()
                        past = []
            elif self.is_folding and are_open(feed.filters):
                known = newest_events(self.fold, feed.filters)
                while len(known) > PORTION:
                    past = [*map(_stored_event, known[:PORTION])]
                    del known[:PORTION]
                    yield past, False, past[-1].sequence, ()
                    await asyncio.sleep(0)
                past = [*map(_stored_event, known)]
            else:
                number, known = await self._newest_of(feed.filters, upto) if are_in_fold(feed.filters) else (0, [])
                newest = {one.subject: _stored_event(one) for one in known if one.sequence <= upto}
                async for event in self.past(takes, after=number, upto=upto):
                    newest.pop(event.subject, None)
                    newest[event.subject] = event
                past = [*newest.values()]
            yield past, True, max(upto, after or 0), ()  # another process has read more
            while True:
                newer = [event for event in await feed.take() if event.sequence > (after or 0)]
                feed.handed, feed.undone = feed.undone, {}
                yield newer, True, max(self._number, after or 0), tuple(feed.handed)
                feed.handed = {}

    @contextmanager
    def fed(self, subject: str, events: list[SharedEvent]) -> Iterator[None]:
        """Add the events that come within the block to a list."""
        feed = _Feed(subjects.stream_of(subject), (subject,), self._number)
        with self._fed(feed):
            yield
        events += feed.events

    @contextmanager
    def _fed(self, feed: _Feed) -> Iterator[None]:
        """Hand the events that come within the block to a follower."""
        self._feeds.append(feed)
        self._route()
        try:
            yield
        finally:
            self._feeds.remove(feed)
            self._route()

    async def _newest_of(self, filters: Sequence[str], upto: int) -> tuple[int, list[Recorded[Message]]]:
        """Return the newest events of a snapshot, through any outage."""
        while True:
            try:
                return await self._tails.newest_events(filters, upto)
            except LogUnavailable as error:
                _log.info("a follower waits for JetStream", action="log-unavailable", error=str(error))
                await asyncio.sleep(PAUSE_S)

    def _route(self) -> None:
        early = [(filter_, feed) for feed in self._feeds if feed.is_early for filter_ in feed.filters]
        late = [(filter_, feed) for feed in self._feeds if not feed.is_early for filter_ in feed.filters]
        self._routes, self._early_routes, self._late_routes = Routes([*early, *late]), Routes(early), Routes(late)

    async def past(self, takes: Callable[[str], object], *, after: int, upto: int) -> AsyncGenerator[SharedEvent, None]:
        """Yield events after a number, up to a number, from the nearest known head."""
        async with aclosing(self._past_commits(after, upto)) as commits:
            async for commit in commits:
                for number, event in enumerate(commit.events, commit.first):
                    if after < number <= upto and takes(event.subject):
                        yield SharedEvent(number, event.subject, commit.at, event.body, event.cause)

    async def _past_commits(self, after: int, upto: int) -> AsyncGenerator[Commit, None]:
        """Yield commits with events after a number, up to a number, and some before."""
        if upto <= after or self.chain is None:
            return
        chain = Chain(self._seal, self.chain.heads.before(after))
        async with aclosing(self._commits.follow(self._partition, after=chain.head.sequence)) as batches:
            async for batch in batches:
                for body in batch.bodies:
                    if (commit := chain.take(body)) is not None:
                        yield commit
                if batch.caught_up or chain.head.number >= upto:
                    return

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        by, scopes = telemetry.bound_value("stage") or "api", check_scopes(writes)
        appends = [write for write in writes if isinstance(write, Append)]
        if self.reader is not None:
            return await self.reader.store(appends)
        # Until the follower forgets the undone events, other events may have their numbers.
        undone = {scope for feed in self._feeds for scope in (*feed.undone, *feed.handed)}
        stored = [
            self.loop.propose(by, write.events, expect=NEVER if scope in undone else write.expect)
            for scope, write in zip(filter(None, scopes), appends, strict=True)
        ]
        written: list[Written] = []
        for future in stored:
            try:
                written.append(Written(await future))
            except Exception as error:  # noqa: BLE001 - returned to the caller
                written.append(Written((), error))
        return written

    async def append(self, fact: Message, *, expect: int) -> int:
        [written] = await self.write([Append((fact,), expect)])
        if written.error is not None:
            raise written.error
        return written.sequences[0]

    async def _catch_up(self) -> None:
        """Read all commits that are stored now; a process that decides has its own place."""
        if self.reader is not None:
            await self.reader.catch_up()

    async def _settled(self) -> None:
        """Wait until each decision in the fold is stored."""
        while len(self.fold.journal):
            self._has_settled.clear()
            await self._has_settled.wait()

    async def load(self, scope: str) -> list[Recorded[Message]]:
        await self._catch_up()
        return _needed(await self._events_of(scope))

    async def _known_of(self, scope: str) -> "Sequence[Recorded[Message] | DecodeError]":
        if (known := self._in_memory(scope)) and self._is_unstored(known[-1].sequence):
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLES_WITHIN_S):
                    await self._settled()
            if (known := self._in_memory(scope)) and self._is_unstored(known[-1].sequence):
                known = [event.read_or_error() for event in await self.reads.state(scope) or ()]
        if known is not None:
            return known
        if (read := await self._read_scope(scope)) is None:
            return []  # no stage reads the whole log
        if scope_of(scope.replace("*", "x").replace(">", "x")) == scope:
            self._known[scope] = read
            self._kinds.add(scope.partition(".")[0])
        while len(self._known) > MAX_SCOPES:
            del self._known[next(iter(self._known))]
        return read

    async def _read_scope(self, scope: str) -> "list[Recorded[Message] | DecodeError] | None":
        if not self.is_folding and stays(scope):
            upto, newer = self._number, list[SharedEvent]()
            with self.fed(scope, newer):
                found = await self._tails.standing(scope, upto)
            if found is not None:
                return [*found, *(event.read_or_error() for event in newer if event.sequence > upto)]
        is_over = self.is_folding and scope not in self.fold.numbers and telemetry.bound_value("stage") is not None
        state = await self.reads.state(scope, reads_log=not is_over)
        return None if state is None else [event.read_or_error() for event in state]

    async def _events_of(self, scope: str) -> Sequence[Recorded[Message]]:
        events = list[Recorded[Message]]()
        for one in await self._known_of(scope):
            if not isinstance(one, DecodeError):
                events.append(one)
            elif not await self._is_set_aside(one):
                raise one
        return events

    async def _is_set_aside(self, error: DecodeError) -> bool:
        if (unreadable := error.stored) is None:
            return False
        decided = await self._events_of(scope_of(subjects.voided(unreadable.stream, unreadable.sequence)))
        voided = (one.message for one in decided)
        return any(isinstance(one, Voided) and one.digest == unreadable.digest for one in voided)

    def _in_memory(self, scope: str) -> "Sequence[Recorded[Message] | DecodeError] | None":
        """Return all events of a scope; None: they must be read."""
        if self.is_folding and are_in_fold((scope,)) and type(self.fold.states.get(scope)) is not Broken:
            return newest_events(self.fold, (scope,))
        for known in (self.fold.all_events(scope), self._left.get(scope), self._known.get(scope)):
            if known is not None:
                return known
        return None

    def _is_unstored(self, number: int | None) -> bool:
        """Return whether an event is not stored, and the caller is no stage."""
        return (number or 0) > self._number and telemetry.bound_value("stage") is None

    async def load_each(self, *scopes: str) -> Loaded:
        await self._catch_up()
        upto = self._number
        known = [await self._events_of(scope) for scope in scopes]
        return Loaded([_needed(events) for events in known], upto if any(known) else 0)

    def newest_known(self, scope: str) -> int | None:
        left = self._left.get(scope)
        return self.fold.numbers.get(scope, left[-1].sequence if left else None)

    async def tail(self, scope: str) -> int:
        await self._catch_up()
        if (number := self.newest_known(scope)) is not None and not self._is_unstored(number):
            return number
        if not self.is_folding and are_in_fold((scope,)) and "*" in scope:
            return await self._tails.newest_of(scope, self._number)
        if "*" in scope or scope_of(scope) != scope:
            newest = await self.reads.last(scope)
            return 0 if newest is None else newest.sequence
        return max((one.sequence or 0 for one in await self._known_of(scope)), default=0)

    async def end(self, stream: Stream) -> int:  # noqa: ARG002 - all streams share their numbers
        await self._catch_up()
        return self._number

    async def has_newer(self, *filters: str, after: int) -> bool:
        await self._catch_up()
        for feed in self._feeds:  # a follower has its events
            if feed.filters == filters and feed.since <= after:
                return feed.newest > after
        async with aclosing(self.past(subjects.any_of(filters), after=after, upto=self._number)) as events:
            return await anext(events, None) is not None

    async def last(self, subject: str) -> Recorded[Message] | None:
        await self._catch_up()
        return await self.reads.last(subject)

    async def get(self, subject: str, sequence: int) -> Recorded[Message] | None:
        await self._catch_up()
        known = self.fold.all_events(scope_of(subject)) or ()
        one = next((one for one in known if one.sequence == sequence and not self._is_unstored(sequence)), None)
        return await self.reads.get(subject, sequence) if one is None else one

    async def read(self, subject: str, *, after: int = 0, limit: int = 1_000) -> list[Recorded[Message]]:
        await self._catch_up()
        return await self.reads.readable(subject, after=after, limit=limit)

    async def leaders(self, lease: str, *, after: int = 0) -> list[LeaderChange]:
        """Return the changes of the leader of a stage after a number."""
        await self._catch_up()
        if (terms := self._terms.get(lease)) is None or after < terms.after:
            terms = self._terms[lease] = LogTerms(lease, after)
        async with aclosing(self._past_commits(terms.upto, self._number)) as commits:
            async for commit in commits:
                terms.take(commit)
        return [change for change in terms.changes if change.number > after]


def _needed(events: Sequence[Recorded[Message]]) -> list[Recorded[Message]]:
    """Return the events that are enough to fold a scope.

    These are the newest of each subject, and all that locks need.
    """
    newest = {recorded.subject: recorded for recorded in events}
    first = lock.first_needed(sorted(newest.values(), key=lambda recorded: recorded.sequence)) or sys.maxsize
    return [one for one in events if one.sequence >= first or newest[one.subject] is one]


def _stored_event(recorded: Recorded[Message]) -> SharedEvent:
    body = msgspec.Raw(recorded.message.encode())
    return SharedEvent(recorded.sequence, recorded.subject, recorded.time, body, recorded=recorded)


def _readable(events: Iterable[SharedEvent], decode: Decode) -> list[Recorded[Message]]:
    messages = list[Recorded[Message]]()
    for event in events:
        try:
            messages.append(event.read(decode))
        except DecodeError as error:
            _log.warning("event unreadable, skipped", action="unreadable", number=event.sequence, error=str(error))
    return messages
