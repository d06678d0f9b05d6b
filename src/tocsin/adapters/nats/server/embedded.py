"""A private nats-server with JetStream, for development and tests.

    with EmbeddedServer(store_dir).start() as server: ...           # plain code
    async with EmbeddedServer(store_dir).running() as server: ...   # async code; does not block the loop

The server listens on 127.0.0.1 only. It never outlives the process that started it, and a store directory belongs to one
server at a time (see `process`). POSIX only.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from typing_extensions import override

from .process import (
    BinaryNotFoundError,
    PortTakenError,
    ServerStartError,
    end,
    installed_binary,
    launch,
    locked_store,
)

HOST: Final = "127.0.0.1"
USUAL_PORT: Final = 4222
ANY_PORT: Final = 0
MAX_FILE_STORE: Final = 2**43
"""Bytes that streams may reserve. A stream of inputs reserves its limit, and a small disk must not refuse it."""


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """Options of a server.

    Attributes:
        store_dir: where streams survive restarts; created if missing. None: a temporary directory, removed at the end.
        port: None for 4222, or any free port if 4222 is taken; `ANY_PORT` for any free port; else exactly this port.
        sync_always: flush every write to the disk before acknowledging it. The rate falls to about a third, and
            acknowledged writes survive a power failure.
        binary: the nats-server program; None for the program that was installed with Tocsin.
        ready_within: seconds until a server that does not become ready is ended. Reading a store of a million messages
            takes about 1.5 s.
        extra_config: more fields of the server's configuration file; `cluster` adds a node's.
    """

    store_dir: Path | None = None
    port: int | None = None
    sync_always: bool = False
    binary: Path | None = None
    ready_within: float = 30.0
    extra_config: Mapping[str, object] = field(default_factory=dict)

    def start(self) -> "RunningServer":
        """Start the server and return once it accepts connections (15 ms without data).

        Raises:
            ServerStartError: it did not start. Known reasons have classes of their own, such as `PortTakenError`.
        """
        binary = self.binary or installed_binary()
        if not (binary.is_file() and os.access(binary, os.X_OK)):
            raise BinaryNotFoundError(f"{binary} is not an executable file. Name a nats-server program.")
        ephemeral = self.store_dir is None
        store_dir = Path(self.store_dir or tempfile.mkdtemp(prefix="tocsin-nats-")).resolve()
        try:
            with locked_store(store_dir) as lock:
                server = self._launch(binary.resolve(), store_dir, lock, ephemeral=ephemeral)
                os.pwrite(lock, f"pid {server.pid}, {server.url}".encode(), 0)  # for the error of a second starter
        except BaseException:
            if ephemeral:
                shutil.rmtree(store_dir, ignore_errors=True)
            raise
        return server

    def running(self) -> contextlib.AbstractAsyncContextManager["RunningServer"]:
        """Start the server in a thread and stop it at the end."""
        return running(self.start)

    def _launch(self, binary: Path, store_dir: Path, lock: int, *, ephemeral: bool) -> "RunningServer":
        config_file = store_dir / "nats-server.conf"
        for port in (USUAL_PORT, ANY_PORT) if self.port is None else (self.port,):
            # The server's configuration language contains JSON, except for \u escapes.
            text = json.dumps(self._config(store_dir, port), indent=2, ensure_ascii=False)
            config_file.write_text(text, encoding="utf-8")
            try:
                process, urls = launch(
                    [binary, "-c", config_file],
                    store_dir,
                    lock=lock,
                    ephemeral=ephemeral,
                    timeout_s=self.ready_within,
                )
            except PortTakenError as error:
                if self.port is None and port != ANY_PORT:
                    continue
                raise PortTakenError(
                    f"Port {port} is in use. Stop the program that listens there, or use --port 0 for any free port."
                ) from error
            return RunningServer(process, store_dir, urls, ephemeral=ephemeral)
        raise AssertionError

    def _config(self, store_dir: Path, port: int) -> dict[str, object]:
        store = {"store_dir": str(store_dir), "max_file_store": MAX_FILE_STORE}
        jetstream = store | ({"sync_interval": "always"} if self.sync_always else {})
        base: dict[str, object] = {"host": HOST, "port": port or -1, "ports_file_dir": str(store_dir)}
        return base | {"jetstream": jetstream} | dict(self.extra_config)


class Stoppable(ABC):
    """A started server or cluster; a context manager that stops it at the end."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it and wait for its end. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


S = TypeVar("S", bound=Stoppable)


class RunningServer(Stoppable):
    """A started nats-server; a context manager that stops it at the end."""

    def __init__(
        self, process: subprocess.Popen[bytes], store_dir: Path, urls: Mapping[str, list[str]], *, ephemeral: bool
    ) -> None:
        self._process = process
        self._ephemeral = ephemeral
        self.store_dir: Final = store_dir
        self.port: Final = int(urls["nats"][0].rpartition(":")[2])
        self.monitoring_url: Final = next(iter(urls.get("monitoring", ())), None)

    @property
    def url(self) -> str:
        """The URL that clients connect to."""
        return f"nats://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the server itself, so that a test can kill it."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; negative: the signal that ended the server; None: it runs."""
        return self._process.poll()

    @override
    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the server, with SIGKILL after `timeout_s` seconds. A second call does nothing."""
        end(self._process, timeout_s)
        if self._ephemeral:
            shutil.rmtree(self.store_dir, ignore_errors=True)


@contextlib.asynccontextmanager
async def running(start: Callable[[], S]) -> AsyncIterator[S]:
    """Call `start` in a thread, and stop its result in a thread at the end."""
    starting = asyncio.ensure_future(asyncio.to_thread(start))
    try:
        server = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # The thread cannot be interrupted, so wait for its server and stop it.
        with contextlib.suppress(ServerStartError):
            (await starting).stop()
        raise
    try:
        yield server
    finally:
        await asyncio.to_thread(server.stop)
