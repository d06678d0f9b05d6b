"""Metrics of triggers: the outcomes of their events, and how far they are behind.

Both are of this process. Copies of the stage share the durables, so sum the counter and take the maximum of the lag.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from ... import telemetry
from ...domain.events import EventIgnored, Trigger
from ...domain.totals import OTHER
from ...ports import Delivery, Publish
from .trigger_index import ActiveTrigger

_events: Final = telemetry.meter().create_counter(
    "tocsin_trigger_events",
    description="Events of triggers that were handled, by `job` and `outcome`: `started` (also if they wait for others), `ignored` or `refused`.",
)
_lag: Final = telemetry.meter().create_gauge(
    "tocsin_trigger_lag_seconds",
    description="Age of the newest event that was taken for a trigger of a `job`, when it was taken; 0: no event waits.",
)


class TriggerMetrics:
    """Counts events, for a bounded number of jobs."""

    def __init__(self, *, max_jobs: int) -> None:
        """`max_jobs`: jobs with series of their own; all others have one together."""
        self._max_jobs = max_jobs
        self._jobs: set[str] = set()
        self._lags: dict[str, dict[str, float]] = {}
        """By job as it is shown, and durable: seconds."""

    def taken(self, active: ActiveTrigger, deliveries: Sequence[Delivery], now: datetime) -> None:
        """Note the events that were taken together; none: no event waits."""
        newest = max((delivery.time for delivery in deliveries), default=now)
        self._set(active, max(0.0, (now - newest).total_seconds()))

    def stopped(self, active: ActiveTrigger) -> None:
        """Note that a trigger is not read here any more."""
        self._set(active, None)

    def handled(self, active: ActiveTrigger, requests: Sequence[Publish | None]) -> None:
        """Count the events whose requests are stored; None: an event that made no request."""
        job = self._shown(active.job)
        for request in requests:
            _events.add(1, {"job": job, "outcome": _outcome_of(request)})

    def _set(self, active: ActiveTrigger, lag: float | None) -> None:
        job = self._shown(active.job)
        lags = self._lags.setdefault(job, {})
        if lag is None:
            lags.pop(active.durable.name, None)
        else:
            lags[active.durable.name] = lag
        _lag.set(max(lags.values(), default=0.0), {"job": job})

    def _shown(self, job: str) -> str:
        if job not in self._jobs and len(self._jobs) < self._max_jobs:
            self._jobs.add(job)
        return job if job in self._jobs else OTHER


def _outcome_of(request: Publish | None) -> str:
    message = None if request is None else request.message
    if message is None or isinstance(message, EventIgnored):
        return "ignored"
    origin = message.event_trigger if isinstance(message, Trigger) else None
    return "started" if origin is None or origin.refusal_code is None else "refused"
