"""Void foreign messages in the log of commits and unreadable events, one recorded event each.

Nothing is removed. Readers skip a foreign message before and after, so that no fold changes. The event says who looked at the message
and why it may stay, so that the doctor reports it no more.

An unreadable event holds up what rests on it until it is voided; then readers skip it too. Its execution would go on as if the event had not
been stored, and might run a step twice. So an open execution is cancelled first.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime

from .. import subjects
from ..domain import execution
from ..domain.events import Actor, Message, Recorded, Voided
from ..domain.execution import Status
from ..engine.foreign_reports import ForeignReport
from ..ports import Append, EventLog, LogUnavailable, OutdatedState, Projections, StoredLog, StoredMessage, pages
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
