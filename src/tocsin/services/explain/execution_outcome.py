"""The outcome of an execution, from its events."""

from collections.abc import Sequence

from ...domain import history
from ...domain.events import Cancelled, DeadLettered, Message, Planned, Recorded, Requested, Skipped, unfold
from .answer import Outcome


def outcome_of(execution_id: str, facts: Sequence[Recorded[Message]]) -> Outcome | None:
    """Return the outcome from the events of an execution (oldest first) and its dead letter."""
    record = history.fold({}, facts).get(execution_id)
    if record is None:
        return None
    messages = [recorded.message for recorded in unfold(facts)]
    newest = [message for message in messages if isinstance(message, Requested)][-1:]
    waits = record.status == "pending" and [type(message) for message in newest] == [Planned]
    skipped = next((message for message in messages if isinstance(message, Skipped)), None)
    cancelled = next((message for message in messages if isinstance(message, Cancelled)), None)
    return Outcome(
        execution_id=execution_id,
        status="planned" if waits else record.status,
        attempts=record.attempt if record.has_started else 0,
        started_at=record.started_at if record.has_started else None,
        ended_at=record.completed_at,
        error=record.error,
        active_execution_id=skipped.active_execution_id if skipped else None,
        by=cancelled.by if cancelled else None,
        reason=cancelled.reason if cancelled else skipped.reason if skipped else None,
        dead_lettered=any(isinstance(message, DeadLettered) for message in messages),
    )
