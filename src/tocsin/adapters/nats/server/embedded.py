"""Runs a private nats-server with JetStream, so that development and tests need nothing installed beside Tocsin.

    with EmbeddedServer(store_dir).start() as server: ...           # from plain code
    async with EmbeddedServer(store_dir).running() as server: ...   # from async code, without blocking the loop

The server listens on 127.0.0.1 only and never outlives the process that started it, not even one ended by SIGKILL
(`server_process` says how). A store directory belongs to one server at a time.
"""

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from .process import (
    HOST,
    Addresses,
    Launch,
    Membership,
    PortTakenError,
    ServerFiles,
    ServerStartError,
    StoreInUseError,
    checked_binary,
    end,
    installed_binary,
)

__all__ = [
    "ANY_PORT",
    "USUAL_PORT",
    "EmbeddedServer",
    "PortTakenError",
    "RunningServer",
    "ServerStartError",
    "StoreInUseError",
    "running",
]

USUAL_PORT: Final = 4222
ANY_PORT: Final = 0


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """What to start; nothing runs yet.

    Attributes:
        store_dir: where streams survive restarts; made when missing. None: a temporary directory, gone with the server.
        port: None for 4222, or any free one when 4222 is taken; `ANY_PORT` for any free one; else exactly this one.
        sync_always: flush every write to the disk before acknowledging it. About a third of the rate, and the only
            setting in which "acknowledged" survives a power failure.
        binary: the nats-server to run; None for the one installed with Tocsin.
        ready_within: seconds until a server that does not answer is given up. A store of a million messages takes
            about 1.5 s to read.
        membership: its place in a cluster (`cluster` makes those); None: it stands alone.

    """

    store_dir: Path | None = None
    port: int | None = None
    sync_always: bool = False
    binary: Path | None = None
    ready_within: float = 30.0
    membership: Membership | None = None

    def start(self) -> "RunningServer":
        """Start the server and return once it answers: about 15 ms on an empty store.

        Raises:
            StoreInUseError: another embedded server runs on the store directory.
            PortTakenError: the one port that was asked for is in use.
            ServerStartError: no binary, an unusable directory, or a server that ended or hung; the text holds the last
                lines of its log.

        """
        binary = installed_binary() if self.binary is None else checked_binary(self.binary)
        ephemeral = self.store_dir is None
        store_dir = Path(tempfile.mkdtemp(prefix="tocsin-nats-")) if self.store_dir is None else self.store_dir
        files = ServerFiles(store_dir.resolve())
        try:
            with files.locked() as lock:
                launch = Launch(binary, files, lock, self.sync_always, ephemeral, self.ready_within, self.membership)
                process, addresses = self._launched(launch)
                files.note_owner(lock, f"pid {process.pid}, nats://{HOST}:{addresses.port}")
        except BaseException:
            if ephemeral:
                shutil.rmtree(files.store_dir, ignore_errors=True)
            raise
        return RunningServer(process, files, addresses, ephemeral=ephemeral)

    def running(self) -> contextlib.AbstractAsyncContextManager["RunningServer"]:
        """Start the server in a thread, stop it in one at the end. Raises what `start` raises."""
        return running(self.start)

    def _launched(self, launch: Launch) -> tuple[subprocess.Popen[bytes], Addresses]:
        if self.port is not None:
            return launch.on_port(self.port)
        try:
            return launch.on_port(USUAL_PORT)
        except PortTakenError:
            return launch.on_port(ANY_PORT)


class Stoppable(Protocol):
    """What was started, and is stopped by a call that may block."""

    def stop(self) -> None:
        """End it."""
        ...


S = TypeVar("S", bound=Stoppable)


@contextlib.asynccontextmanager
async def running(start: Callable[[], S]) -> AsyncIterator[S]:
    """Start in a thread, stop in one at the end. Raises what `start` raises."""
    starting = asyncio.ensure_future(asyncio.to_thread(start))
    try:
        started = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # The thread cannot be interrupted: what it starts after us has to be stopped here.
        with contextlib.suppress(ServerStartError):
            (await starting).stop()
        raise
    try:
        yield started
    finally:
        await asyncio.to_thread(started.stop)


class RunningServer:
    """A nats-server of ours that answers; a context manager that stops it at the end."""

    def __init__(
        self, process: subprocess.Popen[bytes], files: ServerFiles, addresses: Addresses, *, ephemeral: bool
    ) -> None:
        self._process = process
        self._ephemeral = ephemeral
        self.port: Final = addresses.port
        self.monitoring: Final = addresses.monitoring
        self.store_dir: Final = files.store_dir
        self.log_file: Final = files.log

    @property
    def url(self) -> str:
        """What a client connects to."""
        return f"nats://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's own process, for a test that kills it."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; below 0: by which signal; None: it runs."""
        return self._process.poll()

    def stop(self, within: float = 10.0) -> None:
        """End the server, by force when it has not ended `within` that many seconds. Stopping twice is no error."""
        end(self._process, within)
        if self._ephemeral:
            shutil.rmtree(self.store_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
