"""Holds the events of debounced triggers until no more of their key come.

The window of a key is an entry of the bucket `triggers`, guarded by its revision. The event is acknowledged after the entry is stored. Each copy of the
stage ends the windows that it knows, its own and those that it finds in the bucket, so that a copy that stops leaves nothing behind.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from math import ceil
from operator import itemgetter
from typing import Final

from pydantic import ValidationError

from ... import subjects, telemetry
from ...domain import debounce, ids
from ...domain.debounce import KeyCount, Window, WindowClosed
from ...domain.definition import Debounce
from ...domain.event_trigger import ignored_event
from ...domain.events import EventReference, IgnoredReason
from ...domain.ledger import Ledger
from ...engine.ledger_reader import LedgerReader
from ...engine.step import Send
from ...ports import (
    Clock,
    EventLog,
    LogUnavailable,
    MessageTooLarge,
    Projections,
    Publish,
    RequestRefused,
    SequenceConflict,
)
from ...subjects import MAX_REQUEST_SIZE, Bucket
from .read_progress import ReadProgress
from .requests import WaitingEvent
from .trigger_index import ActiveTrigger

KEPT_S: Final = 86_400.0
"""How long a window is kept after its end: an event that is delivered late again until then opens no other window."""
TICK_S: Final = 0.25
LIST_INTERVAL_S: Final = 30.0
"""How often a copy of the stage looks for windows of copies that are lost."""
LIST_PAUSE: Final = 100
"""The shortest such pause, in times of the last look's length."""
RETRY: Final = timedelta(seconds=30)
"""The pause before a second look at an unreadable window, or at a window after a refused request."""
HOUR_S: Final = 3_600.0
FULL_INTERVAL_S: Final = 60.0
"""How often it is recorded that a trigger has too many keys."""
MIN_PAUSE: Final = timedelta(milliseconds=200)
"""The shortest pause before a second look at a window with unhandled events."""
MAX_PAUSE: Final = timedelta(seconds=3)
"""The longest such pause. A listener that is far behind has little work with many windows."""
_TRIES: Final = 5

_log = telemetry.get_logger("tocsin.event_listener")


class TooManyKeys(LogUnavailable):
    """A trigger has as many keys as it may have.

    Its event waits longer than others that come again.
    """


class UnreadableWindow(LogUnavailable):
    """The entry of a window is damaged, so the events of its key wait."""

    code = "unreadable-window"


class Debouncer:
    """Holds events, and decides on the ends of windows."""

    def __init__(
        self,
        log: EventLog,
        projections: Projections,
        clock: Clock,
        key: bytes,
        progress: ReadProgress,
        *,
        max_keys: int,
    ) -> None:
        """`key`: the installation's. `max_keys`: the keys of a trigger that may have a window."""
        self._log = log
        self._projections = projections
        self._clock = clock
        self._key = key
        self.progress = progress
        self._max_keys = max_keys
        self._ends: dict[str, datetime] = {}
        """When each known window that is open is looked at (UTC)."""
        self._list_at = float("-inf")
        self._full: dict[str, float] = {}
        """When this process recorded last that a trigger has too many keys."""

    async def hold(self, active: ActiveTrigger, events: Mapping[str, WaitingEvent]) -> dict[str, Exception]:
        """Hold events, by message ids; return the errors of failed events."""
        by_key: dict[str, dict[str, WaitingEvent]] = {}
        errors: dict[str, Exception] = {}
        for message_id, event in events.items():
            if (size := len(event.request.encode())) > MAX_REQUEST_SIZE:  # the end of the window could not request it
                errors[message_id] = MessageTooLarge.of(subjects.trigger(active.job), size, MAX_REQUEST_SIZE)
            else:
                by_key.setdefault(event.origin.key or "", {})[message_id] = event
        for key, group in by_key.items():
            try:
                await self._hold_key(active, key, [*group.values()])
            except WindowClosed as error:
                errors |= dict.fromkeys(group, LogUnavailable(str(error)))
            except (LogUnavailable, RequestRefused) as error:
                errors |= dict.fromkeys(group, error)
        return errors

    async def _hold_key(self, active: ActiveTrigger, key: str, events: list[WaitingEvent]) -> None:
        """Put the events of a key into its window.

        Raises:
            WindowClosed: the window ends at this moment.
            RequestRefused: the window is too large for the server.
            LogUnavailable: the server did not answer.
        """
        rule, trigger_id = active.trigger.debounce, active.durable.name
        if rule is None:
            return
        window_id = ids.debounce_window(trigger_id, key)
        bucket_key = subjects.debounce_key(window_id)
        for _ in range(_TRIES):
            entry = await self._projections.get(Bucket.TRIGGERS, bucket_key)
            before = window = None if entry is None else _window(bucket_key, entry[0])
            replaced: list[EventReference] = []
            try:
                for event in sorted(events, key=lambda each: (each.place.time, each.place.sequence)):
                    window, passed = debounce.hear(
                        window, event.request, event.place, rule, active.job, trigger_id, active.registered_at
                    )
                    replaced += [] if passed is None else [passed]
            except WindowClosed:
                if before is not None:
                    self._ends[window_id] = before.until
                raise
            if window is None:
                return
            if window is not before:
                window = await self._counted(active, rule, key, window, before)
                try:
                    await self._projections.put(
                        Bucket.TRIGGERS, bucket_key, window.encode(), expect=0 if entry is None else entry[1]
                    )
                except SequenceConflict:
                    continue
            if window.request is not None:
                self._ends.pop(window_id, None)  # windows that end at one time do so in the order of their last events
                self._ends[window_id] = window.until
            await self._record(active, key, replaced)
            return
        raise LogUnavailable("other copies of the stage changed the window at every try")

    async def _counted(
        self, active: ActiveTrigger, rule: Debounce, key: str, window: Window, before: Window | None
    ) -> Window:
        """Count the key of a window that opens, and return the window with this hour.

        Raises:
            LogUnavailable: too many keys have a window, so the event waits; or the server did not answer.
        """
        if before is not None and before.request is not None:
            return window  # it was open before
        hour, kept = int(self._clock.now().timestamp() // HOUR_S), ceil((rule.longest + KEPT_S) / HOUR_S) + 1
        bucket_key = subjects.key_count_key(active.durable.name)
        for _ in range(_TRIES):
            entry = await self._projections.get(Bucket.TRIGGERS, bucket_key)
            count = KeyCount(hours={}) if entry is None else KeyCount.model_validate_json(entry[0])
            counted_in = None if before is None else before.hour
            after = debounce.count_key(count, counted_in, hour, kept=kept, most=self._max_keys)
            if after is None:
                await self._record_full(active, key, window.last)
                raise TooManyKeys(f"{self._max_keys:,} keys of a trigger of {active.job} have a debounce already")
            expect, ttl = 0 if entry is None else entry[1], (kept + 1) * HOUR_S
            try:
                await self._projections.put(Bucket.TRIGGERS, bucket_key, after.encode(), expect=expect, ttl=ttl)
            except SequenceConflict:
                continue
            return window.model_copy(update={"hour": hour})
        raise LogUnavailable("other copies of the stage counted keys at every try")

    async def _record_full(self, active: ActiveTrigger, key: str, event: EventReference) -> None:
        """Record that an event waits for fewer keys, once a minute for each trigger."""
        trigger_id, now = active.durable.name, self._clock.monotonic()
        if now - self._full.get(trigger_id, -FULL_INTERVAL_S) < FULL_INTERVAL_S:
            return
        self._full = {id_: at for id_, at in self._full.items() if now - at < FULL_INTERVAL_S}
        self._full[trigger_id] = now
        _log.warning(
            "too many keys; events wait in their stream",
            action="too-many-keys",
            job=active.job,
            source=active.trigger.source,
            keys=self._max_keys,
        )
        ignored = self._ignored(active.job, trigger_id, event, "too_many_keys", key)
        await self._log.write([Publish(ignored.subject, ignored.message, f"{ignored.message_id}.full")])

    async def _record(self, active: ActiveTrigger, key: str, replaced: list[EventReference]) -> None:
        records = [self._ignored(active.job, active.durable.name, place, "debounced", key) for place in replaced]
        results = await self._log.write([Publish(each.subject, each.message, each.message_id) for each in records])
        for result in results:
            if isinstance(result.error, LogUnavailable):
                raise result.error

    async def end_windows(self) -> None:
        """End windows when their time is over, until cancelled."""
        while True:
            try:
                await self.run_once()
            except LogUnavailable as error:
                _log.info("windows wait for JetStream", action="log-unavailable", error=str(error))
            await self._clock.sleep(TICK_S)

    async def run_once(self) -> None:
        """End the windows whose time is over, also windows of lost copies of the stage.

        Raises:
            LogUnavailable: the server did not answer.
        """
        if (began := self._clock.monotonic()) >= self._list_at:
            for key, value in (await self._projections.entries(Bucket.TRIGGERS, subjects.debounce_key("*"))).items():
                with suppress(UnreadableWindow):
                    if (window := _window(key, value)).request is not None:
                        self._ends.setdefault(key.rpartition(".")[2], window.until)
            took = self._clock.monotonic() - began
            self._list_at = began + max(LIST_INTERVAL_S, LIST_PAUSE * took)
        if not any(until <= self._clock.now() for until in self._ends.values()):
            return
        now = await self._log.now()
        for window_id, until in sorted(self._ends.items(), key=itemgetter(1)):
            if until <= now:
                await self._look_at(window_id, now)

    async def _look_at(self, window_id: str, now: datetime) -> None:
        try:
            again = await self._end(window_id, now)
        except SequenceConflict:  # another event came, or another copy ends it
            return
        except (RequestRefused, UnreadableWindow) as error:
            _log.error("window not ended; retrying", action="window-not-ended", error=str(error))
            again = now + RETRY
        if again is None:
            self._ends.pop(window_id, None)
        else:
            self._ends[window_id] = again

    async def _end(self, window_id: str, now: datetime) -> datetime | None:
        """Request the execution of a window that is over.

        Return when it is looked at again; None: it has ended. The window is closed first, so that its request is stored before another event opens the next.
        """
        key = subjects.debounce_key(window_id)
        entry = await self._projections.get(Bucket.TRIGGERS, key)
        window = None if entry is None else _window(key, entry[0])
        if entry is None or window is None or (request := window.request) is None:
            return None
        if now < window.until and not window.is_closed:
            return window.until
        revision, (state, _) = entry[1], await LedgerReader(self._log).load(window.job)
        if not _is_in_force(state, window):
            of_key = (request.event_trigger and request.event_trigger.key) or ""
            send = self._ignored(window.job, window.trigger_id, window.last, "trigger_removed", of_key)
        else:
            if not window.is_closed:
                if behind := (await self.progress.look(window.trigger_id)).behind(window.until):
                    return now + min(max(behind / 10, MIN_PAUSE), MAX_PAUSE)
                closed = window.model_copy(update={"is_closed": True})
                revision = await self._projections.put(Bucket.TRIGGERS, key, closed.encode(), expect=revision)
            message_id = ids.keyed_digest(self._key, "debounced", window.trigger_id, request.idempotency_key)
            send = Send(subjects.trigger(window.job), request, message_id)
        await self._log.publish(send.subject, send.message, message_id=send.message_id)
        ended = window.model_copy(update={"request": None, "replaced": None, "is_closed": False})
        await self._projections.put(Bucket.TRIGGERS, key, ended.encode(), expect=revision, ttl=KEPT_S)
        return None

    def _ignored(self, job: str, trigger_id: str, place: EventReference, reason: IgnoredReason, key: str) -> Send:
        ignored = ignored_event(job, trigger_id, place, reason, key or None)
        message_id = ids.ignored_event_id(self._key, trigger_id, place.stream, place.sequence, place.time)
        return Send(subjects.subject_of(ignored), ignored, message_id)


def _window(key: str, value: bytes) -> Window:
    try:
        return Window.model_validate_json(value)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]["msg"]
        _log.error("window unreadable, left alone", action="unreadable", key=key, error=problem)
        raise UnreadableWindow(f"entry {key} of the bucket `triggers`: {problem}. Restore or delete it") from None


def _is_in_force(state: Ledger, window: Window) -> bool:
    """Return whether the trigger of a window is in force, in the same registration."""
    definition = state.definition
    if definition is None or not definition.enabled or state.is_paused or window.registered_at != state.created_at:
        return False
    trigger_ids = {ids.event_durable(definition.name, trigger.source) for trigger in definition.triggers}
    return window.trigger_id in trigger_ids
