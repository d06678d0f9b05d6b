"""The delay of a start by the schedule, drawn from the id of its execution."""

from datetime import datetime, timedelta

from . import ids
from .events import Plan


def start_delay(execution_id: str, jitter: float) -> float:
    """Return the delay of a start, from 0 up to `jitter` seconds, in whole milliseconds."""
    share = (ids.draw("start", execution_id) + 1) / 2
    return int(share * jitter * 1_000) / 1_000


def delayed(plan: Plan, execution_id: str, jitter: float, decided_at: datetime) -> Plan:
    """Return a plan whose start is delayed after the decision on its instant."""
    delay = start_delay(execution_id, jitter)
    return plan.changed(start_delay=delay, start_at=decided_at + timedelta(seconds=delay))


def begins_at(plan: Plan, admitted_at: datetime) -> datetime:
    """Return when an admitted execution begins, from which its time limits count.

    It begins at once if it waited longer for its lock than the jitter delays it.
    """
    if plan.start_at is None or plan.start_delay is None:
        return admitted_at
    return max(admitted_at, plan.start_at)


def delayed_again(plan: Plan, execution_id: str, jitter: float) -> Plan:
    """Return a delayed plan with the delay of another execution for the same instant."""
    if plan.start_at is None or plan.start_delay is None:
        return plan
    return delayed(plan, execution_id, jitter, plan.start_at - timedelta(seconds=plan.start_delay))
