"""`tocsin run`, `tocsin serve` and `tocsin worker`: one part of Tocsin in the foreground."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ... import telemetry
from ...adapters.extras import ExtraNotInstalled, require_extra
from ...adapters.http.sockets import listen, url_of
from ...bootstrap.operators import operator_of
from ...domain.definition import DefinitionError
from ...domain.events import Actor
from ...domain.formats.document import listed, nearest
from ...ports import LogUnavailable, NotAllowed
from ..runtime.errors import UsageError
from ..runtime.event_loop import refresh_timezones, until_done
from ..runtime.event_loop import serve as run_until_stopped
from ..runtime.session import Session
from .builtin_worker import BuiltinFunctions, Secrets, allow, builtin_worker, offer

if TYPE_CHECKING:
    from ...bootstrap import Installation
    from ...settings import Settings
    from ...worker import Worker

JOBS_FILE_RETRY_S: Final = 5.0

_log, _jobs_file_log = telemetry.get_logger("tocsin"), telemetry.get_logger("tocsin.jobs_file")


class Readiness:
    """Whether this process does its work: it has started, and is connected to NATS."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        """Set once the stages or the worker of the process run."""
        self._is_connected: Callable[[], bool] = lambda: False

    def watch(self, installation: "Installation") -> None:
        self._is_connected = lambda: installation.connection.client.is_connected

    def watch_nothing(self) -> None:
        """Leave the connection to the code of the worker that opens it."""
        self._is_connected = lambda: True

    def missing(self) -> str | None:
        """Return the reason why the process is not ready; None: it is ready."""
        if not self._is_connected():
            return "not connected to NATS"
        return None if self.started.is_set() else "starting"


@asynccontextmanager
async def process_metrics_served(settings: "Settings") -> AsyncIterator[Readiness]:
    """Serve the metrics and the probes of this process within the block.

    Without a port in the settings, serve nothing.
    """
    readiness = Readiness()
    port = settings.metrics.process_port
    if port is None:
        yield readiness
        return
    try:
        from ...adapters.otel.process_metrics import serving_process_metrics  # noqa: PLC0415 - it needs an extra
    except ImportError:
        raise ExtraNotInstalled("`metrics.process_port`", "metrics") from None
    listener = listen(settings.metrics.process_host, port, setting="metrics.process_port")
    url = f"{url_of(listener)}/metrics"
    async with serving_process_metrics(listener, readiness.missing):
        _log.info("process metrics serving", action="process-metrics-serving", url=url)
        yield readiness


def run(
    session: Session,
    stages: Annotated[
        list[str] | None, typer.Argument(metavar="STAGE", help="Stages to run, such as `ticker planner`.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Run every stage.")] = False,
) -> None:
    """Run stages until SIGTERM or Ctrl-C; finish the messages in progress first.

    Start as many copies as you like. A copy that runs the registrar applies the setting `jobs_file`. SIGUSR1 reads new
    time-zone data, as `tocsin tz refresh` does.

    Example: `tocsin run ticker planner`
    """
    require_extra("tocsin run", "server")
    names = select_stages(stages or [], session.backend.stages(), every=every)
    session.log("info")
    run_until_stopped(_run_stages(session, names), on_refresh=refresh_timezones)


def select_stages(requested: list[str], known: tuple[str, ...], *, every: bool) -> tuple[str, ...]:
    """Return the requested stages in the order of the flow."""
    if every == bool(requested):
        reason = "stages and --all exclude each other" if every else "no stage is named"
        raise UsageError(
            f"Cannot run stages: {reason}. Name stages or pass --all; the stages are {listed(known)}.",
            code="stage-required",
        )
    for name in requested:
        if name.replace("-", "_") not in known:
            suggestion = nearest(name, known)
            hint = f"Did you mean `{suggestion}`?" if suggestion else f"The stages are {listed(known)}."
            raise UsageError(f"Stage `{name}` does not exist. {hint}", code="unknown-stage")
    names = {name.replace("-", "_") for name in requested}
    return tuple(name for name in known if every or name in names)


async def _run_stages(session: Session, names: tuple[str, ...]) -> None:
    async with (
        process_metrics_served(session.settings()) as readiness,
        session.installation(within=None) as installation,
    ):
        readiness.watch(installation)
        applying = asyncio.create_task(_apply_jobs_file(installation, names, readiness.started))
        try:
            await session.backend.run_stages(installation, names, ready=readiness.started)
        finally:
            applying.cancel()
            with suppress(asyncio.CancelledError):
                await applying


async def _apply_jobs_file(installation: "Installation", names: tuple[str, ...], ready: asyncio.Event) -> None:
    """Create and update the jobs of the setting `jobs_file`, once the stages are ready.

    Several copies may do so at the same time: the slower copy finds nothing to change. A file that is wrong is logged, and
    the stages keep running, because other jobs must not stop for it.
    """
    from ...services.apply import apply_definitions  # noqa: PLC0415 - only this command needs it
    from ..jobs.apply import OWNER, read  # noqa: PLC0415

    settings = installation.settings
    if settings.jobs_file is None or "registrar" not in names:
        return
    await ready.wait()
    fields = {"file": str(settings.jobs_file)}
    operator = operator_of(
        installation, installation.history, by=Actor(identity="jobs_file", kind="cli", source="tocsin run")
    )
    while True:
        try:
            definitions = await asyncio.to_thread(read, settings, (), OWNER)
            plan = await apply_definitions(operator, definitions, settings)
        except DefinitionError as error:
            _jobs_file_log.error(
                "jobs file refused", action="jobs-file-refused", code=error.code, error=str(error), **fields
            )
            return
        except NotAllowed as error:
            _jobs_file_log.error("jobs file not applied", action="jobs-file-not-allowed", error=str(error), **fields)
            return
        except LogUnavailable as error:
            _jobs_file_log.warning("jobs file waits for the log", action="jobs-file-waits", error=str(error), **fields)
            await asyncio.sleep(JOBS_FILE_RETRY_S)
        else:
            counts = {verb: len(plan.of(verb)) for verb in ("create", "update", "unchanged")}
            _jobs_file_log.info("jobs file applied", action="jobs-file-applied", **counts, **fields)
            return


def serve(
    session: Session,
    host: Annotated[
        str | None, typer.Option(help="Listen on this address; default: the setting `server.host`.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Listen on this port; default: the setting `server.port`, 8062."),
    ] = None,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C; finish open requests first.

    Start as many copies as you like. SIGUSR1 reads new time-zone data, as `tocsin tz refresh` does.

    Example: `tocsin serve --host 0.0.0.0 --port 8062`
    """
    require_extra("tocsin serve", "server")
    session.log("info")
    run_until_stopped(_serve_api(session, host, port), on_refresh=refresh_timezones)


async def _serve_api(session: Session, host: str | None, port: int | None) -> None:
    settings = session.settings(server__host=host, server__port=port)
    async with session.installation(settings, within=None) as installation, session.backend.serving(installation):
        await installation.commits.outdated()  # a newer version stored a commit


def worker(
    session: Session,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:ATTRIBUTE",
            help="The worker object: in a module or in FILE.py. Without it, the worker offers built-in functions only.",
        ),
    ] = None,
    builtin: BuiltinFunctions = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A queue of a worker without MODULE:ATTRIBUTE; repeatable. Default: `default`."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="AGENT", help="The agent's name of a worker without MODULE:ATTRIBUTE.")
    ] = None,
    shard: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID|*",
            help="A shard that the worker may own, in place of those in its code and settings; `*`: every shard. Repeatable.",
        ),
    ] = None,
    secret: Secrets = None,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C; finish its tasks first.

    Example: `tocsin worker reports.py:worker --secret DATABASE_PASSWORD`, or `tocsin worker --builtin command`
    """
    from ...app.application import given_settings  # noqa: PLC0415 - only this command needs it
    from ..input.objects import load_worker  # noqa: PLC0415

    session.log("info")
    if target is None:
        instance = builtin_worker(builtin or [], queue or [], name)
    elif queue or name:
        raise UsageError(
            f"--queue and --name are for a worker without an object. Set both in {target}.", code="conflicting-options"
        )
    else:
        instance, app = load_worker(target)
        session = session.with_given(None if app is None else given_settings(app), target)
    # As without this command, what the code says comes before the settings; an option comes before both.
    is_connected = instance.opens_connection and session.given is None
    if is_connected and (shard or any(value is not None for value in session.options.values())):
        raise UsageError(
            f"--nats, --root, --data-dir and --shard have no effect: the worker {target} is made with `connect`, which opens its connection. "
            "Omit them, or omit `connect`.",
            code="conflicting-options",
        )
    url = None if session.options.get(("nats", "url")) else instance.options.nats_url
    settings = session.settings(worker__shards=tuple(shard) if shard else None, nats__url=url)
    offer(instance, builtin or [], settings.builtin)
    allow(instance, secret or ())
    work = _run_connected(instance, settings) if is_connected else _run_worker(session, instance, settings)
    run_until_stopped(work, on_refresh=refresh_timezones)


async def _run_connected(instance: "Worker", settings: "Settings") -> None:
    async with process_metrics_served(settings) as readiness:
        readiness.watch_nothing()
        readiness.started.set()
        await until_done(instance.serve(), stop=instance.stop)


async def _run_worker(session: Session, instance: "Worker", settings: "Settings") -> None:
    async with (
        process_metrics_served(settings) as readiness,
        session.installation(settings, within=None, checked=False) as installation,
    ):
        readiness.watch(installation)
        readiness.started.set()
        await session.backend.run_worker(installation, instance)
