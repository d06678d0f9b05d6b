"""The page and the JSON document of one execution."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from ...domain import execution, history
from ...domain.dead_letter import attempts_of
from ...domain.events import Attempt
from ...domain.execution import Execution, Step
from ...domain.history import ExecutionRecord, StepRecord
from ...services.operations.lookup import ExecutionMatch
from ..output import event_lines
from ..output.event_lines import FactPage
from ..output.format import local, seconds, state
from ..output.tables import table


@dataclass(frozen=True, slots=True)
class ExecutionDetails:
    """One execution, folded from its events in the log."""

    match: ExecutionMatch
    record: ExecutionRecord
    """Its row in the history, as of the last event in the log."""
    state: Execution
    attempts: tuple[Attempt, ...]

    @classmethod
    def of(cls, match: ExecutionMatch) -> "ExecutionDetails":
        """Fold the events of an execution."""
        record = history.fold({}, match.facts)[match.execution_id]
        return cls(match, record, execution.fold(match.facts), attempts_of(match.facts))

    @property
    def duration_s(self) -> float | None:
        """Seconds from the first event to the end."""
        ended_at = self.record.completed_at
        return None if ended_at is None else (ended_at - self.match.facts[0].time).total_seconds()


def as_json(details: ExecutionDetails) -> dict[str, object]:
    """Return the JSON document of an execution."""
    record, duration_s = details.record, details.duration_s
    return {
        "execution_id": record.execution_id,
        "job": record.job,
        "status": record.status,
        "trigger": record.trigger,
        "scheduled_time": record.scheduled_time,
        "ended_at": record.completed_at,
        "duration_ms": None if duration_s is None else round(duration_s * 1_000),
        "fence": details.state.fence,
        "steps": {name: _step_as_json(step, details.state.steps.get(name)) for name, step in record.steps.items()},
        "attempts": details.attempts,
        "facts": [event_lines.as_json(recorded) for recorded in details.match.facts],
    }


def _step_as_json(step: StepRecord, folded: Step | None) -> dict[str, object]:
    return {
        "status": step.status,
        "attempt": step.attempt,
        "next_attempt_at": folded.next_attempt_at if folded and step.status == "running" else None,
        "error": folded.error if folded else None,
        "result": folded.result if folded else None,
    }


def page(details: ExecutionDetails) -> list[RenderableType]:
    """Return the terminal page of an execution."""
    record = details.record
    took = f", took {seconds(details.duration_s)}" if details.duration_s is not None else ""
    heading = Text.assemble((record.job, "bold"), "  ", state(record.status), took)
    origin = Text(f"{record.trigger}, scheduled for {local(record.scheduled_time)}", style="dim")
    lines: list[RenderableType] = [heading, Text(record.execution_id, style="dim"), origin]
    if record.steps:
        rows = [_step_row(name, step, details.state.steps.get(name)) for name, step in record.steps.items()]
        lines += [Text(), table(("STEP", "STATUS", "ATTEMPT", "ERROR"), rows, empty="")]
    if details.attempts:
        lines += [Text(), attempts_table(details.attempts)]
    return [*lines, Text(), FactPage(details.match.facts)]


def _step_row(name: str, step: StepRecord, folded: Step | None) -> tuple[object, ...]:
    is_waiting = folded is not None and folded.next_attempt_at is not None and step.status == "running"
    retry = f"retry at {local(folded.next_attempt_at)}" if folded and is_waiting else ""
    return Text(name, style="bold"), state(step.status), step.attempt or "", step.error or retry


def attempts_table(attempts: Iterable[Attempt]) -> RenderableType:
    """Return a table of attempts: one row each, in the order of their start."""
    headings = ("ATTEMPT", "STARTED", "TOOK", "WORKER", "ERROR")
    return table(headings, [_attempt_row(attempt) for attempt in attempts], empty="no attempts", least=("WORKER",))


def _attempt_row(attempt: Attempt) -> tuple[object, ...]:
    started_at = attempt.started_at or attempt.dispatched_at
    took = (attempt.ended_at - started_at).total_seconds() if attempt.ended_at and started_at else None
    error = f"{attempt.error.type}: {attempt.error.message}" if attempt.error else ""
    return f"{attempt.step} #{attempt.attempt}", attempt.started_at, seconds(took), attempt.worker, error
