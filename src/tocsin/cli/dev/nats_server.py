"""The NATS of `tocsin dev`: a named server, or a private server or cluster."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...settings import Settings, origins
from ..runtime.errors import UsageError
from ..runtime.session import Session

if TYPE_CHECKING:
    from ...adapters.nats.server.cluster import Node, RunningCluster


@dataclass(frozen=True)
class DevNats:
    """A running NATS and the settings that lead to it."""

    settings: Settings
    cluster: "RunningCluster | None" = None
    is_own: bool = True
    """Whether it ends with this process."""

    def nodes(self) -> list[dict[str, object]]:
        nodes = self.cluster.nodes if self.cluster else ()
        return [{"name": node.name, "url": node.server.url, "pid": node.server.pid} for node in nodes]

    def keeping(self, report: "Callable[[Node, str], None]") -> list[Coroutine[Any, Any, None]]:
        return [self.cluster.restart_dead_nodes(report)] if self.cluster else []


@dataclass(frozen=True)
class Wanted:
    """The options of the command line about NATS."""

    port: int | None
    nodes: int | None
    """Nodes of a cluster; None: a single server."""
    data_dir: Path | None = None
    """The data folder; None: the folder of the settings."""

    @asynccontextmanager
    async def running(self, session: Session) -> AsyncIterator[DevNats]:
        """Start NATS, or use the server that the call names.

        A server in a configuration file does not count, because it may be in production.
        """
        settings = session.settings(data_dir=self.data_dir)
        origin = origins(settings)["nats.url"]
        if origin == "command line" or origin.startswith("TOCSIN_"):
            option = "--nats" if origin == "command line" else origin
            if self.nodes is not None:
                raise UsageError(
                    f"--cluster starts private servers, but {option} names existing servers: omit --cluster or {option}",
                    code="conflicting-options",
                )
            if self.port is not None:
                raise UsageError(
                    f"--port is for a private server, but {option} names an existing server: omit --port or {option}",
                    code="conflicting-options",
                )
            yield DevNats(settings, is_own=False)
        elif self.nodes is None:
            from ...adapters.nats.server.embedded import EmbeddedServer  # noqa: PLC0415 - few commands start a server

            async with EmbeddedServer(settings.data_dir / "nats", self.port).running() as server:
                yield DevNats(session.settings(data_dir=self.data_dir, nats__url=server.url))
        else:
            # A single server cannot become a node of a cluster, and a history belongs to one installation: use another folder.
            folder = settings.data_dir / f"cluster-{self.nodes}"
            from ...adapters.nats.server.cluster import EmbeddedCluster  # noqa: PLC0415 - as above

            async with EmbeddedCluster(folder / "nats", self.nodes, self.port).running() as cluster:
                session_settings = session.settings(data_dir=folder, nats__url=cluster.url, replicas=self.nodes)
                yield DevNats(session_settings, cluster)


_PREFIX: Final = "tocsin-dev-"


@contextmanager
def ephemeral_folder() -> Iterator[Path]:
    """Create a private folder that exists until the block ends."""
    _remove_remnants()
    folder, lock = _made()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_remnants() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another process holds it, or it is gone
            if folder.lstat().st_uid != os.getuid():
                continue
            lock = _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _made() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with suppress(FileNotFoundError):
            lock = _locked(folder, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)  # another process removed it before it was locked


def _locked(folder: Path, how: int) -> int:
    """Lock a folder and return the descriptor that holds the lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
