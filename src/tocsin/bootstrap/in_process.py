"""Stages, a worker and the HTTP API in the event loop of an application."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from .. import telemetry
from ..adapters.extras import require_extra
from ..domain.definition import JobDefinition
from ..domain.errors import TocsinError
from ..domain.events import Actor
from ..services.apply import with_defaults
from ..services.operator import OpenHistory, Operator
from ..settings import Settings
from ..worker import Worker
from .in_memory import InMemoryInstallation, open_in_memory, run_stages_in_memory
from .installation import Installation, connect
from .operators import opened_once, operator_of, recorded_history
from .provision import initialize
from .stage_runner import STAGE_NAMES, run_stages
from .workers import connection_of, worker_connection

CONNECT_WITHIN_S: Final = 30.0
"""How long an application waits for the NATS of the settings when it starts."""
DATABASE: Final = "history.db"

_log = telemetry.get_logger("tocsin")


class NotInMemory(TocsinError):
    """An installation in memory lacks what was requested."""

    code = "not-in-memory"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} needs a NATS server, and this installation is in memory: use `Tocsin.embedded(…)`, or the NATS of your settings"
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a process."""

    worker: Worker
    definitions: Sequence[JobDefinition]
    owner: str
    register: bool
    """Register the definitions, and delete other jobs of the owner."""
    stages: bool
    server: bool
    by: Actor | None = None


Running: TypeAlias = AbstractAsyncContextManager[tuple[Operator, str | None]]
"""A running installation: its operator, and the URL of its HTTP API; None: it has no API."""


@asynccontextmanager
async def on_nats(settings: Settings, parts: Parts) -> AsyncIterator[tuple[Operator, str | None]]:
    """Run parts on the NATS of the settings within the block."""
    async with connect(settings, within=CONNECT_WITHIN_S) as installation, _on(installation, parts) as running:
        yield running


@asynccontextmanager
async def embedded(settings: Settings, folder: Path, parts: Parts) -> AsyncIterator[tuple[Operator, str | None]]:
    """Run parts on a nats-server of their own, with its data in a folder."""
    require_extra("an embedded installation", "server")
    from ..adapters.nats.server.embedded import ANY_PORT, EmbeddedServer  # noqa: PLC0415 - POSIX only

    async with EmbeddedServer(folder / "nats", ANY_PORT).running() as server:
        own = settings.model_copy(
            update={
                "data_dir": folder,
                "nats": settings.nats.model_copy(update={"url": server.url}),
                "database": settings.database.model_copy(update={"url": f"sqlite:///{folder / DATABASE}"}),
            }
        )
        async with connect(own, within=CONNECT_WITHIN_S) as installation:
            await initialize(installation)
            async with _on(installation, parts) as running:
                yield running


@asynccontextmanager
async def in_memory(settings: Settings, parts: Parts) -> AsyncIterator[tuple[Operator, str | None]]:
    """Run parts in the memory of the process within the block.

    Raises:
        NotInMemory: the API, or a worker without stages, was requested.
    """
    if parts.server:
        raise NotInMemory("the HTTP API")
    if not parts.stages:
        raise NotInMemory("a process without stages")
    async with open_in_memory(settings) as installation:
        ready = asyncio.Event()
        async with _until_end("stages", run_stages_in_memory(installation, ready=ready), ready):
            operator = operator_in_memory(installation, parts.by)
            await _register(operator, parts, settings)
            connection = connection_of(installation, installation.agents, parts.worker.options)
            async with parts.worker.running(connection):
                yield operator, None


@asynccontextmanager
async def _on(installation: Installation, parts: Parts) -> AsyncIterator[tuple[Operator, str | None]]:
    await installation.report_key()  # raises unless it is initialized
    async with AsyncExitStack() as stack:
        if parts.stages:
            require_extra("stages in an application", "server")
            ready = asyncio.Event()
            await stack.enter_async_context(
                _until_end("stages", run_stages(installation, STAGE_NAMES, ready=ready), ready)
            )
        # The stages of this process fill the history, so that it may be empty for a moment.
        open_history = installation.history if parts.stages else partial(recorded_history, installation)
        history = await stack.enter_async_context(opened_once(open_history))
        operator = operator_of(installation, history, by=parts.by)
        await _register(operator, parts, installation.settings)
        connection = await stack.enter_async_context(worker_connection(installation, parts.worker.options))
        await stack.enter_async_context(parts.worker.running(connection))
        url = None
        if parts.server:
            require_extra("the HTTP API in an application", "server")
            from .api_server import serving  # noqa: PLC0415 - the web framework takes long to import

            url = await stack.enter_async_context(serving(installation))
        yield operator, url


@asynccontextmanager
async def _until_end(name: str, run: Coroutine[Any, Any, None], ready: asyncio.Event) -> AsyncIterator[None]:
    """Run a part within the block, which begins when it is ready.

    If the part fails meanwhile, that is logged, and the end of the block raises its error.
    """
    part = asyncio.create_task(run, name=name)
    part.add_done_callback(_log_failure)
    started = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({part, started}, return_when=asyncio.FIRST_COMPLETED)
        if part.done():
            part.result()
        yield
    finally:
        started.cancel()
        part.cancel()
        await asyncio.wait({part})
        if not part.cancelled() and (error := part.exception()) is not None:
            raise error


def _log_failure(part: "asyncio.Task[None]") -> None:
    if not part.cancelled() and (error := part.exception()) is not None:
        _log.error(f"{part.get_name()} failed", action="part-failed", part=part.get_name(), exc_info=error)


async def _register(operator: Operator, parts: Parts, settings: Settings) -> None:
    if parts.register:
        definitions = await with_defaults(operator, parts.definitions, settings)
        await operator.carry_out(await operator.plan(definitions, prune=(parts.owner,)))


def operator_in_memory(
    installation: InMemoryInstallation, by: Actor | None, *, history: OpenHistory | None = None
) -> Operator:
    """Return the operator of an installation in memory. `history`: None: its recorder's."""

    async def queues(_: object) -> Any:  # noqa: ANN401 - it raises
        raise NotInMemory("the list of queues")

    async def status() -> Any:  # noqa: ANN401 - it raises
        raise NotInMemory("the status of all parts")

    return Operator(
        installation.log,
        installation.stored,
        installation.projections,
        installation.clock,
        history=history or installation.history,
        queues=queues,
        status=status,
        settings=installation.settings,
        by=by,
    )
