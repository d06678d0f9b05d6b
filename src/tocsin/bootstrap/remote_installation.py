"""An installation behind its HTTP API, for commands that need no NATS: `tocsin --server URL`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, cast

import httpx
from nats.aio.client import Client
from typing_extensions import override

from ..adapters.http.client import Api, RemoteHistory, RemoteLog, RemoteRegistry
from ..adapters.nats.client.connection import Connection
from ..adapters.nats.log.archive_store import NatsArchiveStore
from ..adapters.nats.log.projections import NatsProjections
from ..adapters.nats.log.stored_log import NatsStoredLog
from ..adapters.system_clock import SystemClock
from ..archive.archive import Archive
from ..ports import EventLog, History
from ..settings import Settings
from . import Installation, names_of

TIMEOUT: Final = 60.0
"""Seconds in which the API must answer."""


@dataclass(frozen=True)
class RemoteInstallation(Installation):
    """What commands do that need no NATS, they do here too."""

    api: Api
    remote_log: RemoteLog

    def remote_registry(self) -> RemoteRegistry:
        """The jobs."""
        return RemoteRegistry(self.api, self.remote_log, self.projections)

    @asynccontextmanager
    @override
    async def history(self) -> AsyncIterator[History]:
        yield cast("History", RemoteHistory(self.api))


@asynccontextmanager
async def connect(settings: Settings, url: str, token: str | None) -> AsyncIterator[RemoteInstallation]:
    """The installation whose API is served at `url`."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT) as http:
        api, names, nowhere = Api(http), names_of(settings), Connection(Client())
        log, projections = RemoteLog(api), NatsProjections(nowhere, names)
        yield RemoteInstallation(
            settings=settings,
            names=names,
            connection=nowhere,
            log=cast("EventLog", log),
            stored=NatsStoredLog(nowhere, names),
            projections=projections,
            archive=Archive(NatsArchiveStore(nowhere, names), projections),
            clock=SystemClock(),
            api=api,
            remote_log=log,
        )
