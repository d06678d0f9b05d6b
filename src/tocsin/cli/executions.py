"""`tocsin executions`: what ran, and one run in every detail."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Literal, TypeAlias

import typer
from rich.console import RenderableType
from rich.text import Text

from .. import subjects
from ..domain import execution
from ..domain.dead_letter import attempts_of
from ..domain.events import Attempt, Message, Recorded, Requested, Skipped
from ..domain.execution import Execution
from ..listing import ExecutionQuery
from ..ports import ExecutionRow
from . import facts
from .exits import Exit
from .failures import Refused
from .output import local, seconds, state, table
from .running import run
from .session import Session, session_of

Status: TypeAlias = Literal["pending", "running", "completed", "failed", "cancelled", "skipped"]

app = typer.Typer(help="Runs of jobs.", no_args_is_help=True)


@app.command("list")
def list_executions(
    context: typer.Context,
    job: Annotated[str | None, typer.Option(help="Only of this job.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest first.")] = 50,
) -> None:
    """List executions from the history, the newest first."""
    session = session_of(context)

    async def read() -> list[ExecutionRow]:
        async with session.installation() as installation, installation.history() as history:
            return list((await history.executions(ExecutionQuery(job=job, status=status, limit=limit))).rows)

    rows = run(read())
    session.output.answer(
        [asdict(row) for row in rows],
        lambda: [
            table(
                ("EXECUTION", "JOB", "STATUS", "TRIGGER", "SCHEDULED", "TOOK", "ATTEMPT", "ERROR"),
                [_row(row) for row in rows],
                empty="no executions",
            )
        ],
    )


@app.command()
def show(
    context: typer.Context,
    execution_id: Annotated[str, typer.Argument(metavar="EXECUTION", help="The execution's id.")],
) -> None:
    """Show one execution as the log has it at this moment: its steps, its attempts, and every fact."""
    session = session_of(context)
    found = run(_read(session, execution_id))
    session.output.answer(_as_json(found), lambda: _page(found))


@dataclass(frozen=True, slots=True)
class Found:
    """One execution and where it comes from: its facts."""

    execution_id: str
    job: str
    facts: tuple[Recorded[Message], ...]
    state: Execution
    attempts: tuple[Attempt, ...]

    @property
    def asked(self) -> Requested | Skipped | None:
        """The fact that says what was asked; an instant that passed in public has a skip only."""
        skipped = next((f.message for f in self.facts if isinstance(f.message, Skipped)), None)
        return self.state.requested or skipped

    @property
    def ended_at(self) -> datetime | None:
        """When it was over (UTC)."""
        return self.facts[-1].time if self.state.is_over else None

    @property
    def took(self) -> float | None:
        """Seconds from its first fact to its end."""
        return (self.ended_at - self.facts[0].time).total_seconds() if self.ended_at else None


async def _read(session: Session, execution_id: str) -> Found:
    if not execution_id or not all(c.isalnum() or c == "-" for c in execution_id):
        raise Refused(f"{execution_id!r} is no execution's id: letters, digits and hyphens")
    async with session.installation() as installation:
        # Whose it is, is not known yet: the filter spans all jobs.
        recorded = tuple(await installation.log.load(subjects.execution("*", execution_id)))
        if not recorded:
            raise Refused(f"no execution has the id {execution_id!r}", Exit.NOT_FOUND)
    job = subjects.job_of(recorded[0].subject)
    return Found(execution_id, job, recorded, execution.fold(recorded), attempts_of(recorded))


# --- what is shown ---------------------------------------------------------------------------------------------------


def _row(row: ExecutionRow) -> tuple[object, ...]:
    took = None if row.duration_ms is None else row.duration_ms / 1_000
    error = (row.error or "").splitlines()[0] if row.error else ""
    at = row.scheduled_time
    return (
        row.execution_id,
        Text(row.job_name, style="bold"),
        state(row.status),
        row.trigger,
        at,
        seconds(took),
        row.attempt,
        error,
    )


def _as_json(found: Found) -> dict[str, object]:
    asked = found.asked
    return {
        "execution_id": found.execution_id,
        "job": found.job,
        "status": found.state.status.value,
        "trigger": asked.trigger if asked else None,
        "scheduled_time": asked.scheduled_time if asked else None,
        "ended_at": found.ended_at,
        "duration_ms": None if found.took is None else round(found.took * 1_000),
        "fence": found.state.fence,
        "steps": {
            name: {
                "status": step.phase.value,
                "attempt": step.attempt,
                "next_attempt_at": step.next_attempt_at,
                "error": step.error,
                "result": step.result,
            }
            for name, step in found.state.steps.items()
        },
        "attempts": found.attempts,
        "facts": [facts.as_json(recorded) for recorded in found.facts],
    }


def _page(found: Found) -> list[RenderableType]:
    asked = found.asked
    took = f", took {seconds(found.took)}" if found.took is not None else ""
    head = Text.assemble((found.job, "bold"), "  ", state(found.state.status.value), took)
    why = Text(f"{asked.trigger}, scheduled for {local(asked.scheduled_time)}" if asked else "", style="dim")
    page: list[RenderableType] = [head, Text(found.execution_id, style="dim"), why]
    if found.state.steps:
        rows = [_step(name, step) for name, step in found.state.steps.items()]
        page += [Text(), table(("STEP", "STATUS", "ATTEMPT", "ERROR"), rows, empty="")]
    if found.attempts:
        headings = ("ATTEMPT", "STARTED", "TOOK", "WORKER", "ERROR")
        page += [Text(), table(headings, [_attempt(attempt) for attempt in found.attempts], empty="")]
    return [*page, Text(), *(facts.line(recorded) for recorded in found.facts)]


def _step(name: str, step: execution.Step) -> tuple[object, ...]:
    error = f"{step.error.type}: {step.error.message}" if step.error else ""
    again = f"again at {local(step.next_attempt_at)}" if step.next_attempt_at else ""
    return Text(name, style="bold"), state(step.phase.value), step.attempt or "", error or again


def _attempt(attempt: Attempt) -> tuple[object, ...]:
    begun = attempt.started_at or attempt.dispatched_at
    took = (attempt.ended_at - begun).total_seconds() if attempt.ended_at and begun else None
    error = f"{attempt.error.type}: {attempt.error.message}" if attempt.error else ""
    return f"{attempt.step} #{attempt.attempt}", attempt.started_at, seconds(took), attempt.worker, error
