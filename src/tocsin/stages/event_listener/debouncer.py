"""Holds the events of debounced triggers until no more of their key come.

The window of a key is an entry of the bucket `triggers`, guarded by its revision. A timer of the log ends it. The event is acknowledged after both are
stored. A copy of the stage that stops leaves nothing behind.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from ... import subjects
from ...domain import debounce, ids
from ...domain.debounce import Window, WindowClosed
from ...domain.event_trigger import ignored_event
from ...domain.events import DebounceTimer, EventReference, IgnoredReason, Message, Recorded, Trigger
from ...domain.ledger import Ledger
from ...engine.kinds import ENTRY, LEDGER, LOG_TIME
from ...engine.step import DONE, Later, Put, Ref, Send, States, Step, again, done, wait
from ...ports import EventLog, LogUnavailable, MessageTooLarge, Projections, Publish, RequestRefused, SequenceConflict
from ...subjects import MAX_INPUT_SIZE, Bucket
from .requests import WaitingEvent
from .trigger_index import ActiveTrigger

KEPT_S: Final = 86_400.0
"""How long a window is kept after its end: an event that is delivered late again until then opens no other window."""
PATIENCE: Final = timedelta(seconds=30)
"""How long a timer waits for its window, which a lagging replica may not show yet."""
HEADERS_BYTES: Final = 1_024
"""Bytes for the headers of a request, and for the other fields of its window."""
_RETRY_S: Final = 1.0
_TRIES: Final = 5


class Debouncer:
    """Holds events, and decides on the ends of windows."""

    def __init__(self, log: EventLog, projections: Projections, key: bytes) -> None:
        """`key`: that of the installation."""
        self._log = log
        self._projections = projections
        self._key = key

    # --- events ----------------------------------------------------------------------------------------------------------

    async def hold(self, active: ActiveTrigger, events: Mapping[str, WaitingEvent]) -> dict[str, Exception]:
        """Hold events, by the message id of their requests.

        Return the errors of those that are not held.
        """
        by_key: dict[str, dict[str, WaitingEvent]] = {}
        errors: dict[str, Exception] = {}
        most = min(MAX_INPUT_SIZE, self._log.max_message_bytes) - HEADERS_BYTES
        for message_id, event in events.items():
            if (size := len(event.request.encode())) > most:  # the end of the window could not request it
                errors[message_id] = MessageTooLarge.of(subjects.trigger(active.job), size, most)
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
            before = window = None if entry is None else Window.model_validate_json(entry[0])
            replaced: list[EventReference] = []
            try:
                for event in sorted(events, key=lambda each: (each.place.time, each.place.sequence)):
                    window, passed = debounce.hear(
                        window, event.request, event.place, rule, trigger_id, active.registered_at
                    )
                    replaced += [] if passed is None else [passed]
            except WindowClosed:
                if before is not None:  # the message of its timer may be a dead letter
                    await self._log.delay(DebounceTimer(job=active.job, window=window_id), until=before.until)
                raise
            if window is None:
                return
            if window is not before:
                try:
                    await self._projections.put(
                        Bucket.TRIGGERS, bucket_key, window.encode(), expect=0 if entry is None else entry[1]
                    )
                except SequenceConflict:
                    continue
            if window.request is not None:  # also if the event was delivered again: the timer may be missing
                await self._log.delay(DebounceTimer(job=active.job, window=window_id), until=window.until)
            await self._record(active, key, replaced)
            return
        raise LogUnavailable("other copies of the stage changed the window at every try")

    async def _record(self, active: ActiveTrigger, key: str, replaced: list[EventReference]) -> None:
        records = [self._ignored(active.job, active.durable.name, place, "debounced", key) for place in replaced]
        results = await self._log.write([Publish(each.subject, each.message, each.message_id) for each in records])
        for result in results:
            if isinstance(result.error, LogUnavailable):
                raise result.error

    # --- ends ------------------------------------------------------------------------------------------------------------

    def on_timer(self, recorded: Recorded[Message], states: States) -> Step:
        """Request the execution of a window that is over.

        The window is closed first, so that its request is stored before another event opens the next.
        """
        timer = recorded.message
        if not isinstance(timer, DebounceTimer):
            return DONE
        ref: Ref[tuple[bytes, int] | None] = ENTRY((Bucket.TRIGGERS, subjects.debounce_key(timer.window)))
        states.expect(lambda: (ref, LEDGER(timer.job)))
        entry = states(ref)
        window = None if entry is None else Window.model_validate_json(entry[0])
        if window is None or window.request is None:
            is_early = states(LOG_TIME(None)) - recorded.time < PATIENCE
            return wait(_RETRY_S) if is_early else DONE
        if recorded.time < window.until and not window.is_closed:
            return done(Later(timer, window.until))
        over = Put(ref, debounce.ended(window).encode(), ttl=KEPT_S)
        if not _is_in_force(states(LEDGER(timer.job))[0], window):
            key = _key_of(window.request)
            return done(over, self._ignored(timer.job, window.trigger_id, window.last, "trigger_removed", key))
        if not window.is_closed:
            return again(Put(ref, debounce.closed(window).encode()))
        send = self._request(timer.job, window)
        return done(over) if states.is_sent(send.message_id) else again(send)

    def _request(self, job: str, window: Window) -> Send:
        request = window.request
        if request is None:
            raise AssertionError("a window that has ended requests nothing")
        message_id = ids.keyed_digest(self._key, "debounced", window.trigger_id, request.idempotency_key)
        return Send(subjects.trigger(job), request, message_id)

    def _ignored(self, job: str, trigger_id: str, place: EventReference, reason: IgnoredReason, key: str) -> Send:
        ignored = ignored_event(job, trigger_id, place, reason, key or None)
        message_id = ids.ignored_event_id(self._key, trigger_id, place.stream, place.sequence, place.time)
        return Send(subjects.subject_of(ignored), ignored, message_id)


def _key_of(request: Trigger) -> str:
    return (request.event_trigger and request.event_trigger.key) or ""


def _is_in_force(state: Ledger, window: Window) -> bool:
    """Return whether the trigger of a window is still in force.

    That of a job which was registered again is another.
    """
    definition = state.definition
    if definition is None or not definition.enabled or state.is_paused or not debounce.is_of(window, state.created_at):
        return False
    trigger_ids = {ids.event_durable(definition.name, trigger.source) for trigger in definition.triggers}
    return window.trigger_id in trigger_ids
