"""The events of a lock that a read of its scope returns."""

from collections.abc import Sequence
from operator import attrgetter

from tocsin.domain import lock
from tocsin.domain.events import Message, Recorded


def needed_events(events: Sequence[Recorded[Message]]) -> list[Recorded[Message]]:
    """Return the events of a scope, oldest first, from which it can be folded.

    These are the newest of each subject, and for a lock all from the oldest execution that waits.
    """
    newest = sorted({recorded.subject: recorded for recorded in events}.values(), key=attrgetter("sequence"))
    if not (first := lock.first_needed(newest)):
        return newest
    return [
        *(recorded for recorded in newest if recorded.sequence < first),
        *(recorded for recorded in events if recorded.sequence >= first),
    ]
