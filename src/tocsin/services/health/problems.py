"""The problems of an installation: a sentence for each defect that its status shows.

`tocsin doctor` examines more, and says what to do about each.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...domain.text import counted
from ..unserved import line_of

if TYPE_CHECKING:  # the status includes its problems
    from .status import Status


def problems_of(seen: "Status") -> tuple[str, ...]:
    """Return the problems that a status shows, the gravest first."""
    return (
        *_unreadable(seen),
        *_leaders(seen),
        *_queues(seen),
        *_shards(seen),
        *_foreign(seen),
        *_unread(seen),
        *_unheard(seen),
    )


def _unreadable(seen: "Status") -> Iterator[str]:
    """Yield a sentence for each part that is missing or does not answer."""
    missing = [name for name, stream in seen.streams.items() if stream is None]
    if missing:
        yield f"missing: {', '.join(missing)}. Run `tocsin init`."
    for part, reason in seen.troubles.items():
        yield f"unknown: {part}: {reason}"


def _leaders(seen: "Status") -> Iterator[str]:
    """Yield a sentence for each late lease and each clock that is not credible."""
    for lease in seen.leases or ():
        if lease.is_last_resort:
            yield f"no candidate for `{lease.name}` has a credible clock: {lease.holder} leads as the last resort"
        if (since := lease.lateness(seen.at)) is not None:
            yield (
                f"{lease.holder} did not renew the lease `{lease.name}` for {since.total_seconds():.0f} s: nats-server may "
                "store nothing (a full disk?), or the process hangs or was killed; see `tocsin doctor`"
            )
    for candidate in seen.standing_aside:
        offset = f"{candidate.clock_offset:+.3f} s ±{candidate.clock_error:.3f}"
        yield f"{candidate.holder} does not stand for `{candidate.lease}`: its clock differs from the log's by {offset}"


def _queues(seen: "Status") -> Iterator[str]:
    """Yield a sentence for each queue without a worker for its tasks or its functions."""
    unattended = [queue for queue in seen.queues if queue.is_unattended]
    for queue in unattended:
        yield f"{counted(queue.waiting, 'task')} in queue `{queue.name}`, and no worker requests tasks from it"
    for name, number in sorted(seen.unserved.items()):
        if name not in {queue.name for queue in unattended}:
            yield f"{line_of(name, number)}; see `tocsin doctor`"


def _shards(seen: "Status") -> Iterator[str]:
    """Yield a sentence on the shards whose tasks wait because no agent may own them."""
    if seen.shards is not None and seen.shards.without_owner:
        more = ", …" if seen.shards.without_owner > len(seen.shards.listed) else ""
        number = counted(seen.shards.without_owner, "shard")
        yield f"no enabled agent may own {number}, whose tasks wait: {', '.join(seen.shards.listed)}{more}; see `tocsin doctor`"


def _foreign(seen: "Status") -> Iterator[str]:
    """Yield a sentence on the messages that no stage stored."""
    foreign = [report for report in seen.foreign if not report.is_unreadable]
    if foreign:
        messages = counted(len(foreign), "message")
        yield f"{messages} that no stage stored, the first is {foreign[0].place}: run `tocsin repair --dry-run`"


def _unread(seen: "Status") -> Iterator[str]:
    """Yield a sentence on the events that hold up stages because they cannot read them."""
    unreadable = [report for report in seen.foreign if report.is_unreadable]
    if unreadable:
        events = counted(len(unreadable), "event")
        yield f"{events} that this version cannot read, the first is {unreadable[0].place}; see `tocsin doctor`"


def _unheard(seen: "Status") -> Iterator[str]:
    """Yield a sentence on the triggers that hear nothing."""
    if seen.unheard_triggers:
        triggers = counted(len(seen.unheard_triggers), "trigger")
        yield f"{triggers} whose source is not opened or does not exist, the first is {seen.unheard_triggers[0]}; see `tocsin doctor`"
