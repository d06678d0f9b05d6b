"""Debouncing: the events of a key start one execution when they stop.

A window opens with the first event of a key. Each later event moves its end, up to a limit, and replaces the request. When the window ends, the
request of its last event is made. A window that ended is kept for a while, because an event may be delivered late again.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from .definition import Debounce
from .errors import TocsinError
from .events import CheckedMessage, EventReference, Trigger


class Window(CheckedMessage):
    """The events of a key that wait for their execution."""

    job: str
    trigger_id: str
    """The digest of the job and the source of its trigger, as in the name of the durable."""
    first: datetime
    """When the first event was stored (UTC)."""
    last: EventReference
    until: datetime
    """When the window ends (UTC), unless another event comes."""
    replaced: EventReference | None = None
    """The event before the last, whose record may not be stored yet."""
    request: Trigger | None = None
    """The request of the last event; absent: the window has ended."""
    is_closed: bool = False
    """True: its request is being stored, and no other event may replace it."""
    registered_at: datetime | None = None
    """The time at which the job was registered first. A job that is registered again has another."""
    hour: int | None = None
    """The hour (since 1970) in which the window opened, as it was counted; None: it is not counted yet."""


class KeyCount(CheckedMessage):
    """The number of keys of a trigger that have a window.

    They are counted by the hour (since 1970) in which their window opened. A window that ended is kept for some hours. After these the server removes it, and its hour does not count any more. So a count that a
    crash left wrong becomes right by itself.
    """

    hours: dict[int, int]


def count_key(count: KeyCount, before: int | None, now: int, *, kept: int, most: int) -> KeyCount | None:
    """Return the count after the window of a key opened; None: there is no room.

    `before`: the hour in which the last window of the key opened, if the hour is still kept; `now`: this hour. `kept`: the hours for which a
    window is kept at most. `most`: the number of keys that may have a window.
    """
    hours = {hour: number for hour, number in count.hours.items() if hour >= now - kept}
    if before in hours:
        hours[before] -= 1
    if sum(hours.values()) >= most:
        return None
    hours[now] = hours.get(now, 0) + 1
    return KeyCount(hours={hour: number for hour, number in hours.items() if number > 0})


class WindowClosed(TocsinError):
    """The execution of a window begins at this moment; the event opens another window soon."""

    code = "window-closed"


class Heard(NamedTuple):
    """The effect of an event on the window of its key."""

    window: Window
    replaced: EventReference | None
    """The event that starts nothing, because a later event of its key does; None: no event was replaced."""


def hear(
    window: Window | None,
    request: Trigger,
    event: EventReference,
    rule: Debounce,
    job: str,
    trigger_id: str,
    registered_at: datetime | None = None,
) -> Heard:
    """Return the window after an event.

    An event that was stored before the last event of the window changes nothing, also after its end: the execution of the window came later.
    An event for a job that was registered again replaces the request of the earlier job, and its wait begins with this event.

    Raises:
        WindowClosed: the event comes while the window ends.
    """
    if window is not None and window.last == event:  # delivered again
        return Heard(window, window.replaced)
    # A stream that was made again repeats sequences, at later times.
    if window is not None and event.sequence <= window.last.sequence and event.time <= window.last.time:
        return Heard(window, event)
    if window is not None and window.is_closed:
        raise WindowClosed("the window of this key ends at this moment")
    open_ = window if window is not None and window.request is not None else None
    first = event.time if open_ is None or open_.registered_at != registered_at else open_.first
    until = min(event.time + timedelta(seconds=rule.quiet), first + timedelta(seconds=rule.longest))
    replaced = None if open_ is None else open_.last
    after = Window(
        job=job,
        trigger_id=trigger_id,
        first=first,
        last=event,
        until=until,
        replaced=replaced,
        request=request,
        registered_at=registered_at,
        hour=None if open_ is None else open_.hour,
    )
    return Heard(after, replaced)
