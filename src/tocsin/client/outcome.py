"""The outcome of an execution, from its events or its row in the history."""

from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import JsonValue

from ..domain import execution, history
from ..domain.events import Failed, Failure, Refusal, Skipped
from ..domain.execution import Execution
from ..domain.execution_record import ExecutionRecord, Status
from ..ports import ExecutionRow
from ..services.operations.lookup import ExecutionMatch
from .errors import ResultExpired, RunCancelled, RunFailed, RunSkipped

OPEN: Final[frozenset[Status]] = frozenset({"pending", "running"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of an execution, and its results if it has ended."""

    execution_id: str
    status: Status
    results: dict[str, JsonValue] = field(default_factory=dict)
    """The result of each step that completed."""
    last_steps: tuple[str, ...] | None = None
    """The steps on which no other depends; None: the graph is not known any more."""
    error: Failure | None = None
    failed_step: str | None = None
    reason: str | None = None
    refusal: str | None = None
    shard: str | None = None

    @property
    def is_over(self) -> bool:
        """The execution has ended."""
        return self.status not in OPEN

    def value(self) -> JsonValue:
        """Return the result of the last step; of several last steps, a mapping.

        Raises:
            RunFailed, RunCancelled, RunSkipped: the execution did not complete.
            ResultExpired: the history alone has the execution, and it had several steps.
        """
        match self.status:
            case "failed":
                raise RunFailed(
                    self.execution_id, self.error or Failure(type="unknown"), self.failed_step, shard=self.shard
                )
            case "cancelled":
                raise RunCancelled(self.execution_id, self.reason)
            case "skipped":
                text = "" if self.error is None else self.error.message
                raise RunSkipped(self.execution_id, self.reason or "unknown", self.refusal, text)
            case _:
                pass
        if self.last_steps is None:
            raise ResultExpired(self.execution_id, self.results)
        if len(self.last_steps) == 1:
            return self.results.get(self.last_steps[0])
        return {step: self.results.get(step) for step in self.last_steps}


def outcome_of(match: ExecutionMatch) -> Outcome:
    """Return the outcome of an execution, which is not fanned out."""
    record = history.fold({}, match.facts).get(match.execution_id)
    if record is None:
        return Outcome(match.execution_id, "pending")
    state = execution.fold(match.facts)
    outcome = Outcome(
        match.execution_id,
        record.status,
        {name: step.result for name, step in record.steps.items() if step.status == "completed"},
        _last_steps(state, record),
        reason=record.reason,
        shard=record.shard,
    )
    for fact in reversed(match.facts):
        match fact.message:
            case Failed() as end:
                error = end.first_error or Failure(type=end.reason or "unknown")
                return replace(outcome, error=error, failed_step=_failed_step(end, state))
            case Skipped(refusal=Refusal() as refusal):
                error = Failure(type=refusal.code, message=refusal.message)
                return replace(outcome, error=error, refusal=refusal.code)
            case _:
                pass
    return outcome


def outcome_of_row(row: ExecutionRow) -> Outcome:
    """Return the outcome of an execution of which the history alone knows."""
    steps = {name: step for name, step in row.dag_state.items() if isinstance(step, dict)}
    results = {name: step.get("result") for name, step in steps.items() if step.get("status") == "completed"}
    failed_step = next((name for name, step in steps.items() if step.get("status") == "failed"), None)
    text = (row.error or "").removeprefix(f"{row.error_type}: ")
    error = Failure(type=row.error_type or "unknown", message=text, traceback=row.traceback) if row.error else None
    status: Status = row.status  # type: ignore[assignment] # the history stores no other
    last = tuple(steps) if len(steps) <= 1 else None
    refusal = row.error_type if row.reason == "refused" else None
    return Outcome(row.execution_id, status, results, last, error, failed_step, row.reason, refusal, row.shard)


def _last_steps(state: Execution, record: ExecutionRecord) -> tuple[str, ...]:
    if state.requested is None:
        return tuple(record.steps)
    planned = state.requested.plan.steps
    upstream = {name for step in planned for name in step.depends_on}
    return tuple(step.name for step in planned if step.name not in upstream)


def _failed_step(end: Failed, state: Execution) -> str | None:
    if end.step is not None and not end.step_completed:
        return end.step
    return next((name for name, step in state.steps.items() if step.error is not None), None)
