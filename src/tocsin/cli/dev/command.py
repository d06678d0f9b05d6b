"""`tocsin dev`: the whole scheduler in one process, with a live view."""

import asyncio
import shlex
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from ... import __version__
from ...adapters.extras import is_installed, require_extra
from ...bootstrap.operators import operator_of, status_of
from ...ports import LogUnavailable
from ...services import tail
from ...services.apply import apply_definitions
from ...settings import DEFAULT, origins, shown
from ..input.objects import load_worker
from ..jobs.apply import OWNER, read
from ..jobs.plan_page import as_json, summary
from ..processes.builtin_worker import BuiltinFunctions, Secrets, allow, builtin_worker, offer
from ..runtime.errors import UsageError
from ..runtime.event_loop import refresh_timezones, serve
from ..runtime.session import Session, actor
from .app_runner import AppRunner
from .live import LiveView, task_lines
from .nats_server import Wanted, ephemeral_folder

if TYPE_CHECKING:
    from ...bootstrap import Installation
    from ...domain.definition import JobDefinition
    from ...services.health.status import Status
    from ...settings import Settings
    from ...worker import Worker


TICKER: Final = "ticker"
"""The stage that starts all scheduled work."""
QUEUE_CHECK_INTERVAL_S: Final = 5.0
"""Seconds between two checks of the queues."""


def _checked_size(nodes: int | None) -> int | None:
    if nodes not in {None, 3, 5}:
        raise typer.BadParameter(
            f"{nodes} nodes are not supported, because a stream needs a majority and has at most 5 replicas: use 3 or 5"
        )
    return nodes


def dev(  # noqa: PLR0913, PLR0917 - an argument for each option
    session: Session,
    target: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:ATTRIBUTE", help="An application to run too, in a module or in FILE.py."),
    ] = None,
    reload: Annotated[
        bool | None,
        typer.Option(
            "--reload/--no-reload",
            help="Run the application's new code when its files change; default: yes if the extra `reload` is installed.",
        ),
    ] = None,
    jobs: Annotated[
        list[str] | None, typer.Option("--jobs", "-f", metavar="FILE|FOLDER", help="Definitions to apply at the start.")
    ] = None,
    worker: Annotated[
        str | None, typer.Option(metavar="MODULE:ATTRIBUTE", help="A worker to run too, in a module or in FILE.py.")
    ] = None,
    builtin: BuiltinFunctions = None,
    secret: Secrets = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port of the private server; by default 4222, or a free port.")
    ] = None,
    cluster: Annotated[
        int | None,
        typer.Option(
            metavar="NODES", callback=_checked_size, help="A NATS cluster of 3 or 5 nodes instead of a single server."
        ),
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Keep no data; a server of --nats keeps its streams.")
    ] = False,
    allow_reset: Annotated[
        bool,
        typer.Option("--allow-reset", help="Let POST /dev/reset end and remove everything, for conformance suites."),
    ] = False,
) -> None:
    """Run everything in this process and show events until Ctrl-C.

    Starts a private NATS server unless --nats or TOCSIN_NATS_URL names a server. With --cluster every node is a process:
    kill a node and see that nothing is lost; it is restarted. An application runs in a process of its own. Its jobs
    become those of its code; others of the same application are deleted.

    Example: `tocsin dev billing.py:app`
    """
    require_extra("tocsin dev", "server")
    reloads = _reloads(target, reload)
    if ephemeral and session.options.get(("data_dir",)) is not None:
        raise UsageError(
            "--ephemeral keeps no data, but --data-dir names a data folder: omit --ephemeral or --data-dir",
            code="conflicting-options",
        )
    session.log("error", tasks="info")
    settings = session.settings()
    worker_object = load_worker(worker).worker if worker else None
    if builtin or (secret and (worker or not target)):
        worker_object = _extended(worker_object, builtin or [], secret or [], settings)
    # A wrong file is reported before a server starts.
    definitions = read(settings, jobs or [], OWNER) if jobs or settings.jobs_file else None
    say = partial(_say, session)
    runner = AppRunner(target, secret or [], say, is_json=session.output.is_json, reload=reloads) if target else None
    if target and reload is None and not reloads:
        say("reload", "a change needs a restart. To reload, run: pip install 'tocsin[reload]'")
    parts = Given(definitions, worker_object, runner)
    work = _dev(session, parts, Wanted(port, cluster), ephemeral=ephemeral, reset=allow_reset)
    serve(work, on_refresh=refresh_timezones)


@dataclass(frozen=True)
class Given:
    """The parts of an installation that the call names."""

    definitions: "Sequence[JobDefinition] | None"
    """Those of files; None: no file is named."""
    worker: "Worker | None"
    app: AppRunner | None


def _reloads(target: str | None, reload: bool | None) -> bool:
    """Return whether the application is reloaded."""
    if reload and target is None:
        raise UsageError(
            "--reload is for an application: name it as FILE.py:NAME, or omit --reload", code="conflicting-options"
        )
    if reload:
        require_extra("tocsin dev --reload", "reload")
    return target is not None and reload is not False and is_installed("reload")


def _extended(worker: "Worker | None", builtin: list[str], secrets: list[str], settings: "Settings") -> "Worker":
    """Return the worker, by default of all queues, with built-in functions and secrets."""
    worker = worker or builtin_worker(builtin, settings.matched_queues, None)
    offer(worker, builtin, settings.builtin)
    allow(worker, secrets)
    return worker


async def _dev(session: Session, given: Given, nats: Wanted, *, ephemeral: bool, reset: bool) -> None:
    async with AsyncExitStack() as stack:
        if session.log_level is None and not session.output.is_json:
            stack.enter_context(task_lines(session.output))
        if ephemeral:
            nats = replace(nats, data_dir=stack.enter_context(ephemeral_folder()))
        if given.app is not None:
            # A wrong application is reported before a server starts.
            await stack.enter_async_context(given.app.imported())
        running = await stack.enter_async_context(nats.running(session))
        settings = running.settings
        installation = await stack.enter_async_context(session.backend.connect(settings))
        await session.backend.initialize(installation)
        store = f"data in {settings.data_dir}"
        if ephemeral:
            store = "nothing is kept" if running.is_own else "which keeps its streams; the history is not kept"
        server = shown(settings)["nats.url"]
        _say(session, "tocsin", f"{__version__} on {server}, {store}", nats_url=server)
        _say(session, "shell", f"export TOCSIN_NATS_URL={server} TOCSIN_DATA_DIR={shlex.quote(str(settings.data_dir))}")
        if nodes := running.nodes():
            shown_nodes = " · ".join("{name} {url} pid {pid}".format(**node) for node in nodes)
            _say(session, "cluster", shown_nodes, nodes=nodes)
        after = await tail.newest(installation.log)
        keeping = running.keeping(lambda node, text: _say(session, "node", f"{node.name} {text}", node=node.name))
        view = LiveView(session.output, await installation.log.now()).run(installation.log, after=after)
        await _run(session, installation, given, *keeping, view, reset=reset)


async def _register(session: Session, installation: "Installation", given: Given) -> None:
    operator, settings = operator_of(installation, installation.history, by=actor()), installation.settings
    if given.definitions is not None:
        plan = await apply_definitions(operator, given.definitions, settings)
        _say(session, "jobs", summary(plan).plain, **as_json(plan))
    if given.app is not None:
        await given.app.connect(session, operator, settings)


async def _run(
    session: Session,
    installation: "Installation",
    given: Given,
    *first: Coroutine[Any, Any, None],
    reset: bool,
) -> None:
    """Run the parts: servers first, ticker last.

    They end in reverse order; each ends after the parts that depend on it.
    """
    ready = asyncio.Event()
    parts = [asyncio.create_task(part) for part in first]
    try:
        stages = session.backend.run_stages(
            installation, [name for name in session.backend.stages() if name != TICKER], ready=ready
        )
        parts.append(asyncio.create_task(stages))
        await _first(parts, ready)
        await _register(session, installation, given)
        served = asyncio.Event()
        parts.append(asyncio.create_task(_serve(session, installation, served, reset=reset)))
        await _first(parts, served)
        if given.worker is not None:
            parts.append(asyncio.create_task(session.backend.run_worker(installation, given.worker)))
        if given.app is not None:
            parts.append(asyncio.create_task(given.app.run()))
        parts.append(asyncio.create_task(_watch_queues(session, installation)))
        parts.append(
            asyncio.create_task(session.backend.run_stages(installation, (TICKER,)))
        )  # ends first, so that no new execution starts
        _say(session, "ready", "Ctrl-C stops it")
        await _first(parts)
    finally:
        _say(session, "ending", "running work finishes first; a second Ctrl-C stops immediately")
        for part in reversed(parts):
            part.cancel()
            await asyncio.wait([part])


async def _serve(session: Session, installation: "Installation", served: asyncio.Event, *, reset: bool) -> None:
    """Serve the API and the metrics.

    A port that the settings leave at its default may be replaced by a free port.
    """
    sources = origins(installation.settings)
    any_port = [port for port in ("server.port", "metrics.port") if sources[port] == DEFAULT]
    async with session.backend.serving(installation, any_port=any_port, allow_reset=reset) as url:
        console = installation.settings.server.console_url(url)
        _say(session, "api", f"{url}, console at {console}" if console else url, url=url, console=console)
        served.set()
        await asyncio.Event().wait()


async def _watch_queues(session: Session, installation: "Installation") -> None:
    """Report once that tasks of a queue or a function wait without a worker.

    The report is repeated if they had a worker in the meantime.
    """
    reported: set[tuple[str, str | None]] = set()
    while True:
        await asyncio.sleep(QUEUE_CHECK_INTERVAL_S)
        try:
            status = await status_of(installation)
        except LogUnavailable:
            continue  # the cluster elects a leader; check again later
        found = {(queue, function): text for queue, function, text in _unserved(status)}
        for (name, function), text in found.items():
            if (name, function) not in reported:
                _say(session, "queue", text, queue=name, function=function)
        reported = set(found)


def _unserved(status: "Status") -> Iterator[tuple[str, str | None, str]]:
    """Yield queues and functions whose tasks wait without a worker, with their lines."""
    waiting = {queue.name: queue for queue in status.queues if queue.waiting}
    for queue in waiting.values():
        if queue.is_unattended:
            advice = "run `tocsin worker …`, or pass an application, --worker or --builtin"
            yield queue.name, None, f"tasks of queue `{queue.name}` wait without a worker: {advice}"
    for each in status.missing:
        if each.queue in waiting and each.function in (waiting[each.queue].functions or {}):
            yield each.queue, each.function, f"tasks wait: {each}"


async def _first(parts: Sequence["asyncio.Task[None]"], event: asyncio.Event | None = None) -> None:
    """Wait for an event, or until any part ends.

    A part ends by itself only if it fails, and then its error is raised.
    """
    waiting = asyncio.create_task((event or asyncio.Event()).wait())
    try:
        await asyncio.wait([waiting, *parts], return_when=asyncio.FIRST_COMPLETED)
        for part in parts:
            if part.done():
                part.result()
    finally:
        waiting.cancel()


def _say(session: Session, event: str, text: str, **particulars: object) -> None:
    line = Text.assemble((f"{event:<8}", "bold"), (f"  {text}", "dim"))
    session.output.line({"event": event, "text": text, **particulars}, line, is_whole=True)
