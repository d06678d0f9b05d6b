"""`tocsin import`: job files from the schedules of other programs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..domain.text import counted, printable
from .input.values import Out
from .output.format import destination, encoded
from .runtime.errors import Exit
from .runtime.session import Session

if TYPE_CHECKING:
    from ..adapters.imports import Kind

Files = Annotated[list[str], typer.Argument(metavar="FILE", help="The files to read; - is standard input.")]
Timezone = Annotated[
    str | None, typer.Option("--timezone", metavar="ZONE", help="Time zone of schedules that name none; default: UTC.")
]


def crontab(
    session: Session,
    file: Files,
    out: Out = None,
    timezone: Timezone = None,
    system: Annotated[
        bool | None, typer.Option("--system/--user", help="Whether a user is before each command; default: find out.")
    ] = None,
) -> None:
    """Write a job file from crontabs.

    The report on standard error lists what has no equivalent, each line with a code; the job file has it as comments. The exit code
    is then 1.

    Example: `tocsin import crontab /etc/crontab --timezone Europe/Berlin --out jobs.yaml`
    """
    _import(session, "crontab", file, out, timezone, is_system=system)


def kubernetes(session: Session, file: Files, out: Out = None, timezone: Timezone = None) -> None:
    """Write a job file from manifests of CronJobs.

    The report on standard error lists what has no equivalent, each line with a code; the job file has it as comments. The exit code
    is then 1.

    Example: `kubectl get cronjobs -o yaml | tocsin import kubernetes - --timezone UTC --out jobs.yaml`
    """
    _import(session, "kubernetes", file, out, timezone)


def celery(session: Session, file: Files, out: Out = None, timezone: Timezone = None) -> None:
    """Write a job file from Celery's `beat_schedule` in Python files, without executing them.

    The report on standard error lists what has no equivalent or is computed at run time, each line with a code; the job file has it as
    comments. The exit code is then 1.

    Example: `tocsin import celery app/celeryconfig.py --timezone UTC --out jobs.yaml`
    """
    _import(session, "celery", file, out, timezone)


def airflow(session: Session, file: Files, out: Out = None, timezone: Timezone = None) -> None:
    """Write a job file from Airflow's DAGs in Python files, without executing them.

    The report on standard error lists what has no equivalent or is computed at run time, each line with a code; the job file has it as
    comments. The exit code is then 1.

    Example: `tocsin import airflow dags/orders.py --timezone UTC --out jobs.yaml`
    """
    _import(session, "airflow", file, out, timezone)


def _import(
    session: Session,
    kind: "Kind",
    files: list[str],
    out: Path | None,
    timezone: str | None,
    *,
    is_system: bool | None = None,
) -> None:
    """Write the job file and the report; exit with 1 if something is lost."""
    from ..adapters.imports import import_files  # noqa: PLC0415 - help does not need it

    written = import_files(kind, files, now=datetime.now(UTC), timezone=timezone, is_system=is_system)
    with destination(out) as file:
        file.write(written.text.encode())
    if session.output.is_json:
        typer.echo(encoded(written.as_json()), err=True)
    else:
        for finding in written.findings:
            typer.echo(f"{'lost' if finding.is_loss else 'note'}: {printable(str(finding))}", err=True)
        where = "" if out is None else f" to {out}"
        losses = f"; {counted(written.losses, 'difference')} to settle by hand" if written.losses else ""
        typer.echo(f"wrote {counted(len(written.jobs), 'job')}{where}{losses}", err=True)
    if written.losses:
        raise typer.Exit(Exit.NO)
