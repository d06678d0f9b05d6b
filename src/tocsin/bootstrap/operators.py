"""The operator of an installation, over NATS or through its HTTP API."""

import asyncio
import getpass
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..domain.events import Actor
from ..ports import History, HistoryNotFound, LogUnavailable, NotAllowed, NotInitialized, RequestRefused
from ..services.definition_settings import UnheardStreams
from ..services.operator import OpenHistory, Operator
from ..settings import Settings
from ..subjects import Stream

if TYPE_CHECKING:  # a command over HTTP imports no client of NATS
    from ..services.health import Status
    from ..services.queues import ListJobs, QueueDetails
    from .installation import Installation

_SQLITE: Final = "sqlite:///"
_POINT: Final = (
    "`tocsin dev` keeps it in the folder that it prints, a recorder in its `database.url`; "
    "point to it with --data-dir FOLDER, TOCSIN_DATA_DIR or TOCSIN_DATABASE_URL"
)


@asynccontextmanager
async def connect_operator(settings: Settings, *, by: Actor | None, within: float) -> AsyncIterator[Operator]:
    """Connect to the NATS of the settings, and yield the operator of the installation.

    `within`: seconds until it gives up. `by` is recorded with each change.

    Raises:
        Unreachable: NATS does not answer, or refuses the connection.
        NotInitialized: the installation is not initialized.
        SettingsError: the credentials that the settings name cannot be used.
    """
    from .installation import connect, is_set_up  # noqa: PLC0415 - see above

    async with connect(settings, within=within) as installation:
        with suppress(NotAllowed):  # without the right to read the key, the first request reports the error
            if not await is_set_up(installation, within=within):
                raise NotInitialized.of(settings.root)
        async with opened_once(partial(recorded_history, installation)) as history:
            yield operator_of(installation, history, by=by)


def connect_api(url: str, token: str | None) -> AbstractAsyncContextManager[Operator]:
    """Return the operator of the HTTP API at `url`; it sends `token` as bearer token."""
    from ..adapters.http import client  # noqa: PLC0415 - only an operator over HTTP needs it

    return client.connect(url, token)


def operator_of(installation: "Installation", history: OpenHistory, *, by: Actor | None) -> Operator:
    return Operator(
        installation.log,
        installation.stored,
        installation.projections,
        installation.clock,
        history=history,
        queues=partial(queue_details, installation),
        status=partial(status_of, installation),
        settings=installation.settings,
        unheard_streams=partial(unheard_streams_of, installation),
        by=by,
    )


@asynccontextmanager
async def recorded_history(installation: "Installation") -> AsyncIterator[History]:
    """Open the history; never create an empty history.

    Raises:
        HistoryNotFound: the history does not exist, or it was never recorded from this installation.
    """
    place = _place_of(installation.settings.database.url)
    async with installation.history() as history:
        if not await history.offset(Stream.LOG) and await installation.log.last("execution.>") is not None:
            raise HistoryNotFound(f"nothing of this installation is recorded in {place}: {_POINT}")
        yield history


async def status_of(installation: "Installation") -> "Status":
    """Return the status of all parts (see `health.status`)."""
    from ..services import health  # noqa: PLC0415 - few operations need it
    from .provision import health_target  # noqa: PLC0415

    return await health.status(health_target(installation))


async def unheard_streams_of(installation: "Installation") -> UnheardStreams:
    """Return the streams that no trigger can hear; none if the server does not answer."""
    from ..services.health.unheard_triggers import unheard_streams  # noqa: PLC0415
    from .provision import health_target  # noqa: PLC0415

    settings = installation.settings
    try:
        return await unheard_streams(settings, health_target(installation).inspection)
    except (LogUnavailable, RequestRefused):
        return UnheardStreams()  # a warning is no reason to refuse a plan


async def queue_details(installation: "Installation", list_jobs: "ListJobs") -> "tuple[QueueDetails, ...]":
    """Return all queues (see `services.queues`)."""
    from ..services import queues  # noqa: PLC0415 - few operations need it
    from .provision import health_target  # noqa: PLC0415

    return await queues.queues(health_target(installation), list_jobs)


def local_actor(source: str) -> Actor:
    """Return the identity of this process's user, for the audit trail (hip-62, Audit Trail).

    `source`: the program, such as `cli`.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        user = "unknown"
    return Actor(identity=f"{user}@{socket.gethostname()}", kind="cli", source=source)


def _place_of(url: str) -> str:
    """Describe the place of the history; a database file must exist."""
    if not url.startswith(_SQLITE):
        return "the database of `database.url`"
    file = Path(url.removeprefix(_SQLITE))
    if not file.exists():
        raise HistoryNotFound(f"no history is kept in {file}: {_POINT}")
    return str(file)


@asynccontextmanager
async def opened_once(open_history: OpenHistory) -> AsyncIterator[OpenHistory]:
    """Within the block, open the history at its first use and keep it open."""
    opening = asyncio.Lock()
    histories: list[History] = []
    async with AsyncExitStack() as stack:

        @asynccontextmanager
        async def shared() -> AsyncIterator[History]:
            async with opening:
                if not histories:
                    histories.append(await stack.enter_async_context(open_history()))
            yield histories[0]

        yield shared
