"""The connection to the installation that the settings name."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from ..adapters.commit_stored import CommitStoredLog
from ..adapters.extras import require_extra
from ..adapters.history import open_history
from ..adapters.kept_scopes import OpenEvents
from ..adapters.nats.admin.desired_state import require_layout
from ..adapters.nats.client.connection import Connection
from ..adapters.nats.client.connection import connect as connect_nats
from ..adapters.nats.client.credentials import security_of
from ..adapters.nats.client.jetstream_wait import LEADER_TIMEOUT_S, find_key, retry_until_available
from ..adapters.nats.client.jetstream_wait import await_log as await_nats_log
from ..adapters.nats.client.names import Names
from ..adapters.nats.log.commit_log import NatsCommitLog, NatsTurnChannel
from ..adapters.nats.log.event_log import NatsEventLog
from ..adapters.nats.log.projections import NatsProjections
from ..adapters.nats.log.stored_log import NatsArchiveStore, NatsStoredLog
from ..adapters.routed_log import RoutedLog
from ..adapters.s3.bucket import S3_EXTRA, Bucket, S3ArchiveStore
from ..adapters.scope_reads import ScopeReads
from ..adapters.system_clock import SystemClock
from ..archive.log_archive import LogArchive
from ..domain.ids import fingerprint
from ..engine.foreign_reports import ForeignMessages
from ..ports import (
    ArchiveStore,
    Clock,
    EventHistory,
    EventLog,
    History,
    InputLog,
    LogUnavailable,
    Projections,
    StoredLog,
    Unreachable,
)
from ..settings import Settings
from ..settings.s3 import S3_SCHEME, s3_location
from ..subjects import Stream
from .commit_process import Commits

FOLDER_SCHEME: Final = "file://"
"""Prefix of an archive target that is a folder."""


ARCHIVE_IN_S3: Final = "`archive.target` in S3"


SQLITE: Final = "sqlite:///"
MAX_CONNECTIONS: Final = 2


@asynccontextmanager
async def kept_events(url: str, key: Callable[[], Awaitable[bytes]]) -> AsyncIterator[OpenEvents]:
    """Yield a function that opens the history once, and close it at the end.

    `key`: returns the key of the installation that has the events.
    """
    opening = asyncio.Lock()
    histories: list[History] = []
    async with AsyncExitStack() as stack:

        async def opened() -> EventHistory | None:
            async with opening:
                if not histories and _exists(url):
                    installation = fingerprint(await key())
                    history = open_history(url, installation=installation, max_connections=MAX_CONNECTIONS)
                    histories.append(await stack.enter_async_context(history))
                return next((each for each in histories if isinstance(each, EventHistory)), None)

        yield opened


def _exists(url: str) -> bool:
    return not url.startswith(SQLITE) or Path(url.removeprefix(SQLITE)).exists()


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The settings and the ports of an installation, on NATS or in memory."""

    settings: Settings
    log: EventLog
    projections: Projections
    clock: Clock
    stored: StoredLog
    """Every message ever stored, in the streams or in the archive."""
    foreign: ForeignMessages = field(default_factory=ForeignMessages)


@dataclass(frozen=True, kw_only=True)
class Installation(Ports):
    """One Tocsin on one NATS. The command line, the stages and the workers receive it."""

    names: Names
    connection: Connection
    inputs: InputLog
    """The log of inputs, without the decisions."""
    commits: Commits

    @asynccontextmanager
    async def history(self) -> AsyncIterator[History]:
        """Open the history of the settings' database."""
        database = self.settings.database
        async with open_history(
            database.url, installation=await self.identity(), max_connections=database.max_connections
        ) as history:
            yield history

    async def identity(self) -> str:
        """Return a public identifier of the installation, which does not reveal its key."""
        return fingerprint(await self.report_key())

    async def report_key(self) -> bytes:
        """Return the key that proves the worker of each report.

        Raises:
            Unreachable: the installation was never initialized, or by another version with another layout.
        """
        return await _stored_key(self.connection, self.names)


@asynccontextmanager
async def connect(settings: Settings, *, within: float | None = 10.0) -> AsyncIterator[Installation]:
    """Connect to the NATS of the settings.

    `within`: seconds until it gives up; None: wait without a time limit.

    Raises:
        Unreachable: NATS does not answer, or refuses the connection.
        SettingsError: the credentials that the settings name cannot be used.
    """
    names = names_of(settings)
    async with AsyncExitStack() as stack:
        try:
            connection = await stack.enter_async_context(connect_client(settings, within=within))
        except LogUnavailable as error:
            unreachable = Unreachable(str(error))
            unreachable.code = error.code
            raise unreachable from error
        projections = NatsProjections(connection, names)
        store = archive_store(settings, connection)
        foreign, inputs = ForeignMessages(), NatsEventLog(connection, names)
        clock = SystemClock()
        archive = LogArchive(store, projections)
        key = partial(_stored_key, connection, names)
        history = await stack.enter_async_context(kept_events(settings.database.url, key))
        commits = Commits(
            NatsCommitLog(connection, names.commits_stream, names.commits_prefix),
            NatsTurnChannel(connection, names.turns),
            *(inputs, projections, clock, archive, key, foreign),
            installation=names.root,
            history=history,
        )
        await stack.enter_async_context(commits.reading())
        yield Installation(
            settings=settings,
            names=names,
            connection=connection,
            log=RoutedLog(inputs, commits.view),
            inputs=inputs,
            commits=commits,
            stored=stored_log(NatsStoredLog(connection, names), commits),
            foreign=foreign,
            projections=projections,
            clock=clock,
        )


def stored_log(streams: StoredLog, commits: Commits) -> CommitStoredLog:
    """Return the streams and the log of commits, with their archive; `streams`: without it."""
    return CommitStoredLog(
        streams, commits.reader, commits.archive, partial(_newest, commits), partial(_reads, commits)
    )


async def _newest(commits: Commits) -> int:
    return await (await commits.view()).end(Stream.LOG)


async def _reads(commits: Commits) -> ScopeReads:
    return (await commits.view()).reads


def connect_client(settings: Settings, *, within: float | None) -> AbstractAsyncContextManager[Connection]:
    """Open a connection of its own to the NATS of the settings."""
    security = security_of(settings.nats)
    return connect_nats(
        servers(settings),
        within=within,
        is_encrypted=security.is_encrypted,
        fast_client=settings.nats.fast_client,
        proof=security,
        **security.client,
    )


async def await_log(installation: Installation) -> None:
    """Wait until the log answers, without a time limit.

    Processes that keep running may be started while JetStream elects a leader.
    """
    await await_nats_log(installation.connection, installation.names)


def names_of(settings: Settings) -> Names:
    return Names(settings.root, settings.trigger_prefix, settings.public_prefix, settings.mq_prefix)


async def is_set_up(installation: Installation, *, within: float | None) -> bool:
    """Return whether the installation was ever initialized.

    `within`: seconds until it gives up; None: wait without a time limit.

    Raises:
        LogUnavailable: the log did not answer in time.
        NotAllowed: the NATS user may not read the key.
        UnsupportedLayout: another version of Tocsin initialized it.
    """
    return await _key(installation.connection, installation.names, within) is not None


async def _stored_key(connection: Connection, names: Names) -> bytes:
    key = await _key(connection, names, LEADER_TIMEOUT_S)
    if key is None:
        raise Unreachable(f"nothing is set up under {names.root!r} on this NATS: run `tocsin init` first")
    return key


async def _key(connection: Connection, names: Names, within: float | None) -> bytes | None:
    key = await retry_until_available(partial(find_key, connection, names), within=within)
    if key is not None:
        await retry_until_available(partial(require_layout, connection, names), within=within)
    return key


def servers(settings: Settings) -> list[str]:
    """Return the URLs of the NATS servers: a single server, or servers of a cluster."""
    return [url.strip() for url in settings.nats.url.split(",")]


def require_archive_extra(settings: Settings) -> None:
    """Refuse an archive in S3 without its client."""
    if settings.archive.target.startswith(S3_SCHEME):
        require_extra(ARCHIVE_IN_S3, S3_EXTRA)


def archive_store(settings: Settings, connection: Connection) -> ArchiveStore:
    """Return the store of the archive's objects: in NATS, in a folder, or in S3."""
    target = settings.archive.target
    if target.startswith(S3_SCHEME):
        return S3ArchiveStore(Bucket(s3_location(target), settings.archive.s3, part=ARCHIVE_IN_S3))
    if not target.startswith(FOLDER_SCHEME):
        return NatsArchiveStore(connection, names_of(settings))
    from ..adapters.files.archive_store import FileArchiveStore  # noqa: PLC0415 - its package imports PyYAML

    return FileArchiveStore(Path(target.removeprefix(FOLDER_SCHEME)))
