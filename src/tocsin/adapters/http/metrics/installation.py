"""The gauges of an installation, from its status."""

from collections.abc import Collection
from datetime import datetime

from ....services.health.status import Status
from . import catalog
from .catalog import Family
from .queues import gauge as of_queues


def families(status: Status, prefix: str, shown: Collection[str]) -> list[Family]:
    """Return the gauges; a part that did not answer has none.

    `shown`: the queues with series of their own.
    """

    def age(since: datetime | None) -> float:
        return 0.0 if since is None else max(0.0, (status.at - since).total_seconds())

    streams = [stream for stream in status.streams.values() if stream is not None]
    history = [] if status.history is None else [((), age(status.history.since))]
    behind = [] if status.history is None else [((), max(0, status.history.newest - status.history.place))]
    kinds = {"agent": status.agents or {}, **status.outside_workers}
    return [
        catalog.LEASE_RENEWAL.gauge(prefix, (((lease.name,), age(lease.renewed_at)) for lease in status.leases or ())),
        catalog.ASIDE.gauge(prefix, [((), len(status.standing_aside))]),
        catalog.WORKERS.gauge(
            prefix,
            (((kind, state), number) for kind, states in kinds.items() for state, number in states.items()),
        ),
        of_queues(
            catalog.QUEUE_OLDEST, (((queue.name,), age(queue.oldest)) for queue in status.queues), shown, combine=max
        ),
        of_queues(catalog.QUEUE_WORKERS, (((queue.name,), queue.executors) for queue in status.queues), shown),
        catalog.HISTORY_LAG.gauge(prefix, history),
        catalog.HISTORY_BEHIND.gauge(prefix, behind),
        catalog.DURABLE_MESSAGES.gauge(
            prefix,
            (
                ((durable.state.stream, durable.state.name), durable.state.pending + durable.state.ack_pending)
                for durable in status.durables
            ),
        ),
        catalog.DURABLE_OLDEST.gauge(
            prefix,
            (((durable.state.stream, durable.state.name), age(durable.oldest)) for durable in status.durables),
        ),
        catalog.STREAM_BYTES.gauge(prefix, (((stream.name,), stream.bytes) for stream in streams)),
        catalog.STREAM_MAX_BYTES.gauge(
            prefix, (((stream.name,), stream.max_bytes) for stream in streams if stream.max_bytes > 0)
        ),
        catalog.UNREADABLE_EVENTS.gauge(prefix, [((), sum(report.is_unreadable for report in status.foreign))]),
        catalog.UNKNOWN_PARTS.gauge(prefix, [((), len(status.troubles))]),
    ]
