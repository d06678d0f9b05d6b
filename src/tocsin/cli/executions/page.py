"""Pages and JSON documents of an execution, and of an occurrence that fanned out."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from pydantic import JsonValue
from rich.console import RenderableType
from rich.text import Text

from ...domain import execution, history
from ...domain.dead_letter import attempts_of
from ...domain.definition import upstream_jobs
from ...domain.events import Attempt, EventReference, PlannedStep
from ...domain.execution import Execution
from ...domain.execution_record import ExecutionRecord, StepRecord
from ...domain.text import printable
from ...services.hold_ups import HoldUp
from ...services.operations.execution_output import ExecutionOutput, Line, Progress
from ...services.operations.lookup import ExecutionMatch, FanOut, ShardRun, fanned_out
from ..output import event_lines
from ..output.event_lines import FactPage
from ..output.format import local, seconds, state
from ..output.tables import table, unique_beginnings

MAX_VALUE_LENGTH: Final = 200
"""Characters of an input or a result on a terminal page."""
SHOWN_LINES: Final = 10
"""Logged lines on the page of an execution."""
_LEVELS: Final = {"debug": "dim", "warning": "yellow", "error": "red", "critical": "red"}


@dataclass(frozen=True, slots=True)
class ExecutionDetails:
    """One execution, folded from its events in the log."""

    match: ExecutionMatch
    record: ExecutionRecord
    """Its row in the history, as of the last event in the log."""
    state: Execution
    attempts: tuple[Attempt, ...]
    output: ExecutionOutput | None = None
    """Its last lines and the progress of its steps, if they could be read."""
    hold_ups: tuple[HoldUp, ...] = ()
    """What holds back its tasks that wait for a worker."""

    @classmethod
    def of(
        cls,
        match: ExecutionMatch,
        output: ExecutionOutput | None = None,
        hold_ups: tuple[HoldUp, ...] = (),
    ) -> "ExecutionDetails":
        record = history.fold({}, match.facts)[match.execution_id]
        return cls(match, record, execution.fold(match.facts), attempts_of(match.facts), output, hold_ups)

    def progress_of(self, step: str) -> Progress | None:
        """Return the last report of the step's handler."""
        return self.output.progress.get(step) if self.output else None

    @property
    def event(self) -> EventReference | None:
        """The event that started it, the first of a batch; None: none did."""
        return None if self.state.requested is None else self.state.requested.event

    def planned(self, step: str) -> PlannedStep | None:
        """Return a step of the plan; None: no readable plan names it."""
        steps = self.state.requested.plan.steps if self.state.requested else ()
        return next((planned for planned in steps if planned.name == step), None)

    def input_of(self, step: str) -> Mapping[str, JsonValue] | None:
        """Return the input that a step gets besides the results of earlier steps."""
        planned = self.planned(step)
        if planned is None or self.state.requested is None:
            return None
        return self.state.requested.plan.input if planned.input is None else planned.input


def as_json(details: ExecutionDetails) -> dict[str, object]:
    record = details.record
    return {
        "execution_id": record.execution_id,
        "job": record.job,
        "status": record.status,
        "waits_for": details.match.waits_for,
        "acknowledgements": execution.acknowledgements(details.state),
        "held_up_by": [asdict(hold_up) for hold_up in details.hold_ups],
        "trigger": record.trigger,
        "scheduled_time": record.scheduled_time,
        "event": details.event,
        "started_at": record.shown_start,
        "ended_at": record.completed_at,
        "duration_ms": record.duration_ms,
        "fence": details.state.fence,
        "shard": record.shard,
        "occurrence_id": record.occurrence_id,
        "start_delay_ms": record.start_delay_ms,
        "steps": {name: _step_as_json(details, name, step) for name, step in record.steps.items()},
        "attempts": details.attempts,
        "lines": [asdict(line) for line in details.output.lines] if details.output else [],
        "facts": [event_lines.as_json(recorded) for recorded in details.match.events],
    }


def _step_as_json(details: ExecutionDetails, name: str, step: StepRecord) -> dict[str, object]:
    step_state, plan_step = details.state.steps.get(name), details.planned(name)
    took = _took(step)
    return {
        "status": step.status,
        "queue": plan_step.queue if plan_step else None,
        "function": plan_step.function if plan_step else None,
        "worker": step.worker,
        "attempt": step.attempt,
        "progress": None if (progress := details.progress_of(name)) is None else asdict(progress),
        "started_at": step.started_at,
        "ended_at": step.ended_at,
        "duration_ms": None if took is None else round(took * 1_000),
        "next_attempt_at": step_state.next_attempt_at if step_state and step.status == "running" else None,
        "input": details.input_of(name),
        "error": step_state.error if step_state else None,
        "result": step.result if step_state is None or step_state.result is None else step_state.result,
    }


def _took(step: StepRecord) -> float | None:
    return (step.ended_at - step.started_at).total_seconds() if step.started_at and step.ended_at else None


def page(details: ExecutionDetails) -> list[RenderableType]:
    record = details.record
    took = f", took {seconds(record.duration_ms / 1_000)}" if record.duration_ms is not None else ""
    wait = details.match.waits_for
    reasons = "; ".join(dict.fromkeys(hold_up.message for hold_up in details.hold_ups))
    waiting = f", waits for {execution.WAITS[wait]}" if wait else ""
    if wait == "dependency":
        waiting += f": {', '.join(upstream_jobs(details.state.request.plan.depends_on))}"
    if (standing := execution.acknowledgements(details.state)) is not None:
        waiting += f": {standing}"
    heading = Text.assemble((record.job, "bold"), "  ", state(record.status), took, waiting, reasons and f": {reasons}")
    shard = f", on shard {record.shard}" if record.shard is not None else ""
    origin = Text(f"{record.trigger}, scheduled for {local(record.scheduled_time)}{shard}", style="dim")
    lines: list[RenderableType] = [heading, Text(record.execution_id, style="dim"), origin]
    if (event := details.event) is not None:
        stored = f"{event.sequence} of {event.stream}, stored {local(event.time)}"
        lines.append(Text(f"started by the event {printable(event.subject)}, {stored}", style="dim"))
    if record.steps:
        rows = [_step_row(details, name, step) for name, step in record.steps.items()]
        headings = ("STEP", "STATUS", "QUEUE", "FUNCTION", "WORKER", "ATTEMPT", "TOOK", "ERROR")
        lines += [Text(), table(headings, rows, empty="", least=("WORKER", "QUEUE", "FUNCTION")), *_values(details)]
    if details.attempts:
        lines += [Text(), attempts_table(details.attempts), *_past_hold_ups(details.attempts)]
    lines += _last_lines(details)
    return [*lines, Text(), FactPage(details.match.events)]


def _last_lines(details: ExecutionDetails) -> list[RenderableType]:
    logged = details.output.lines if details.output else ()
    if not logged:
        return []
    left_out = len(logged) - SHOWN_LINES
    hint = f"{left_out} more lines: tocsin executions logs {details.record.execution_id}"
    return [Text(), *([Text(hint, style="dim")] if left_out > 0 else []), *map(line_of, logged[-SHOWN_LINES:])]


def line_of(line: Line) -> Text:
    place = f"{local(line.time)} {line.step} #{line.attempt} "
    return Text.assemble((place, "dim"), (f"{line.level:<8} ", _LEVELS.get(line.level, "")), line.text)


def _step_row(details: ExecutionDetails, name: str, step: StepRecord) -> tuple[object, ...]:
    step_state, plan_step = details.state.steps.get(name), details.planned(name)
    is_waiting = step_state is not None and step_state.next_attempt_at is not None and step.status == "running"
    retry = f"retry at {local(step_state.next_attempt_at)}" if step_state and is_waiting else ""
    return (
        Text(name, style="bold"),
        state(step.status),
        plan_step.queue if plan_step else "",
        plan_step.function if plan_step else "",
        step.worker or "",
        step.attempt or "",
        seconds(_took(step)),
        step.error or retry,
    )


def _values(details: ExecutionDetails) -> list[RenderableType]:
    """Return lines for inputs, results, and the progress of steps that have not completed."""
    lines: list[RenderableType] = []
    for name, step in details.record.steps.items():
        if (progress := details.progress_of(name)) is not None and step.status != "completed":
            lines.append(Text.assemble((f"{name} progress ", "dim"), f"{progress.fraction:.0%} {progress.message}"))
        step_state = details.state.steps.get(name)
        result = step_state.result if step_state and step_state.result is not None else step.result
        for kind, value in (("input", details.input_of(name) or None), ("result", result)):
            if value is not None:
                text = json.dumps(value, ensure_ascii=False)
                shown = text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}… (-o json shows all)"
                lines.append(Text.assemble((f"{name} {kind} ", "dim"), shown))
    return lines


def _past_hold_ups(attempts: Iterable[Attempt]) -> list[RenderableType]:
    """Return a line for each attempt that limits, rates or pauses held up."""
    return [
        Text.assemble((f"{attempt.step} #{attempt.attempt} was held up ", "dim"), event_lines.hold_ups(attempt.held_up))
        for attempt in attempts
        if attempt.held_up
    ]


def attempts_table(attempts: Iterable[Attempt]) -> RenderableType:
    """Return a table of attempts: one row each, in the order of their start."""
    headings = ("ATTEMPT", "STARTED", "TOOK", "WORKER", "ERROR")
    return table(headings, [_attempt_row(attempt) for attempt in attempts], empty="no attempts", least=("WORKER",))


def _attempt_row(attempt: Attempt) -> tuple[object, ...]:
    started_at = attempt.started_at or attempt.dispatched_at
    took = (attempt.ended_at - started_at).total_seconds() if attempt.ended_at and started_at else None
    error = f"{attempt.error.type}: {attempt.error.message}" if attempt.error else ""
    return f"{attempt.step} #{attempt.attempt}", attempt.started_at, seconds(took), attempt.worker, error


@dataclass(frozen=True, slots=True)
class FanOutDetails:
    """The executions on the shards of an occurrence."""

    match: ExecutionMatch
    fan_out: FanOut

    def as_json(self) -> dict[str, object]:
        return {
            "execution_id": self.match.execution_id,
            "job": self.match.job,
            "status": self.fan_out.status,
            "fan_out": asdict(self.fan_out),
            "facts": [event_lines.as_json(recorded) for recorded in self.match.events],
        }

    def page(self) -> list[RenderableType]:
        heading = Text.assemble((self.match.job, "bold"), "  ", state(self.fan_out.status), f", {self.fan_out.summary}")
        fanned = fanned_out(self.match)
        origin = (
            "" if fanned is None else f"{fanned.message.trigger}, scheduled for {local(fanned.message.scheduled_time)}"
        )
        rows = table(
            ("SHARD", "EXECUTION", "STATUS", "WORKER", "ATTEMPT", "ERROR"),
            [_shard_row(run) for run in self.fan_out.runs],
            empty="no shards",
            least=("WORKER", "ATTEMPT", "ERROR"),
            brief={"EXECUTION": unique_beginnings},
        )
        head = [heading, Text(self.match.execution_id, style="dim"), Text(origin, style="dim"), Text()]
        return [*head, rows, Text(), FactPage(self.match.events)]


def _shard_row(run: ShardRun) -> tuple[object, ...]:
    name, error = Text(run.shard, style="bold"), (run.error or "").partition("\n")[0]
    return name, run.execution_id, state(run.status), run.worker, run.attempt or "", error
