"""The gauges of an installation, from its status."""

from collections.abc import Collection, Iterable
from datetime import datetime

from ....services.health.status import Status
from . import catalog
from .catalog import Family, Metric
from .queues import gauge as of_queues


def families(status: Status, prefix: str, shown: Collection[str]) -> list[Family]:
    """Return the gauges; a part that did not answer has none.

    `shown`: the queues with series of their own.
    """

    def gauge(metric: Metric, samples: Iterable[tuple[tuple[str, ...], float]]) -> Family:
        family = metric.gauge(prefix)
        for labels, value in samples:
            family.add_metric(labels, value)
        return family

    def age(since: datetime | None) -> float:
        return 0.0 if since is None else max(0.0, (status.at - since).total_seconds())

    streams = [stream for stream in status.streams.values() if stream is not None]
    history = [] if status.history is None else [((), age(status.history.since))]
    behind = [] if status.history is None else [((), max(0, status.history.newest - status.history.place))]
    kinds = {"agent": status.agents or {}, **status.outside_workers}
    return [
        gauge(catalog.LEASE_RENEWAL, (((lease.name,), age(lease.renewed_at)) for lease in status.leases or ())),
        gauge(catalog.ASIDE, [((), len(status.standing_aside))]),
        gauge(
            catalog.WORKERS,
            (((kind, state), number) for kind, states in kinds.items() for state, number in states.items()),
        ),
        of_queues(
            catalog.QUEUE_OLDEST, (((queue.name,), age(queue.oldest)) for queue in status.queues), shown, combine=max
        ),
        of_queues(catalog.QUEUE_WORKERS, (((queue.name,), queue.executors) for queue in status.queues), shown),
        gauge(catalog.HISTORY_LAG, history),
        gauge(catalog.HISTORY_BEHIND, behind),
        gauge(
            catalog.DURABLE_MESSAGES,
            (
                ((durable.state.stream, durable.state.name), durable.state.pending + durable.state.ack_pending)
                for durable in status.durables
            ),
        ),
        gauge(
            catalog.DURABLE_OLDEST,
            (((durable.state.stream, durable.state.name), age(durable.oldest)) for durable in status.durables),
        ),
        gauge(catalog.STREAM_BYTES, (((stream.name,), stream.bytes) for stream in streams)),
        gauge(
            catalog.STREAM_MAX_BYTES, (((stream.name,), stream.max_bytes) for stream in streams if stream.max_bytes > 0)
        ),
        gauge(catalog.UNREADABLE_EVENTS, [((), sum(report.is_unreadable for report in status.foreign))]),
        gauge(catalog.UNKNOWN_PARTS, [((), len(status.troubles))]),
    ]
