"""A real nats-server with the configuration of a security test."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tocsin.adapters.nats.server.process import installed_binary

RELOADED = "Reloaded server configuration"
"""What the server logs after it has read its configuration again."""
DEADLINE = 30.0
"""Seconds until a server that does not listen is given up."""


@dataclass(frozen=True)
class Server:
    """The server listens, and is reachable under two names of this machine."""

    port: int
    folder: Path
    pid: int = 0
    is_screened: bool = False
    """Whether its accounts lead what users outside publish to screeners."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def reload(self, config: str) -> None:
        """Have the server read another configuration, with the environment that it has."""
        reloads = self.log.count(RELOADED)
        _write(self.folder, config, self.port)
        os.kill(self.pid, signal.SIGHUP)
        deadline = time.monotonic() + DEADLINE
        while self.log.count(RELOADED) == reloads:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)


@contextmanager
def server(
    folder: Path, config: str, *, port: int = -1, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a server with `config` beside the common configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _write(folder, config, port)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [installed_binary(), "-c", path], stdout=log, stderr=log, env={**os.environ, **(environment or {})}
        )
    try:
        yield Server(_port(process, folder), folder, process.pid)
    finally:
        process.kill()
        process.wait()


def _write(folder: Path, config: str, port: int) -> Path:
    path = folder / "nats.conf"
    path.write_text(
        f"host: 127.0.0.1\nport: {port}\nports_file_dir: {json.dumps(str(folder))}\n"
        f"jetstream {{ store_dir: {json.dumps(str(folder))} }}\n{config}"
    )
    return path


def _port(process: "subprocess.Popen[bytes]", folder: Path) -> int:
    """The port that the server writes into a file once it listens."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder / "log").read_text()
        for ports in folder.glob("nats-server_*.ports"):
            try:
                address: str = json.loads(ports.read_bytes())["nats"][0]
            except ValueError:
                continue  # not wholly written
            return int(address.rpartition(":")[2])
        time.sleep(0.01)
    raise AssertionError(f"no server: {(folder / 'log').read_text()}")
