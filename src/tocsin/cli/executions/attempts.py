"""The attempts of an execution, as a table."""

from collections.abc import Iterable

from rich.console import RenderableType

from ...domain.events import Attempt
from ..output.format import seconds
from ..output.tables import table


def attempts_table(attempts: Iterable[Attempt]) -> RenderableType:
    """One line an attempt, in the order of their beginning."""
    headings = ("ATTEMPT", "STARTED", "TOOK", "WORKER", "ERROR")
    return table(headings, [_row(attempt) for attempt in attempts], empty="no attempts are known", least=("WORKER",))


def _row(attempt: Attempt) -> tuple[object, ...]:
    begun = attempt.started_at or attempt.dispatched_at
    took = (attempt.ended_at - begun).total_seconds() if attempt.ended_at and begun else None
    error = f"{attempt.error.type}: {attempt.error.message}" if attempt.error else ""
    return f"{attempt.step} #{attempt.attempt}", attempt.started_at, seconds(took), attempt.worker, error
