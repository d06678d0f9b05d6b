"""Notifications and their delivery, the newest first, and silences, as operators see them."""

from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from typing_extensions import override

from .. import subjects
from ..domain.definition import is_name
from ..domain.duration import short
from ..domain.events import (
    Actor,
    Message,
    NotificationAbandoned,
    NotificationAttemptFailed,
    NotificationDelivered,
    NotificationPrepared,
    NotificationRaised,
    NotificationSilenced,
    Recorded,
    Silence,
    SilencesDefined,
)
from ..domain.ids import notification_id
from ..domain.notification import Kind
from ..domain.silence import (
    LONGEST_OF_OWNER_S,
    LONGEST_S,
    MAX_OF_NAMESPACES,
    MAX_OF_OWNER,
    MAX_OF_OWNERS,
    MAX_REASON,
    MAX_SILENCES,
    MAX_TAG,
    in_force,
)
from ..domain.text import counted
from ..ports import Clock, EventLog, pages
from ..ports.queries import NotificationQuery, Page
from ..subjects import DecodeError, Stream
from .documents import Document, Take, unlimited
from .operations.errors import NotFound, OperationError

RAISED: Final = subjects.filter_for("notification.raised")
PREPARED: Final = subjects.filter_for("notification.prepared")
MAX_PREPARED: Final = 20_000
"""Messages that are searched for those that stand for the notifications of a page."""

DeliveryState: TypeAlias = Literal["waiting", "sending", "retrying", "delivered", "abandoned", "silenced"]
Raised: TypeAlias = Recorded[NotificationRaised]

FAILED: Final[frozenset[DeliveryState]] = frozenset({"retrying", "abandoned"})
"""States of a notification that a receiver did not accept."""


@dataclass(frozen=True, slots=True)
class NotificationRow:
    """A notification, and its delivery so far."""

    id: str
    job: str
    kind: Kind
    channel: str
    at: datetime
    execution_id: str | None
    reason: str
    state: DeliveryState = "waiting"
    attempts: int = 0
    error: str | None = None
    """The last answer of a receiver that did not accept it."""
    silence: str | None = None
    """The id of the silence that covers it."""
    message: str | None = None
    """The id of the notification whose message stands for it; None: it has a message of its own, or none yet."""


async def notifications(log: EventLog, query: NotificationQuery) -> Page[NotificationRow]:
    """Return a page of notifications.

    A page has fewer rows than `limit` if `failed` leaves some out.
    """
    raised, cursor = await _raised(log, query.before, query.limit)
    rows = await _with_delivery(log, raised)
    return Page([row for row in rows if not query.failed or row.state in FAILED], cursor)


async def _raised(log: EventLog, before: int | None, limit: int) -> tuple[list[Raised], str | None]:
    """Return the newest notifications before a sequence, and the next page's cursor.

    The log is read forwards. So the part of the stream that is read is doubled until it has enough of them.
    """
    first = await anext(_events(log, RAISED, after=0, limit=1), None)
    end = await log.end(Stream.NOTIFICATIONS) + 1 if before is None else before
    if first is None or first.sequence >= end:
        return [], None
    width = 2 * limit
    while True:
        after = max(first.sequence - 1, end - 1 - width)
        found: deque[Raised] = deque(maxlen=limit + 1)
        async for recorded in _events(log, RAISED, after=after):
            if recorded.sequence >= end:
                break
            if isinstance(recorded.message, NotificationRaised):
                found.append(Recorded(recorded.message, recorded.subject, recorded.sequence, recorded.time))
        if len(found) > limit or after < first.sequence:
            page = [*reversed(found)][:limit]
            return page, str(page[-1].sequence) if len(found) > limit else None
        width *= 2


async def _with_delivery(log: EventLog, raised: Sequence[Raised]) -> list[NotificationRow]:
    own = await _histories(log, [subjects.scope_of(each.message) for each in raised])
    waiting = [each for each in raised if not own[subjects.scope_of(each.message)]]
    standing = await _messages(log, waiting)
    others = await _histories(log, {subjects.scope_of(fact) for fact in standing.values()} - own.keys())
    rows = []
    for each in raised:
        fact = each.message
        row = NotificationRow(fact.id, fact.job, fact.kind, fact.channel, fact.at, fact.execution_id, fact.reason)
        message = standing.get(fact.id)
        if message is None:
            rows.append(_followed(row, own[subjects.scope_of(fact)]))
        else:
            scope = subjects.scope_of(message)
            rows.append(replace(_followed(row, own.get(scope) or others.get(scope) or ()), message=message.id))
    return rows


async def _messages(log: EventLog, waiting: Sequence[Raised]) -> Mapping[str, NotificationPrepared]:
    """Return the messages that stand for notifications, by the id of the notification.

    The first message of a channel that goes as far as a notification stands for it. It may be prepared long after. `waiting`: the newest first.
    """
    if not waiting:
        return {}
    lanes: defaultdict[str, list[Raised]] = defaultdict(list)
    for each in waiting:
        lanes[each.message.channel].append(each)
    standing: dict[str, NotificationPrepared] = {}
    number = 0
    async for recorded in _events(log, PREPARED, after=waiting[-1].sequence):
        fact, number = recorded.message, number + 1
        if isinstance(fact, NotificationPrepared):
            lane = lanes.get(fact.channel, [])
            while lane and lane[-1].sequence <= fact.through:
                standing[lane.pop().message.id] = fact
        if len(standing) == len(waiting) or number >= MAX_PREPARED:
            break
    return standing


def _followed(row: NotificationRow, events: Iterable[Recorded[Message]]) -> NotificationRow:
    """Return a notification after events of the notification whose message stands for it."""
    for recorded in events:
        match recorded.message:
            case NotificationPrepared():
                row = replace(row, state="sending")
            case NotificationDelivered() as fact:
                row = replace(row, state="delivered", attempts=fact.attempt, error=None)
            case NotificationAttemptFailed() as fact:
                row = replace(row, state="retrying", attempts=fact.attempt, error=fact.error)
            case NotificationAbandoned() as fact:
                row = replace(row, state="abandoned", attempts=fact.attempt, error=fact.error)
            case NotificationSilenced() as fact:
                row = replace(row, state="silenced", silence=fact.silence)
            case _:
                pass
    return row


async def _histories(log: EventLog, scopes: Iterable[str]) -> dict[str, list[Recorded[Message]]]:
    names = list(scopes)
    try:
        facts = (await log.load_each(*names)).facts if names else []
    except DecodeError:  # a newer version stored an event: the others count
        facts = [[recorded async for recorded in _events(log, name, after=0)] for name in names]
    return {
        name: [recorded for recorded in each if not isinstance(recorded.message, NotificationRaised)]
        for name, each in zip(names, facts, strict=True)
    }


async def _events(log: EventLog, subject: str, *, after: int, limit: int = 1_000) -> AsyncIterator[Recorded[Message]]:
    async for page in pages(log, subject, after=after, limit=limit):
        for recorded in page:
            yield recorded


_DAY_S = 86_400


class WrongSilence(OperationError):
    """A field of a silence is missing, or outside its limits."""

    code = "wrong-silence"


class TooManySilences(OperationError):
    """As many silences as the limit allows are in force."""

    code = "too-many-silences"


class Silences(Document[SilencesDefined, tuple[Silence, ...]]):
    """The silences of an installation; the newest version has the silences in force."""

    kind, scope = SilencesDefined, subjects.silences()

    def __init__(self, log: EventLog, clock: Clock, *, take: Take = unlimited) -> None:
        """`take` takes the room for a new silence alone.

        The end of a silence needs none, because its beginning took room.
        """
        super().__init__(log)
        self._clock = clock
        self._take_new = take

    @override
    def view(self, newest: Recorded[SilencesDefined] | None) -> tuple[Silence, ...]:
        """Return the silences in force, the oldest first."""
        return () if newest is None else in_force(newest.message, self._clock.now())

    async def start(
        self,
        *,
        job: str | None,
        tag: str | None,
        seconds: float,
        reason: str,
        by: Actor | None = None,
        is_operator: bool = True,
        reaches: Callable[[str], bool] | None = None,
    ) -> Silence:
        """Start a silence of a job, a tag or all jobs.

        `is_operator`: the caller operates the installation; the owner of a job may start fewer, each for a day at most.
        `reaches`: whether a job is in the namespaces of the caller; None: the caller is bound to none.

        Raises:
            OperationError: it is too long, has no reason, a long reason or a wrong name, or too many silences are in force.
        """
        _check(job, tag, seconds, reason, longest=LONGEST_S if is_operator else LONGEST_OF_OWNER_S)
        now = self._clock.now()
        silence = Silence(
            id=notification_id(job or "", now, "silence", tag or "", f"{by.full_name if by else ''} {reason}"),
            job=job,
            tag=tag,
            since=now,
            until=now + timedelta(seconds=seconds),
            by=by,
            reason=reason,
        )

        def edit(silences: tuple[Silence, ...]) -> SilencesDefined:
            _check_room(silences, None if is_operator else by)
            if reaches is not None and sum(s.job is not None and reaches(s.job) for s in silences) >= MAX_OF_NAMESPACES:
                raise TooManySilences(
                    f"{MAX_OF_NAMESPACES} silences of jobs in the namespaces of this token are in force: end one of them, or ask an operator"
                )
            return SilencesDefined(silences=(*silences, silence))

        async def take(_: Sequence[Message]) -> None:  # the event repeats the silences of others
            await self._take_new([SilencesDefined(silences=(silence,), by=by, reason=reason)])

        await self.replace(edit, by=by, reason=reason, take=take)
        return silence

    async def end(self, given: str, *, reason: str | None = None, by: Actor | None = None) -> Silence:
        """End a silence; `given`: its id.

        Raises:
            NotFound: no silence in force has this id.
        """
        ended: list[Silence] = []

        def edit(silences: tuple[Silence, ...]) -> SilencesDefined:
            ended[:] = [silence for silence in silences if silence.id == given]
            if not ended:
                raise silence_not_found(given)
            return SilencesDefined(silences=tuple(silence for silence in silences if silence.id != given))

        await self.replace(edit, by=by, reason=reason)
        return ended[0]


def silence_not_found(given: str) -> NotFound:
    """Return the error for an id that no silence in force has."""
    return NotFound(f"no silence {given[:64]!r} is in force: see `tocsin silences list`")


def _check_room(silences: Sequence[Silence], owner: Actor | None) -> None:
    """Check that there is room for a silence.

    `owner`: the caller, if it is not an operator.
    """
    if len(silences) >= MAX_SILENCES:
        raise TooManySilences(
            f"{MAX_SILENCES} silences are in force: end one of them, or silence a tag instead of its jobs"
        )
    if owner is None:
        return
    own = sum(silence.by is not None and silence.by.full_name == owner.full_name for silence in silences)
    if own >= MAX_OF_OWNER:
        raise TooManySilences(
            f"{MAX_OF_OWNER} silences of {owner.full_name} are in force, the most without the permission `cancel`: end one of them"
        )
    if len(silences) >= MAX_OF_OWNERS:
        raise TooManySilences(
            f"{len(silences)} silences are in force, and owners of jobs start none beyond {MAX_OF_OWNERS}: ask an operator"
        )


def _check(job: str | None, tag: str | None, seconds: float, reason: str, *, longest: float) -> None:
    if job is not None and not is_name(job):
        raise WrongSilence(f"{job[:64]!r} cannot be the name of a job")
    if tag is not None and not 0 < len(tag) <= MAX_TAG:
        raise WrongSilence(f"a tag has 1 to {MAX_TAG} characters, not {len(tag):,}")
    if not 0 < seconds <= longest:
        whose = "a silence" if longest == LONGEST_S else "a silence without the permission `cancel`"
        raise WrongSilence(f"{whose} lasts up to {_written(longest)}, not {_written(seconds)}")
    if not reason.strip():
        raise WrongSilence("a silence needs a reason, for those who wait for a notification")
    if len(reason) > MAX_REASON:
        raise WrongSilence(f"the reason has {len(reason):,} characters; write at most {MAX_REASON:,}")


def _written(seconds: float) -> str:
    """Return a length in days where it has whole days, as operators write it."""
    days, rest = divmod(seconds, _DAY_S)
    return counted(int(days), "day") if days and not rest else short(seconds)
