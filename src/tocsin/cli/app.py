"""The program: its global options and its commands."""

from pathlib import Path
from typing import Annotated, Final

import typer

from .. import __version__, telemetry
from .command_tree import Commands
from .output import Format
from .runtime.errors import HELP as EXIT_CODES
from .runtime.errors import UsageError

SERVED: Final = frozenset(
    {
        "agents",
        "apply",
        "dead-letters",
        "doctor",
        "executions",
        "explain",
        "import",
        "jobs",
        "namespaces",
        "notifications",
        "policy",
        "queues",
        "schedule",
        "shards",
        "silences",
        "sql",
        "tokens",
        "top",
        "triggers",
        "version",
        "what-if",
        "why",
    }
)
"""Commands that also work over HTTP."""


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"tocsin {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="tocsin",
    cls=Commands,
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A distributed job scheduler: it decides when jobs run, records every decision, and sends tasks to workers.",
)


@app.callback()
def root(  # noqa: PLR0913, PLR0917 - each is an option of the program
    context: typer.Context,
    nats: Annotated[
        str | None, typer.Option(metavar="URL", help="The NATS server or cluster [TOCSIN_NATS_URL].")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The HTTP API to use instead of NATS; not every command supports it."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", envvar="TOCSIN_TOKEN", help="Token for the HTTP API; prefer the variable."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The settings file [TOCSIN_CONFIG, else ./tocsin.yaml].")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder for the data of `dev`, and by default for the history."),
    ] = None,
    root: Annotated[str | None, typer.Option(metavar="TOKEN", help="The first token of every subject.")] = None,
    output: Annotated[
        Format,
        typer.Option(
            "--output",
            "-o",
            help="Format of answers. Commands with --out read -o FILE too, if FILE has a dot or a slash.",
        ),
    ] = "table",
    log_level: Annotated[
        telemetry.Level | None, typer.Option(envvar="TOCSIN_LOG_LEVEL", help="Lowest level of log lines.")
    ] = None,
    log_format: Annotated[
        telemetry.Format, typer.Option(envvar="TOCSIN_LOG_FORMAT", help="Format of log lines.")
    ] = "auto",
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Read the global options."""
    from .output.format import Output  # noqa: PLC0415 - `tocsin --version` and help do not need these
    from .runtime.backend import Backend  # noqa: PLC0415
    from .runtime.session import Session  # noqa: PLC0415

    options = context.obj
    session = Session(
        backend=options if isinstance(options, Backend) else Backend(),
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
            f"`{context.invoked_subcommand}` does not work over HTTP: omit --server and use --nats URL",
            code="server-not-supported",
        )
    # A short command reports its failure itself; a long-running command configures its own level.
    telemetry.configure(log_level or "error", log_format, is_deferred=True)
    context.obj = session
