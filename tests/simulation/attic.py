"""The archive in the simulation: its store, the purge, and an archiver with a window of seconds."""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from tests.domain.given import KEY
from tocsin import subjects
from tocsin.adapters.memory.archive import InMemoryArchiveStore, InMemoryStreamPurge
from tocsin.archive.archive import Archive, Origin
from tocsin.archive.combined_log import CombinedLog
from tocsin.engine.leader_election import LeaderElection
from tocsin.engine.stage import BoundStage
from tocsin.ports import Extent, Projections, StoredMessage
from tocsin.stages.archiver.archive_eligibility import ArchiveEligibility
from tocsin.stages.archiver.finished_output import FinishedHeartbeats
from tocsin.stages.archiver.log_archiver import Keeping
from tocsin.stages.archiver.stage import ARCHIVER, Archiver, PacedPurge
from tocsin.stages.archiver.unproven_reports import UnprovenReports
from tocsin.subjects import RECORDED, Stream
from tocsin.testing import InMemoryStoredLog

from .network import Network, at_once
from .process import Process, ProcessClock

if TYPE_CHECKING:
    from .ports import SimulatedHistory
    from .server import SimulatedServer

WINDOW: Final = timedelta(seconds=4)
LATE: Final = WINDOW / 2
KEEPING: Final = Keeping(
    WINDOW, max_messages=1_000_000, history=timedelta(days=1), least=WINDOW, interval=1.0, settling=1.0
)


class Attic:
    """The archive, as one process has it. `whole`: what was ever stored."""

    def __init__(
        self,
        server: "SimulatedServer",
        store: InMemoryArchiveStore,
        projections: Projections,
        network: Network,
        process: Process,
    ) -> None:
        """Over the network."""
        self._server = server
        self._streams = _Streams(server, network, process)
        self._archive = Archive(_Store(store, network, process), projections)
        self._housekeeping = _Housekeeping(server, network, process)
        self.whole = CombinedLog(self._streams, self._archive)

    def archiver(self, history: "SimulatedHistory", leadership: LeaderElection, clock: ProcessClock) -> BoundStage:
        """A candidate for keeping it."""
        eligibility = ArchiveEligibility(
            self._streams,
            self._housekeeping,
            cast("Any", history),
            log=self._server,
            keeping=KEEPING,
            recorded=RECORDED,
        )
        archiver = Archiver(
            eligibility,
            PacedPurge(self._streams, self._housekeeping, self._archive, clock),
            self._archive,
            self._server,
            cast("Any", history),
            leadership,
            clock,
            origin=Origin(installation="i", root="tocsin", version="0"),
            keeping=KEEPING,
            output=None,
            heartbeats=FinishedHeartbeats(self._server, self._streams, self._housekeeping),
            unproven=UnprovenReports(self._server, self._streams, KEY, limit=-1),
        )
        return ARCHIVER.bind(archiver)


class _Streams:
    def __init__(self, server: "SimulatedServer", network: Network, process: Process) -> None:
        self._stored = InMemoryStoredLog(server)
        self._network = network
        self._process = process

    async def archived(self, stream: Stream) -> int:
        return await self._stored.archived(stream)

    async def may_be_archived(self, scope: str) -> bool:
        return await self._stored.may_be_archived(scope)

    async def archived_lines(self, execution_id: str) -> Sequence[StoredMessage]:
        return await self._stored.archived_lines(execution_id)

    async def extent(self, stream: Stream) -> Extent:
        return await self._network.ask(
            self._process, f"extent of {stream}", lambda: at_once(self._stored.extent(stream)), is_read=True
        )

    async def first(self, stream: Stream) -> int:
        return (await self.extent(stream)).first

    async def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncGenerator[Sequence[StoredMessage], None]:
        def answer() -> list[Sequence[StoredMessage]]:
            return at_once(self._collected(stream, filters, after, upto))

        what = f"messages of {stream} {after}..{upto}"
        for portion in await self._network.ask(self._process, what, answer, is_read=True):
            yield portion

    async def _collected(
        self, stream: Stream, filters: Sequence[str], after: int | datetime, upto: int
    ) -> list[Sequence[StoredMessage]]:
        return [portion async for portion in self._stored.messages(stream, *filters, after=after, upto=upto)]


class _Housekeeping:
    def __init__(self, server: "SimulatedServer", network: Network, process: Process) -> None:
        self._server = server
        self._housekeeping = InMemoryStreamPurge(server)
        self._network = network
        self._process = process

    async def decided(self, stream: Stream) -> int:
        return await self._network.ask(
            self._process, f"decided of {stream}", lambda: at_once(self._housekeeping.decided(stream)), is_read=True
        )

    def obstacle(self) -> str | None:
        return self._housekeeping.obstacle()

    async def purge(self, subject: str, *, upto: int) -> None:
        stream = subjects.stream_of(subject)

        def answer() -> None:
            covered = self._server.stream(stream).matching((subject,), 0)
            self._server.purged += [(stream, entry.sequence) for entry in covered if entry.sequence <= upto]
            at_once(self._housekeeping.purge(subject, upto=upto))

        await self._network.ask(self._process, f"purge {subject} up to {upto}", answer)


class _Store:
    def __init__(self, store: InMemoryArchiveStore, network: Network, process: Process) -> None:
        self._store = store
        self._network = network
        self._process = process

    async def put(self, name: str, body: bytes) -> None:
        await self._network.ask(self._process, f"keep {name}", lambda: at_once(self._store.put(name, body)))

    async def get(self, name: str) -> bytes | None:
        return await self._network.ask(
            self._process, f"fetch {name}", lambda: at_once(self._store.get(name)), is_read=True
        )
