"""The embedded nats-server: ready, alone on its store, and never orphaned."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nats
import pytest

from tocsin.adapters.nats.server.embedded import ANY_PORT, USUAL_PORT, EmbeddedServer, RunningServer
from tocsin.adapters.nats.server.process import PortTakenError, ServerStartError, StoreInUseError, installed_binary

GENEROUS_SECONDS = 20.0

OWNER = """
import sys, time
from pathlib import Path
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]) if sys.argv[1] else None, port=ANY_PORT).start()
print(server.port, server.pid, server.store_dir, flush=True)
time.sleep(600)
"""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GENEROUS_SECONDS
    while not true():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def session_is_empty(leader: int) -> bool:
    """Return whether neither the server nor its watchdog runs.

    A zombie counts as ended: in a container it may never be reaped. Reads /proc, so it is always true on macOS.
    """
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, group = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(group) == leader and state != "Z":
            return False
    return True


@pytest.fixture
def usual_port_taken() -> Iterator[None]:
    """Make sure that port 4222 is in use, by this socket or by another program."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not listens(USUAL_PORT):
            listener.bind(("127.0.0.1", USUAL_PORT))
            listener.listen()
        yield


async def stored(server: RunningServer, message: bytes | None = None) -> bytes:
    """Publish a message, if given, to a file stream and return the stream's last message."""
    client = await nats.connect(server.url)
    try:
        jetstream = client.jetstream()
        await jetstream.add_stream(name="KEPT", subjects=["kept"])
        if message is not None:
            await jetstream.publish("kept", message)
        return (await jetstream.get_last_msg("KEPT", "kept")).data or b""
    finally:
        await client.close()


async def test_started_server_has_jetstream() -> None:
    async with EmbeddedServer(port=ANY_PORT).running() as server:
        assert await stored(server, b"here") == b"here"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_server_inherits_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of `tocsin dev --builtin command` can read the environment of its user's processes."""
    monkeypatch.setenv("DB_PASSWORD", "hunter22")
    server = EmbeddedServer(port=ANY_PORT).start()
    try:
        environment = Path(f"/proc/{server.pid}/environ").read_bytes()
    finally:
        server.stop()
    assert b"PATH=" in environment
    assert b"hunter22" not in environment


@pytest.mark.usefixtures("usual_port_taken")
def test_free_port_is_used_if_4222_is_taken() -> None:
    with EmbeddedServer().start() as server:
        assert server.port != USUAL_PORT
        assert listens(server.port)


def test_explicit_port_is_used_or_reported_as_taken(tmp_path: Path) -> None:
    with EmbeddedServer(port=ANY_PORT).start() as first:
        with pytest.raises(PortTakenError, match=f"Port {first.port} is in use.*--port 0") as taken:
            EmbeddedServer(tmp_path, port=first.port).start()
        assert taken.value.code == "port-in-use"
        port = first.port
    with EmbeddedServer(tmp_path, port=port).start() as second:
        assert second.url == f"nats://127.0.0.1:{port}"


@pytest.mark.parametrize("sync_always", [False, True])
async def test_data_survives_restart(tmp_path: Path, *, sync_always: bool) -> None:
    embedded = EmbeddedServer(tmp_path / 'a "store" née 1', port=ANY_PORT, sync_always=sync_always)
    async with embedded.running() as server:
        await stored(server, b"kept")
    async with embedded.running() as server:
        assert await stored(server) == b"kept"


@pytest.mark.parametrize("sync_always", [False, True])
def test_sync_always_flushes_every_write(tmp_path: Path, *, sync_always: bool) -> None:
    with EmbeddedServer(tmp_path, port=ANY_PORT, sync_always=sync_always).start():
        jetstream = json.loads((tmp_path / "nats-server.conf").read_text(encoding="utf-8"))["jetstream"]
        assert jetstream.get("sync_interval") == ("always" if sync_always else None)


def test_store_can_be_used_after_server_crash(tmp_path: Path) -> None:
    embedded = EmbeddedServer(tmp_path, port=ANY_PORT)
    with embedded.start() as server:
        asyncio.run(stored(server, b"kept"))
        os.kill(server.pid, signal.SIGKILL)
        with embedded.start() as successor:
            assert asyncio.run(stored(successor)) == b"kept"


def test_ephemeral_server_leaves_nothing() -> None:
    server = EmbeddedServer(port=ANY_PORT).start()
    assert server.store_dir.is_dir()
    server.stop()
    server.stop()
    assert not server.store_dir.exists()
    assert not listens(server.port)
    wait_until(lambda: session_is_empty(server.pid))


@pytest.mark.parametrize("ephemeral", [False, True])
def test_server_ends_when_its_owner_is_killed(tmp_path: Path, *, ephemeral: bool) -> None:
    argument = "" if ephemeral else str(tmp_path)
    with subprocess.Popen([sys.executable, "-c", OWNER, argument], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        port, pid, store_dir = owner.stdout.readline().split()
        assert listens(int(port))
        owner.kill()
    wait_until(lambda: not listens(int(port)))
    if ephemeral:
        wait_until(lambda: not Path(store_dir).exists())
    else:
        EmbeddedServer(tmp_path, port=ANY_PORT).start().stop()
    wait_until(lambda: session_is_empty(int(pid)))


def test_store_directory_belongs_to_one_server(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, port=ANY_PORT).start() as first:
        with pytest.raises(StoreInUseError) as in_use:
            EmbeddedServer(tmp_path, port=ANY_PORT).start()
        assert in_use.value.code == "store-in-use"
        assert str(in_use.value).startswith(f"{tmp_path} ")
        assert f"(pid {first.pid}, {first.url})" in str(in_use.value)
        assert listens(first.port)


async def test_cancelled_start_leaves_no_server(tmp_path: Path) -> None:
    embedded = EmbeddedServer(tmp_path, port=ANY_PORT)
    starting = asyncio.ensure_future(embedded.running().__aenter__())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    (await asyncio.to_thread(embedded.start)).stop()


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        (None, "nats-server-not-found", "server is not an executable file"),
        (
            "#!/bin/sh\necho out of order >&2\nexit 3\n",
            "nats-server-not-started",
            "ended with exit code 3. The last lines of its log:\nout of order",
        ),
        (
            "#!/bin/sh\nexec sleep 60\n",
            "nats-server-not-started",
            "was not ready within 0.2 s. The last lines of its log:\n(nothing)",
        ),
    ],
    ids=["missing", "ends", "hangs"],
)
def test_bad_binary_is_reported_with_its_log(tmp_path: Path, script: str | None, code: str, reason: str) -> None:
    binary = tmp_path / "server"
    if script is not None:
        binary.write_text(script)
        binary.chmod(0o755)
    with pytest.raises(ServerStartError) as failure:
        EmbeddedServer(tmp_path / "store", port=ANY_PORT, binary=binary, ready_within=0.2).start()
    assert failure.value.code == code
    assert reason in str(failure.value)


def test_unusable_store_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServerStartError, match="file") as failure:
        EmbeddedServer(tmp_path / "file").start()
    assert failure.value.code == "store-unusable"


def test_path_is_searched_without_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.adapters.nats.server.process._WHEEL", "no-such-package")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerStartError, match="no-such-package") as failure:
        installed_binary()
    assert failure.value.code == "nats-server-not-found"
    (tmp_path / "nats-server").write_text("")
    (tmp_path / "nats-server").chmod(0o755)
    assert installed_binary() == tmp_path / "nats-server"
