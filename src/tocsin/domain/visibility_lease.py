"""Visibility leases: how long a worker over HTTP holds a task without a heartbeat (ojs-worker-protocol)."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pydantic import JsonValue

from .events import Dispatched, LeaseTimer, Started

MAX_LEASE_S: Final = 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Seconds until a claim without a heartbeat ends: of the task, else `asked`, else `usual`."""

    usual: float
    asked: float | None = None
    """Requested by the worker."""

    def of(self, task: Dispatched) -> float:
        seconds = ojs_field(task, "lease")
        return float(seconds) if isinstance(seconds, int | float) else self.asked or self.usual


def lease_span(seconds: float) -> timedelta:
    """Return the time of a lease of `seconds`, at most `MAX_LEASE_S`."""
    return timedelta(seconds=min(seconds, MAX_LEASE_S))


def lease_timer(claim: Started, task: int, *, ends_attempt: bool = False) -> LeaseTimer:
    """Return the timer that ends the lease of a claim.

    `task` is the sequence of its task.
    """
    return LeaseTimer(
        job=claim.job,
        execution_id=claim.execution_id,
        step=claim.step,
        attempt=claim.attempt,
        delivery=claim.delivery,
        task=task,
        ends_attempt=ends_attempt,
    )


def ojs_field(task: Dispatched, name: str) -> JsonValue:
    """Return a field of a task that only the Open Job Spec has."""
    metadata = task.meta.get("ojs")
    return metadata.get(name) if isinstance(metadata, dict) else None
