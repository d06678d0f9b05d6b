"""`tocsin executions`: what ran, and one run in every detail."""

from dataclasses import dataclass
from typing import Annotated

import typer
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
from ..runtime.event_loop import run
from ..runtime.session import Session, session_of
from .attempts import attempts_table


def show(
    context: typer.Context,
    execution_id: Annotated[str, typer.Argument(metavar="EXECUTION", help="Its id, or the first characters of it.")],
) -> None:
    """Show one execution as the log has it at this moment: its steps, its attempts, and every fact."""
    session = session_of(context)
    shown = run(_read(session, execution_id))
    session.output.answer(as_json(shown), lambda: page(shown))


@dataclass(frozen=True, slots=True)
class Shown:
    """One execution as its facts tell it: in the words of the history, but as of this moment."""

    found: ExecutionMatch
    record: ExecutionRecord
    state: Execution
    attempts: tuple[Attempt, ...]

    @classmethod
    def of(cls, found: ExecutionMatch) -> "Shown":
        """Fold the facts."""
        record = history.fold({}, found.facts)[found.execution_id]
        return cls(found, record, execution.fold(found.facts), attempts_of(found.facts))

    @property
    def took(self) -> float | None:
        """Seconds from its first fact to its end."""
        ended_at = self.record.completed_at
        return None if ended_at is None else (ended_at - self.found.facts[0].time).total_seconds()


async def _read(session: Session, execution_id: str) -> Shown:
    async with session.operator() as operator:
        return Shown.of(await operator.execution(execution_id))


# --- what is shown ---------------------------------------------------------------------------------------------------


def as_json(shown: Shown) -> dict[str, object]:
    """An execution for programs."""
    record = shown.record
    return {
        "execution_id": record.execution_id,
        "job": record.job,
        "status": record.status,
        "trigger": record.trigger,
        "scheduled_time": record.scheduled_time,
        "ended_at": record.completed_at,
        "duration_ms": None if shown.took is None else round(shown.took * 1_000),
        "fence": shown.state.fence,
        "steps": {name: _step_as_json(step, shown.state.steps.get(name)) for name, step in record.steps.items()},
        "attempts": shown.attempts,
        "facts": [event_lines.as_json(recorded) for recorded in shown.found.facts],
    }


def _step_as_json(step: StepRecord, folded: Step | None) -> dict[str, object]:
    return {
        "status": step.status,
        "attempt": step.attempt,
        "next_attempt_at": folded.next_attempt_at if folded and step.status == "running" else None,
        "error": folded.error if folded else None,
        "result": folded.result if folded else None,
    }


def page(shown: Shown) -> list[RenderableType]:
    """An execution for people."""
    record = shown.record
    took = f", took {seconds(shown.took)}" if shown.took is not None else ""
    head = Text.assemble((record.job, "bold"), "  ", state(record.status), took)
    why = Text(f"{record.trigger}, scheduled for {local(record.scheduled_time)}", style="dim")
    lines: list[RenderableType] = [head, Text(record.execution_id, style="dim"), why]
    if record.steps:
        rows = [_step(name, step, shown.state.steps.get(name)) for name, step in record.steps.items()]
        lines += [Text(), table(("STEP", "STATUS", "ATTEMPT", "ERROR"), rows, empty="")]
    if shown.attempts:
        lines += [Text(), attempts_table(shown.attempts)]
    return [*lines, Text(), FactPage(shown.found.facts)]


def _step(name: str, step: StepRecord, folded: Step | None) -> tuple[object, ...]:
    waits = folded is not None and folded.next_attempt_at is not None and step.status == "running"
    again = f"again at {local(folded.next_attempt_at)}" if folded and waits else ""
    return Text(name, style="bold"), state(step.status), step.attempt or "", step.error or again
