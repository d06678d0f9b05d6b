"""`tocsin jobs`: list, show, trigger, pause, resume, delete. What applies files is in `apply.py`."""

from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ...services.jobs import Job
from ..input.values import confirm, json_of
from ..output.format import local, state
from ..output.tables import table
from ..runtime.event_loop import run
from ..runtime.session import Session, session_of

AHEAD: Final = 3
"""Instants to come that a job's page shows: enough to see the pattern."""

Name = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
Reason = Annotated[str | None, typer.Option(help="Why; it is recorded.")]


def list_jobs(
    context: typer.Context,
    tag: Annotated[str | None, typer.Option(help="Only those with this tag.")] = None,
) -> None:
    """List the jobs, each with the next time at which it fires."""
    session = session_of(context)

    async def read() -> list[Job]:
        async with session.operator() as operator:
            return [job for job in await operator.jobs() if tag is None or tag in job.definition.tags]

    found, now = run(read()), datetime.now(UTC)
    session.output.answer(
        [job.summary(now) for job in found],
        lambda: [
            table(
                ("JOB", "STATE", "SCHEDULE", "ZONE", "NEXT", "RUNS", "TAGS"),
                [_row(job, now) for job in found],
                empty="no jobs: `tocsin jobs apply -f FILE` registers some",
                least=("TAGS", "RUNS", "ZONE", "SCHEDULE"),
            )
        ],
    )


def show(context: typer.Context, job: Name) -> None:
    """Show one job: its definition, and when it fires next."""
    session = session_of(context)

    async def read() -> Job:
        async with session.operator() as operator:
            return await operator.job(job)

    found, now = run(read()), datetime.now(UTC)
    session.output.answer(details(found, now), lambda: page(found, now))


def trigger(
    context: typer.Context,
    job: Name,
    input: Annotated[  # noqa: A002 - the field is called so
        str | None, typer.Option(metavar="JSON|@FILE", help="An object whose keys go over the job's own input.")
    ] = None,
    args: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE", help="A list instead of the job's own args.")
    ] = None,
    reason: Reason = None,
) -> None:
    """Run a job now, whatever its schedule says; no scheduled instant is used up."""
    session = session_of(context)
    given, positional = json_of("--input", input, dict), json_of("--args", args, list)

    async def ask() -> str:
        async with session.operator() as operator:
            return await operator.trigger(job, given, positional, reason=reason)

    execution_id = run(ask())
    session.output.answer(
        {"job": job, "execution_id": execution_id},
        lambda: [Text.assemble(("triggered ", "cyan"), (job, "bold"), f": execution {execution_id}")],
    )


def pause(context: typer.Context, job: Name, reason: Reason = None) -> None:
    """Let a job's instants pass without firing, until it is resumed."""
    session = session_of(context)

    async def ask() -> bool:
        async with session.operator() as operator:
            return await operator.pause(job, reason=reason)

    _tell(session, job, "paused", changed=run(ask()))


def resume(context: typer.Context, job: Name, reason: Reason = None) -> None:
    """Let a paused job fire again; what passed meanwhile stays passed."""
    session = session_of(context)

    async def ask() -> bool:
        async with session.operator() as operator:
            return await operator.resume(job, reason=reason)

    _tell(session, job, "resumed", changed=run(ask()))


def delete(
    context: typer.Context,
    job: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: Reason = None,
) -> None:
    """Delete a job; what already runs, runs on, and its history remains."""
    session = session_of(context)

    async def ask() -> None:
        async with session.operator() as operator:
            await operator.job(job)
            confirm(f"delete {job}?", yes=yes, otherwise="nothing was deleted")
            await operator.delete(job, reason=reason)

    run(ask())
    _tell(session, job, "deleted", changed=True)


def _tell(session: Session, job: str, done: str, *, changed: bool) -> None:
    already = "" if changed else " (it was already)"
    session.output.answer(
        {"job": job, "action": done, "changed": changed},
        lambda: [Text.assemble((f"{done} ", "yellow"), (job, "bold"), already)],
    )


# --- what is shown ---------------------------------------------------------------------------------------------------


def _row(job: Job, now: datetime) -> tuple[object, ...]:
    definition = job.definition
    return (
        Text(job.name, style="bold"),
        state(job.status),
        definition.schedule,
        definition.timezone,
        job.next_fire_time(now),
        definition.function or " → ".join(step.name for step in definition.dag),
        ", ".join(definition.tags),
    )


def details(job: Job, now: datetime) -> dict[str, object]:
    """A job as it is at `now` (UTC), for programs."""
    return {
        **job.summary(now),
        "paused": job.ledger.is_paused,
        "sequence": job.sequence,
        "defined_at": job.defined_at,
        "definition": job.definition.model_dump(mode="json", exclude_none=True),
    }


def page(job: Job, now: datetime) -> list[RenderableType]:
    """The same for people."""
    import yaml  # noqa: PLC0415 - only this page needs it

    written = job.definition.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    ahead = ", ".join(local(at) for at in islice(job.fire_times(now), AHEAD))
    return [
        Text.assemble((job.name, "bold"), "  ", state(job.status)),
        Text(f"defined {local(job.defined_at)}", style="dim"),
        Text(f"last    {local(job.ledger.last_fired) or 'never'}"),
        Text(f"next    {ahead or 'not by schedule'}"),
        Text(),
        Text(yaml.safe_dump(written, sort_keys=False, allow_unicode=True).rstrip()),
    ]
