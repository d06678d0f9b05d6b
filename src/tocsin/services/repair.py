"""Void foreign messages and unreadable events, and end a log with a lost tail.

Each message is voided by one recorded event, and nothing is removed. Readers skip a foreign message before and after, so that no fold
changes. The event names the operator who looked at the message and the reason why it may stay, so that the doctor reports it no more.

An unreadable event holds up what rests on it until it is voided; then readers skip it too. Its execution would go on as if the event had not
been stored, and might run a step twice. So an open execution is cancelled first.

`LogEnd` ends a log after a restore or a server lost its tail: numbers begin above all numbers that were ever given. The commit
`restored {from, to}` may leave a gap in the numbers, and no other may. So lost claims and fences are not given again, and readers know
from which event on the events that they have seen are no longer true.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from .. import subjects
from ..archive.log_archive import LogArchive, commits_of
from ..domain import execution
from ..domain.commit import RESTORED, CommitEvent, LogHead, Restoration, Seal
from ..domain.errors import TocsinError
from ..domain.events import Actor, Message, Recorded, Voided
from ..domain.execution import Status
from ..engine.commit_writer import Chain, CommitWriter
from ..engine.foreign_reports import ForeignReport
from ..ports import Append, Clock, EventLog, LogUnavailable, OutdatedState, Projections, StoredLog, StoredMessage, pages
from ..ports.commit_log import CommitLog, stored_bodies
from ..subjects import COMMITS, DECISION_STREAMS, Bucket, DecodeError, Stream, digest_of

TRIES = 5
"""Attempts to store an event whose scope has foreign messages itself."""


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A foreign message or an unreadable event that is not voided."""

    stream: str
    sequence: int
    subject: str
    stored_at: datetime
    found: str
    """The reason why no stage can have stored it, or why this version cannot read it."""
    digest: str

    @classmethod
    def of(cls, message: StoredMessage, found: str) -> "FoundMessage":
        digest = digest_of(message.body)
        return cls(message.stream, message.sequence, message.subject, message.time, found, digest)

    @property
    def key(self) -> tuple[str, int]:
        return self.stream, self.sequence


async def find(
    log: StoredLog, *, unreadable: bool = False, reported: Collection[ForeignReport] = ()
) -> list[FoundMessage]:
    """Return the foreign messages that are not voided, of those that processes met.

    `unreadable`: return the events instead that this version cannot read, from the log and the archive. `reported`: what processes met: foreign
    messages, and events that no state accepts.
    """
    ends = {stream: (await log.extent(stream)).last for stream in DECISION_STREAMS}
    unapplied = {(one.stream, one.sequence): one.reason for one in reported if one.does_decode}
    found: dict[tuple[str, int], FoundMessage] = {}
    voided: set[tuple[str, int, str]] = set()
    for stream, end in ends.items():
        async for portion in log.messages(stream, after=0, upto=end):
            for message in portion:
                wrong = unreadable and (_unreadable(message) or unapplied.get((stream, message.sequence)))
                if wrong:
                    found[stream, message.sequence] = FoundMessage.of(message, wrong)
                elif message.subject.startswith(_REPAIRS):
                    event = subjects.decode(message.subject, message.body)
                    if isinstance(event, Voided):
                        voided.add((event.stream, event.sequence, event.digest))
    for report in () if unreadable else reported:
        if report.stream == COMMITS:
            place = report.stream, report.sequence
            found[place] = FoundMessage(*place, report.subject, report.stored_at, report.reason, "")
    return [one for key, one in sorted(found.items()) if (*key, one.digest) not in voided]


async def void(
    log: EventLog,
    projections: Projections,
    messages: Collection[FoundMessage],
    *,
    by: Actor | None = None,
    reason: str | None = None,
) -> int:
    """Void foreign messages, and return how many were not voided before.

    Raises:
        LogUnavailable: the log did not answer; the messages before are voided.
    """
    number = 0
    for message in messages:
        number += await _void(log, message, by, reason)
    await _clear(projections, messages)
    return number


async def reasons_to_keep(log: EventLog, messages: Collection[FoundMessage]) -> dict[tuple[str, int], str]:
    """Return why unreadable events may not be voided, by their keys; the others may be.

    Without the beginning of an execution, its input would begin it again. Without the newest event of a lock, a unique key or an
    owner, the event before it would count, and let two in.
    """
    reasons: dict[tuple[str, int], str] = {}
    for message in messages:
        if message.stream != Stream.LOG:
            continue
        scope = subjects.guard_of(message.subject)
        if scope is None or not message.subject.startswith("execution."):
            reasons[message.key] = "it decides who is let in: only a version that reads it may go on"
        elif execution.fold(await _readable(log, scope, messages)).status is Status.UNKNOWN:
            reasons[message.key] = "its execution has no readable beginning, and would begin again"
    return reasons


async def void_unreadable(
    log: EventLog,
    projections: Projections,
    messages: Collection[FoundMessage],
    *,
    by: Actor | None = None,
    reason: str | None = None,
) -> tuple[int, list[str]]:
    """Void unreadable events together with the cancellation of each execution that is open.

    Return how many were not voided before, and the ids of the executions.
    """
    by_scope: dict[str, list[FoundMessage]] = {}
    for message in messages:
        by_scope.setdefault(subjects.guard_of(message.subject) or message.subject, []).append(message)
    number, cancelled = 0, list[str]()
    for scope, of_scope in sorted(by_scope.items()):
        if scope.startswith("execution."):
            voided, id_ = await _void_with(log, scope, of_scope, by, reason)
            number += voided
            cancelled += [] if id_ is None else [id_]
        else:
            number += sum([await _void(log, message, by, reason) for message in of_scope])
    await _clear(projections, messages)
    return number, cancelled


async def _void_with(
    log: EventLog, scope: str, messages: Collection[FoundMessage], by: Actor | None, reason: str | None
) -> tuple[int, str | None]:
    """Cancel an execution by its other events, and void some events, at once.

    The execution must not go on in between.

    Return how many were voided, and the id of the execution; None: it is over.
    """
    number = 0
    for _ in range(TRIES):
        tail = await log.tail(scope)
        state = execution.fold(await _readable(log, scope, messages))
        ends = execution.cancel(state, reason=reason, by=by)
        voids = [Append((_voided(message, by, reason),), 0) for message in messages]
        written = await log.write([*([Append(tuple(ends), tail)] if ends else []), *voids])
        number += sum(one.error is None for one in written[len(written) - len(voids) :])
        for one in written:
            if one.error is not None and not isinstance(one.error, OutdatedState):
                raise one.error
        if not ends or written[0].error is None:
            number += sum([await _void(log, message, by, reason) for message in messages])
            return number, ends[0].execution_id if ends else None
    raise LogUnavailable(f"{scope}: other writers changed it {TRIES} times")


async def _readable(log: EventLog, scope: str, without: Collection[FoundMessage]) -> list[Recorded[Message]]:
    gone = {message.sequence for message in without}
    return [recorded async for page in pages(log, scope) for recorded in page if recorded.sequence not in gone]


def _unreadable(message: StoredMessage) -> str | None:
    """Return why this version cannot read a decision.

    None: it can, or the message is no decision.
    """
    if subjects.guard_of(message.subject) is None:
        return None
    try:
        subjects.decode(message.subject, message.body)
    except DecodeError as error:
        return str(error)[:MAX_SHOWN]
    return None


MAX_SHOWN = 300
"""Characters of the reason why an event is unreadable."""
_REPAIRS = "repair."


def _voided(message: FoundMessage, by: Actor | None, reason: str | None) -> Voided:
    return Voided(**asdict(message), by=by, reason=reason)


async def _void(log: EventLog, message: FoundMessage, by: Actor | None, reason: str | None) -> bool:
    event = _voided(message, by, reason)
    expect = 0
    for _ in range(TRIES):
        try:
            await log.append(event, expect=expect)
        except OutdatedState:
            stored = await log.load(subjects.scope_of(event))
            if any(isinstance(one.message, Voided) and one.message.digest == event.digest for one in stored):
                return False
            expect = stored[-1].sequence if stored else 0
        else:
            return True
    raise LogUnavailable(
        f"message {message.sequence} of {message.stream}: other writers changed its repair {TRIES} times"
    )


async def _clear(projections: Projections, voided: Collection[FoundMessage]) -> None:
    """Remove the entries of voided messages from the bucket that `status` reads."""
    shown = await projections.entries(Bucket.FOREIGN)
    for message in voided:
        key = subjects.foreign_key(message.stream, message.sequence)
        if key in shown:
            await projections.remove(Bucket.FOREIGN, key)


GAP_PER_SECOND: Final = 10_000
"""Numbers that are left out for each second since the end of the log: about the most that stages store."""
LEAST_GAP: Final = 1_000_000
MOST_GAP: Final = 100_000_000
WRITER: Final = "restore"


class LogMovedOn(TocsinError):
    """A process stored a commit while the end of the log was repaired."""

    code = "log-moved-on"


def gap(since: timedelta) -> int:
    """Return how many sequences or numbers are left out after the last known.

    `since`: the time since the last.
    """
    return min(max(LEAST_GAP, int(since.total_seconds() * GAP_PER_SECOND)), MOST_GAP)


class LogEnd:
    """The end of the log of one partition, for a command while no stage runs."""

    def __init__(self, log: CommitLog, partition: int, seal: Seal, key: str, archive: LogArchive, clock: Clock) -> None:
        """`log`: with its archive. `key`: the id of the key of the first commit."""
        self._log = log
        self._partition = partition
        self._seal = seal
        self._key = key
        self._archive = archive
        self._clock = clock

    async def find(self) -> LogHead:
        """Read the log from the end of its archive, and return its end."""
        state, _ = await self._archive.state()
        head = LogHead(self._key)
        async for segment in self._archive.back(commits_of(self._partition), state):
            head = segment.head or head
            break
        chain = Chain(self._seal, head)
        async for body in stored_bodies(self._log, self._partition, after=head.sequence):
            chain.take(body)
        return chain.head

    async def restore(self, head: LogHead, *, at_least: int = 0) -> Restoration:
        """Store the commit after which numbers begin above all given numbers.

        Return the numbers that were left out.

        `head`: the end of the log. `at_least`: a number that was given.

        Raises:
            LogMovedOn: another process stored a commit.
        """
        now = max(self._clock.now(), head.at)
        since = now - head.at if head.number else timedelta()
        lost = Restoration(head.number, max(head.number, at_least) + gap(since))
        event = CommitEvent(RESTORED, "", "@", msgspec.Raw(msgspec.json.encode(lost)))
        draft = self._seal.write(head, writer=WRITER, at=now, taken={}, events=[event], first=lost.to + 1)
        writer = CommitWriter(self._log, self._partition, Chain(self._seal, head), self._clock)
        if (await writer.append(draft)).sequence is None:
            raise LogMovedOn("another process stored a commit. Stop all stages, workers and APIs, and try again.")
        return lost
