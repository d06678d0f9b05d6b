"""The program: its global options, and its commands, one module each."""

from pathlib import Path
from typing import Annotated, Final

import typer

from .. import telemetry
from .dead_letters import commands as dead_letters
from .dead_letters import replay_all
from .dev import command
from .events import audit, audit_trail, export, replay, tail
from .executions import cancel
from .executions import commands as executions
from .installation import config as config_command
from .installation import doctor, history, init, permissions, stats, status, tokens, version
from .jobs import apply, backfill, explain, schedule, why
from .jobs import commands as jobs
from .output.format import Format, Output
from .processes import run, serve, worker
from .runtime.backend import Backend
from .runtime.command_group import Commands
from .runtime.error_report import UsageError
from .runtime.exit_codes import HELP as EXIT_CODES
from .runtime.session import Session

SERVED: Final = frozenset({"jobs", "executions", "dead-letters", "schedule", "explain", "version"})
"""The commands that work over HTTP as well."""

app = typer.Typer(
    name="tocsin",
    cls=Commands,
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Decides when jobs run and in what order, records every decision, and lets executors do the work.",
)


@app.callback()
def root(  # noqa: PLR0913, PLR0917 - each is an option of the program
    context: typer.Context,
    nats: Annotated[
        str | None, typer.Option(metavar="URL", help="The NATS server or cluster [TOCSIN_NATS_URL].")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="An HTTP API to ask instead of NATS, for what it serves.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", envvar="TOCSIN_TOKEN", help="For the HTTP API; better in the variable."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The settings [TOCSIN_CONFIG, else ./tocsin.yaml].")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where `dev` keeps its data, and the history is by default.")
    ] = None,
    root: Annotated[str | None, typer.Option(metavar="TOKEN", help="The first token of every subject.")] = None,
    output: Annotated[Format, typer.Option("--output", "-o", help="What answers look like.")] = "table",
    log_level: Annotated[
        telemetry.Level | None, typer.Option(envvar="TOCSIN_LOG_LEVEL", help="The least important line of the log.")
    ] = None,
    log_format: Annotated[
        telemetry.Format, typer.Option(envvar="TOCSIN_LOG_FORMAT", help="What lines of the log look like.")
    ] = "auto",
    _version: Annotated[
        bool, typer.Option("--version", callback=version.tell, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """Take the global options."""
    given = context.obj
    session = Session(
        backend=given if isinstance(given, Backend) else Backend(),
        output=Output(output),
        config=config,
        options={("nats", "url"): nats, ("data_dir",): data_dir, ("root",): root},
        log_level=log_level,
        log_format=log_format,
        server=server,
        token=token,
    )
    if server and context.invoked_subcommand not in SERVED:
        raise UsageError(
            f"`{context.invoked_subcommand}` asks NATS itself: leave --server out, and name the NATS server"
        )
    session.log("error")  # a command tells its failure itself; what runs on logs more
    context.obj = session


# In the order in which one meets them.
app.command("dev")(command.dev)
app.command("init")(init.init)
app.command("run")(run.run)
app.command("serve")(serve.serve)
app.command("worker")(worker.worker)
jobs.app.command("apply")(apply.apply)
jobs.app.command("diff")(apply.diff)
jobs.app.command("backfill")(backfill.backfill)
app.add_typer(jobs.app, name="jobs")
app.command("backfill")(backfill.backfill)
app.command("schedule")(schedule.schedule)
executions.app.command("cancel")(cancel.cancel)
app.add_typer(executions.app, name="executions")
dead_letters.app.command("replay-all")(replay_all.replay_all)
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(history.app, name="history")
tail.app.command("export")(export.export)
tail.app.command("replay")(replay.replay)
tail.app.command("audit-trail")(audit_trail.audit_trail)
app.add_typer(tail.app, name="events")
app.add_typer(tokens.app, name="tokens")
app.command("why")(why.why)
app.command("audit")(audit.audit)
app.command("explain")(explain.explain)
app.add_typer(config_command.app, name="config")
app.command("status")(status.status)
app.command("stats")(stats.stats)
app.command("doctor")(doctor.doctor)
app.command("permissions")(permissions.permissions)
app.command("version")(version.version)
