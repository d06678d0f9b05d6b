"""`tocsin jobs`: list, show, export, trigger, pause, resume and delete."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ...adapters.extras import ExtraNotInstalled
from ...domain.text import counted
from ...ports import HistoryUnavailable
from ...services.jobs import Job, RunCounters
from ...services.operator import Operator
from ..input.values import JobName, Out, Reason, Yes, confirm, json_of
from ..output.format import destination, local, seconds, state, zoned
from ..output.tables import print_table
from ..runtime.session import Session

AHEAD: Final = 3
"""Number of next occurrences on a job's page: enough to see the pattern."""


def list_jobs(session: Session, tag: Annotated[str | None, typer.Option(help="Filter by tag.")] = None) -> None:
    """List the jobs with their next occurrence.

    Example: `tocsin jobs list --tag billing`
    """
    jobs = session.ask(lambda operator: operator.jobs())
    registered, now = [job for job in jobs if tag is None or tag in job.definition.tags], datetime.now(UTC)
    print_table(
        session.output,
        [job.summary(now) for job in registered],
        ("JOB", "STATE", "SCHEDULE", "ZONE", "NEXT", "RUNS", "TAGS"),
        (_row(job, now) for job in registered),
        empty="no jobs. Run `tocsin jobs apply -f FILE` to register some.",
        least=("TAGS", "RUNS", "ZONE", "SCHEDULE"),
    )


def show(session: Session, job: JobName) -> None:
    """Show a job: its definition, its next occurrences and the counters of its runs.

    Example: `tocsin jobs show nightly`
    """

    async def read(operator: Operator) -> tuple[Job, RunCounters | None]:
        registered = await operator.job(job)
        try:
            return registered, await operator.run_counters(job)
        except (HistoryUnavailable, ExtraNotInstalled):  # no history can be read now
            return registered, None

    (registered, runs), now = session.ask(read), datetime.now(UTC)
    session.output.answer(
        {**details(registered, now), "runs": runs and asdict(runs)}, lambda: page(registered, now, _run_lines(runs))
    )


def export(
    session: Session,
    job: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="The jobs; by default all.")] = None,
    out: Out = None,
) -> None:
    """Write the definitions of jobs as a file for `jobs apply`.

    Applying the file to the same installation changes nothing. A pause is not part of a definition: `x-paused` lists the
    paused jobs, and `jobs apply` ignores it. With `-o json`, standard output is JSON, which `jobs apply` also reads.

    Example: `tocsin jobs export --out jobs.yaml`
    """
    from ...adapters.files import dump_yaml  # noqa: PLC0415 - most commands write no YAML

    async def read(operator: Operator) -> tuple[Job, ...]:
        if job:
            return tuple([await operator.job(name) for name in dict.fromkeys(job)])
        return await operator.jobs()

    jobs = session.ask(read)
    document = exported(jobs)
    if out is None and session.output.is_json:
        session.output.answer(document, list)
        return
    with destination(out) as file:
        file.write(dump_yaml(document).encode())
    if out is not None:
        text = Text(f"exported {counted(len(jobs), 'job')} to {out}", style="bold")
        session.output.answer({"file": str(out), "jobs": len(jobs)}, lambda: [text])


def trigger(
    session: Session,
    job: JobName,
    input: Annotated[  # noqa: A002 - the field is called so
        str | None, typer.Option(metavar="JSON|@FILE", help="An object whose keys override the job's input.")
    ] = None,
    args: Annotated[str | None, typer.Option(metavar="JSON|@FILE", help="A list that replaces the job's args.")] = None,
    priority: Annotated[
        int | None, typer.Option(min=-100, max=100, help="Replaces the job's priority; higher first.")
    ] = None,
    reason: Reason = None,
) -> None:
    """Run a job now, independently of its schedule.

    The schedule's own occurrences still fire.

    Example: `tocsin jobs trigger nightly --input '{"day": "monday"}'`
    """
    overrides, positional = json_of("--input", input, dict), json_of("--args", args, list)
    execution_id = session.ask(
        lambda operator: operator.trigger(job, overrides, positional, priority=priority, reason=reason)
    )
    session.output.answer(
        {"job": job, "execution_id": execution_id},
        lambda: [Text.assemble(("triggered ", "cyan"), (job, "bold"), f": execution {execution_id}")],
    )


def pause(session: Session, job: JobName, reason: Reason = None) -> None:
    """Pause a job: its occurrences do not fire until it is resumed.

    Example: `tocsin jobs pause nightly --reason maintenance`
    """
    changed = session.ask(lambda operator: operator.pause(job, reason=reason))
    session.output.action("job", job, "paused", changed=changed)


def resume(session: Session, job: JobName, reason: Reason = None) -> None:
    """Resume a paused job; occurrences during the pause are not caught up.

    Example: `tocsin jobs resume nightly`
    """
    changed = session.ask(lambda operator: operator.resume(job, reason=reason))
    session.output.action("job", job, "resumed", changed=changed)


def delete(session: Session, job: JobName, yes: Yes = False, reason: Reason = None) -> None:
    """Delete a job; running executions continue, and its history remains.

    Example: `tocsin jobs delete nightly --yes`
    """

    async def request(operator: Operator) -> None:
        await operator.job(job)
        confirm(f"delete {job}?", yes=yes, otherwise="nothing was deleted")
        await operator.delete(job, reason=reason)

    session.ask(request)
    session.output.action("job", job, "deleted")


def _row(job: Job, now: datetime) -> tuple[object, ...]:
    definition = job.definition
    return (
        Text(job.name, style="bold"),
        state(job.status),
        definition.schedule,
        definition.timezone,
        zoned(job.next_fire_time(now), definition.timezone),
        definition.function or ", ".join(step.name for step in definition.dag),
        ", ".join(definition.tags),
    )


def details(job: Job, now: datetime) -> dict[str, object]:
    """Return the JSON document of a job at `now` (UTC)."""
    return {
        **job.summary(now),
        "paused": job.ledger.is_paused,
        "sequence": job.sequence,
        "job_uuid": job.job_uuid,
        "defined_at": job.defined_at,
        "warnings": job.warnings(now),
        "definition": job.definition.model_dump(mode="json", exclude_none=True),
    }


def exported(jobs: Iterable[Job]) -> dict[str, object]:
    """Return a document with the definitions of jobs, which `jobs apply` takes back unchanged."""
    definitions, paused = [], []
    for job in jobs:
        written = job.definition.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        # `jobs apply` would fill these in from its options and settings.
        fields = {"timeout", "owner", "overlap_policy"} | ({"timezone"} if job.definition.schedule else set())
        definitions.append(written | job.definition.model_dump(mode="json", include=fields))
        if job.ledger.is_paused:
            paused.append(job.name)
    return ({"x-paused": paused} if paused else {}) | {"jobs": definitions}


def page(job: Job, now: datetime, runs: Iterable[RenderableType] = ()) -> list[RenderableType]:
    """Return the terminal page of a job at `now` (UTC); `runs`: lines about its runs."""
    from ...adapters.files import dump_yaml  # noqa: PLC0415 - most commands write no YAML

    definition = job.definition.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    ahead = ", ".join(zoned(at, job.definition.timezone) for at in islice(job.fire_times(now), AHEAD))
    return [
        Text.assemble((job.name, "bold"), "  ", state(job.status)),
        Text(f"defined {local(job.defined_at)}", style="dim"),
        Text(f"last    {local(job.last_fire_time) or ('never' if job.definition.schedule else 'not by schedule')}"),
        Text(f"next    {ahead or 'not by schedule'}"),
        *(Text(f"note    {warning}", style="yellow") for warning in job.warnings(now)),
        *runs,
        Text(),
        Text(dump_yaml(definition).rstrip()),
    ]


def _run_lines(runs: RunCounters | None) -> list[RenderableType]:
    if runs is None:
        return [
            Text("runs    unknown: there is no history, it cannot be read now, or you may not read it", style="dim")
        ]
    failed, skipped, running = (f"{number:,}" for number in (runs.error_count, runs.skip_count, runs.running))
    counts = Text(
        f"runs    {runs.run_count:,}, of which {failed} failed and {skipped} were skipped; {running} running now"
    )
    if (last := runs.last_result) is None:
        return [counts]
    took = "" if runs.last_duration_ms is None else f", took {seconds(runs.last_duration_ms / 1_000)}"
    cause = ((last.error if last.status == "failed" else last.reason) or "").partition("\n")[0]
    reason = f": {cause}" if cause else ""
    return [counts, Text.assemble("ended   ", state(last.status), f" {local(runs.last_run)}{took}{reason}")]
