"""The messages of channels: prepared, sent, and sent again.

Only the holder of the lease sends. A message is stored before it is sent, and its answer afterwards. A crash between the two sends it again,
with the same id. No decision waits for a channel: each sends on its own, a few messages at a time, and everything that is raised
meanwhile becomes one message.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypedDict
from urllib.parse import quote

from ... import subjects, telemetry
from ...domain.events import (
    Message,
    NotificationAbandoned,
    NotificationAttemptFailed,
    NotificationDelivered,
    NotificationFact,
    NotificationRaised,
    NotificationSilenced,
    Silence,
    SilencesDefined,
    newest_of,
)
from ...domain.notification import MAX_REASON, Notification, bounded
from ...engine.leader_election import LeaderElection
from ...engine.saved_place import SavedPlace
from ...ports import (
    ChannelRefused,
    Clock,
    EventLog,
    LogUnavailable,
    NotificationChannel,
    OutdatedState,
    Projections,
    StaleRead,
)
from ...subjects import DecodeError, Stream
from .backlog import Backlog, OpenMessage, Waiting
from .decisions import NO_CHANNEL, Decision, decisions

AT_ONCE: Final = 256
"""Decisions that are stored in one write."""
TICK_S: Final = 0.5
"""The time after which the backlog is looked at, although nothing arrives."""
TRIM_S: Final = 30.0
"""The time after which the backlog is compared with its stream, which may have dropped a part of it."""
SOON: Final = timedelta(seconds=5)
"""The time until a message is looked at again whose state could not be read or stored."""
SEND_TIMEOUT_S: Final = 60.0
"""The longest time for one message. A channel ends earlier by itself."""
LEASE_S: Final = 4.0
"""The time to live of the leader lease: nothing is sent for so long after the leader was killed."""
CURSOR: Final = subjects.cursor(Stream.NOTIFICATIONS, subjects.NOTIFIER)

_log = telemetry.get_logger("tocsin.notifier")
_level: Final = logging.getLogger("tocsin.notifier")
_counter: Final = telemetry.meter().create_counter(
    "tocsin_notifications",
    unit="{notification}",
    description="Answers of receivers, and notifications that ended without a message, by `channel` and `outcome`.",
)
_OUTCOMES: Final[Mapping[type[Message], str]] = {
    NotificationDelivered: "delivered",
    NotificationAttemptFailed: "attempt-failed",
    NotificationAbandoned: "abandoned",
    NotificationSilenced: "silenced",
}

FIRST_DELAY: Final = timedelta(seconds=5)
LONGEST_DELAY: Final = timedelta(minutes=15)
GIVE_UP_AFTER: Final = timedelta(hours=24)
"""Time after the newest notification of a message was raised for which the message is sent again."""
LONGEST_WAIT: Final = timedelta(hours=1)
"""The longest wait that a receiver may require."""
_MAX_DOUBLINGS: Final = 12


def next_attempt(attempts: int, raised_at: datetime, now: datetime, wait: float | None = None) -> datetime | None:
    """Return the time of the next attempt, after `wait` seconds at least; None: give up."""
    delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(attempts - 1, _MAX_DOUBLINGS))
    if wait is not None:
        delay = max(delay, timedelta(seconds=min(wait, LONGEST_WAIT.total_seconds())))
    at = now + delay
    return at if at <= raised_at + GIVE_UP_AFTER else None


class _About(TypedDict):
    """The fields that all events about a notification have."""

    job: str
    id: str
    execution_id: str | None


class Sender:
    """Sends what was raised, as long as its process leads."""

    def __init__(
        self,
        log: EventLog,
        projections: Projections,
        leadership: LeaderElection,
        clock: Clock,
        channels: Mapping[str, NotificationChannel],
        *,
        window: float,
        public_url: str | None = None,
    ) -> None:
        """`window`: seconds for which a notification waits for others of its channel."""
        self._log = log
        self.leadership = leadership
        self._clock = clock
        self._channels = channels
        self._window = timedelta(seconds=window)
        self._public_url = public_url
        self._place = SavedPlace(projections, clock, CURSOR)
        self._changed = asyncio.Event()
        self._upto = 0
        self._sending: set[asyncio.Task[None]] = set()
        self.backlog = Backlog()
        self._silences: tuple[Silence, ...] = ()
        self._knows_silences = False
        self.is_complete = False

    async def follow(self) -> None:
        """Follow which notifications are not settled."""
        async for batch in self._log.follow(Stream.NOTIFICATIONS, after=await self._place.load()):
            for recorded in batch.messages:
                self.backlog.learn(recorded)
            self._upto = batch.upto
            self.is_complete = self.is_complete or batch.caught_up
            self._changed.set()

    async def follow_silences(self) -> None:
        """Follow which silences operators define."""
        async for batch in self._log.follow(Stream.LEDGER, subjects.silences(), after=None):
            if (newest := newest_of(batch.messages, SilencesDefined)) is not None:
                self._silences = newest.message.silences
            self._knows_silences = self._knows_silences or batch.caught_up
            self._changed.set()

    async def run(self) -> None:
        """Send what is due, as long as this process leads."""
        for channel in (*self._channels, NO_CHANNEL):
            for outcome in _OUTCOMES.values():
                _counter.add(0, {"channel": channel, "outcome": outcome})  # alerts see the first failure
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                now = await self.leadership.time()
                if now is None or not (self.is_complete and self._knows_silences):
                    continue
                try:
                    await self.run_once(now)
                except (LogUnavailable, OutdatedState) as error:
                    _log.info("notifications wait for JetStream", action="log-unavailable", error=str(error))
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    async def tick(self) -> None:
        """Let `run` look at the time although nothing arrives."""
        while True:
            await self._clock.sleep(TICK_S)
            self._changed.set()

    async def trim(self) -> None:
        """Forget the notifications that the full stream dropped, so that they delay no others."""
        while True:
            await self._clock.sleep(TRIM_S)
            if number := self.backlog.trim(await self._first()):
                _log.warning("notifications dropped by a full stream", action="notifications-lost", number=number)

    async def _first(self) -> int:
        """Return the sequence of the first event of the stream; 0: it is not known."""
        try:
            stored = await self._log.read(subjects.notifications(), limit=1)
        except DecodeError as error:
            return error.sequence or 0
        except LogUnavailable:
            return 0
        return stored[0].sequence if stored else 0

    async def run_once(self, now: datetime) -> None:
        """Prepare the messages that are due at `now` (UTC), and begin to send them."""
        decided = decisions(self.backlog, self._channels, self._silences, now, self._window)
        while decided:
            await self._store(decided[:AT_ONCE])
            del decided[:AT_ONCE]
        for name, lane in self.backlog.lanes.items():
            if name in self._channels:
                for message in lane.due(now):
                    self._begin(self._channels[name], message)
        await self._place.save(lambda: self.backlog.oldest, self._upto)

    def _drop(self, lost: NotificationFact | Waiting) -> None:
        """Forget a notification that its stream dropped."""
        _log.warning("notification dropped by a full stream", action="notification-lost", **_fields(lost))
        self.backlog.forget(lost.id)

    async def _store(self, decided: Sequence[Decision]) -> None:
        for decision in decided:
            if decision.lane is not None:
                decision.lane.preparing = decision.fact.id
        results = await self._log.write([decision.append for decision in decided])
        outdated: list[Decision] = []
        for decision, result in zip(decided, results, strict=True):
            if result.error is None:
                _count(decision.channel, decision.fact)
                _note_outcome(decision.channel, decision.fact, decision.grouped)
                if decision.lane is None:
                    self.backlog.forget(
                        decision.fact.id
                    )  # the event arrives later, and is not to be stored again until then
                continue
            if decision.lane is not None:
                decision.lane.preparing = None
            if isinstance(result.error, OutdatedState):
                outdated.append(decision)
        # Another leader was faster, and what it stored arrives here; or the full stream dropped the notification.
        tails = await self._log.tails(*(decision.append.scope for decision in outdated)) if outdated else []
        for decision, tail in zip(outdated, tails, strict=True):
            if not tail:
                self._drop(decision.fact)

    def _begin(self, channel: NotificationChannel, message: OpenMessage) -> None:
        message.is_busy = True
        task = asyncio.create_task(self._send(channel, message), name=f"notification {message.first.id}")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, channel: NotificationChannel, message: OpenMessage) -> None:
        try:
            raised = await self._raised(message)
            if raised is None:
                self._drop(message.first)
                return
            outcome = await self._outcome(channel, message, raised)
            await self._log.append(outcome, expect=message.sequence)
            _count(raised.channel, outcome)
            _note_outcome(raised.channel, outcome, message.grouped)
        except (LogUnavailable, OutdatedState) as error:
            _log.info(
                "outcome of a notification not stored; sending it again",
                action="log-unavailable",
                error=str(error),
                **_fields(message.first),
            )
            message.due, message.is_busy = self._clock.now() + SOON, False

    async def _raised(self, message: OpenMessage) -> NotificationRaised | None:
        """Return the first notification of a message; None: the stream dropped it."""
        scope = subjects.notification(message.first.job, message.first.id)
        recorded = await self._log.get(scope, message.first.sequence)
        if recorded is not None and isinstance(recorded.message, NotificationRaised):
            return recorded.message
        raised = scope.replace(">", "raised")
        if await self._log.tail(raised) == message.first.sequence:
            raise StaleRead.of(scope)
        return None

    async def _outcome(
        self, channel: NotificationChannel, message: OpenMessage, raised: NotificationRaised
    ) -> NotificationFact:
        """Send a message, and return the event about the answer."""
        attempt = message.attempts + 1
        about = _About(job=raised.job, id=raised.id, execution_id=raised.execution_id)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await channel.send(self._notification(message, raised))
        except ChannelRefused as error:
            reason, is_final, wait = bounded(str(error), MAX_REASON), not error.retryable, error.retry_after
        except Exception as error:  # noqa: BLE001 - the other channels go on, and its text may hold a secret
            reason, is_final, wait = type(error).__name__, False, None
        else:
            return NotificationDelivered(**about, attempt=attempt)
        now = self._clock.now()
        again = None if is_final else next_attempt(attempt, message.newest_at, now, wait)
        _log.warning(
            "notification not accepted",
            action="notification-abandoned" if again is None else "notification-not-accepted",
            channel=raised.channel,
            attempt=attempt,
            error=reason,
            **_fields(raised),
        )
        if again is None:
            return NotificationAbandoned(**about, attempt=attempt, error=reason)
        return NotificationAttemptFailed(**about, attempt=attempt, error=reason, next_attempt_at=again)

    def _notification(self, message: OpenMessage, raised: NotificationRaised) -> Notification:
        return Notification(
            id=raised.id,
            channel=raised.channel,
            job=raised.job,
            kind=raised.kind,
            at=raised.at,
            execution_id=raised.execution_id,
            reason=raised.reason,
            why=raised.why,
            url=_page(self._public_url, raised),
            others=message.others,
            other_jobs=message.other_jobs,
        )


def _count(channel: str, fact: Message) -> None:
    """Count an event that is stored, if it is an outcome."""
    if outcome := _OUTCOMES.get(type(fact)):
        _counter.add(1, {"channel": channel, "outcome": outcome})


def _page(public_url: str | None, raised: NotificationRaised) -> str | None:
    if public_url is None:
        return None
    page = f"jobs/{quote(raised.job)}" if raised.execution_id is None else f"executions/{quote(raised.execution_id)}"
    return f"{public_url.rstrip('/')}/{page}"


def _fields(about: NotificationFact | Waiting) -> dict[str, str]:
    """Return the fields of log lines about a notification."""
    execution_id = {} if about.execution_id is None else {"execution_id": about.execution_id}
    return {"job": about.job, "notification": about.id, **execution_id}


def _note_outcome(channel: str, fact: NotificationFact, grouped: Sequence[Waiting]) -> None:
    """Write the lines about a stored event that stands for a whole message.

    Answers that accept nothing have had a warning already. Each further notification of the message has a line of its own at debug, so that
    the lines about an execution show its notification also if the event names another.
    """
    if isinstance(fact, NotificationDelivered):
        numbers = {"attempt": fact.attempt, "others": len(grouped)}
        _log.info(
            "notification delivered", action="notification-delivered", channel=channel, **numbers, **_fields(fact)
        )
    elif isinstance(fact, NotificationSilenced):
        action = "notification-silenced"
        _log.info("notification silenced", action=action, channel=channel, silence=fact.silence, **_fields(fact))
    if not _level.isEnabledFor(logging.DEBUG):
        return
    for waiting in grouped:
        _log.debug(
            "notification is in the message of another",
            action="notification-grouped",
            outcome=str(getattr(fact, "type", "")),
            channel=waiting.channel,
            message=fact.id,
            **_fields(waiting),
        )
