"""Requests of processes without stages, whose decisions the registrar stores.

An operator or a program decides on the events that it read, and proposes the events that follow. The request names the newest event of each scope, so
that the registrar stores it only if nothing has changed since. The answer is the commit that takes the request.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from hmac import compare_digest
from itertools import count
from typing import Final

from .. import subjects
from ..domain.commit import Commit
from ..domain.errors import TocsinError
from ..domain.events import ChangeRequest, Message, ProposedEvent
from ..domain.ids import keyed_digest
from ..ports import Append, Clock, InputLog, LogUnavailable, Publish, SequenceConflict, Written
from ..subjects import Stream

MAX_EVENTS: Final = 256
MAX_BYTES: Final = 524_288
"""Bytes of the events of a request."""
WAIT_S: Final = 15.0
"""Seconds after which a request waits on without its publisher."""
KNOWN_FOR: Final = timedelta(hours=12)
"""How long the events of a request count as the newest of a dead letter that left the fold: a newer event stays a day."""
REGISTRAR: Final = "registrar"
"""The stage that decides on requests."""
CHANGES: Final = subjects.filter_for("change")
"""The filter over requests."""
_BEGUN_BY_STAGES: Final = ("execution.", "dead-letter.")
"""The beginnings of scopes to which only stages add the first event."""


class RequestWaits(LogUnavailable):
    """A request is stored, and no stage has decided on it yet."""

    code = "request-waits"

    def __init__(self, about: str) -> None:
        super().__init__(
            f"The request about {about} is stored and waits, because no stage decided on it within {WAIT_S:.0f} seconds. "
            "It is carried out when the registrar runs; run `tocsin doctor`."
        )


class RequestTooLarge(TocsinError):
    """A request has more events than a stage stores at once."""

    code = "request-too-large"


def request_of(key: bytes, write: Append, clock: Clock, *names: str | int) -> ChangeRequest:
    """Return the request for a decision.

    `key`: the key of the installation. `names` distinguish the request from every other.

    Raises:
        RequestTooLarge: the decision has too many events, or too many bytes.
    """
    events = tuple(ProposedEvent(subject=subjects.subject_of(one), body=one.encode().decode()) for one in write.events)
    size = sum(len(event.body.encode()) for event in events)
    if len(events) > MAX_EVENTS or size > MAX_BYTES:
        raise RequestTooLarge(
            f"a request of {len(events):,} events has {size:,} bytes; at most {MAX_EVENTS:,} events and {MAX_BYTES:,} bytes are "
            "allowed. Divide it."
        )
    since = clock.now()
    request = ChangeRequest(
        about=write.scope.split(".")[1],
        id=keyed_digest(key, "change-id", *names),
        events=events,
        expect={write.scope: write.expect},
        since=since,
        proof="",
    )
    return request.changed(proof=_proof(key, request))


def events_of(key: bytes, subject: str, request: ChangeRequest) -> tuple[Message, ...] | str:
    """Return the events of a request, or the reason why it is not genuine."""
    if not compare_digest(request.proof.encode(), _proof(key, request).encode()):
        return "its proof is not by the key of this installation"
    if subject != subjects.subject_of(request):
        return "it has the subject of another request"
    try:
        events = tuple(subjects.decode(event.subject, event.body.encode()) for event in request.events)
    except subjects.DecodeError as error:
        return str(error)
    return _mismatch(request, events) or events


def _mismatch(request: ChangeRequest, events: Sequence[Message]) -> str | None:
    """Return why the events are not the events that the request names."""
    scopes = set(map(subjects.scope_of, events))
    if scopes != request.expect.keys() or any(scope.split(".")[1] != request.about for scope in scopes):
        return "its events are not about the scopes that it names"
    if any(subjects.subject_of(one) != event.subject for one, event in zip(events, request.events, strict=True)):
        return "an event has the subject of another"
    if any(not expect and scope.startswith(_BEGUN_BY_STAGES) for scope, expect in request.expect.items()):
        return "only a stage begins an execution or a dead letter"
    return None


def _proof(key: bytes, request: ChangeRequest) -> str:
    events = (part for event in request.events for part in (event.subject, event.body))
    expect = (part for scope, number in request.expect.items() for part in (scope, number))
    return keyed_digest(key, "change", request.about, request.id, request.since.isoformat(), *expect, "events", *events)


class _Open:
    """A request without an answer."""

    def __init__(self, write: Append) -> None:
        self._write = write
        self._sequence = 0
        """The place of the request in its stream; 0: not known yet."""
        self._early = list[Commit]()
        """The commits that came before the place of the request was known."""
        self.answer: asyncio.Future[Written] = asyncio.get_running_loop().create_future()

    def begin(self, sequence: int) -> None:
        """Note the sequence of the request in its stream."""
        self._sequence = sequence
        for commit in self._early:
            self.take(commit)
        self._early.clear()

    def take(self, commit: Commit) -> None:
        """Answer by a commit, if it takes the request."""
        if not self._sequence:
            self._early.append(commit)
            return
        taken = commit.taken.get(REGISTRAR, {}).get(Stream.REQUESTS)
        if taken is None or not any(first <= self._sequence <= last for first, last in taken.ranges):
            return
        numbers = tuple(
            number
            for number, event in enumerate(commit.events, commit.first)
            if event.cause == f"{Stream.REQUESTS}-{self._sequence}" and event.by == REGISTRAR
        )
        if not self.answer.done():
            conflict = SequenceConflict(f"event {self._write.expect:,} is not the newest of {self._write.scope}")
            self.answer.set_result(Written(numbers) if numbers else Written((), conflict))


class ChangeRequests:
    """The requests of one process, which follows the log while any waits."""

    def __init__(self, inputs: InputLog, key: bytes, clock: Clock, name: str) -> None:
        """`key`: the key of the installation. `name`: a name that no other process has."""
        self._inputs = inputs
        self._key = key
        self._clock = clock
        self._name = name
        self._open: set[_Open] = set()
        self._numbers = count()

    def take(self, commit: Commit) -> None:
        """Answer the requests that a commit takes."""
        for one in self._open:
            one.take(commit)

    async def store(self, writes: Sequence[Append]) -> list[Written]:
        """Have decisions stored; return the result of each, in order."""
        try:
            requests = [request_of(self._key, write, self._clock, self._name, next(self._numbers)) for write in writes]
        except RequestTooLarge as error:
            return [Written((), error) for _ in writes]
        opened = [_Open(write) for write in writes]
        self._open.update(opened)
        try:
            publishes = [Publish(subjects.subject_of(request), request, request.id) for request in requests]
            for one, stored in zip(opened, await self._inputs.write(publishes), strict=True):
                if stored.error is None:
                    one.begin(stored.sequences[0])
                else:
                    one.answer.set_result(stored)
            await asyncio.wait([one.answer for one in opened], timeout=WAIT_S)
        finally:
            self._open.difference_update(opened)
        return [
            one.answer.result() if one.answer.done() else Written((), RequestWaits(write.scope))
            for one, write in zip(opened, writes, strict=True)
        ]
