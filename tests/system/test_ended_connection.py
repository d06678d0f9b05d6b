"""A process whose connection NATS ends for good ends too, so that its supervisor starts it again."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.system.processes import QUICK, environment_of
from tests.system.running import settings
from tocsin.adapters.nats.client.connection import connect
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer, RunningServer
from tocsin.cli.runtime.errors import Exit
from tocsin.ports import ConnectionEnded

PATIENCE_S = 120.0


def start(environment: Mapping[str, str], output: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tocsin", *arguments], env=environment, stdout=file, stderr=subprocess.STDOUT
        )


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def allow_one_connection(server: RunningServer) -> None:
    """Let the server end connections with an error after which the client does not reconnect."""
    path = server.store_dir / "nats-server.conf"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_connections": 1}))
    os.kill(server.pid, signal.SIGHUP)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        pytest.param(["run", "--all"], "stages-started", marks=pytest.mark.full),
        (["worker", "tests.system.worker_process"], "worker-started"),
        pytest.param(["serve", "--port", "0"], "api-serving", marks=pytest.mark.full),
    ],
    ids=["run", "worker", "serve"],
)
def test_process_ends_with_its_connection(arguments: Sequence[str], action: str, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "nats", port=ANY_PORT).start() as server:
        environment = environment_of(settings(server.url, tmp_path, **QUICK)) | {"TOCSIN_METRICS__PORT": "0"}
        assert start(environment, tmp_path / "init", "init").wait() == 0
        outputs = [tmp_path / "first", tmp_path / "second"]
        processes = [start(environment, output, *arguments) for output in outputs]
        try:
            wait_until(lambda: all(action in output.read_text() for output in outputs))
            allow_one_connection(server)
            wait_until(lambda: any(process.poll() is not None for process in processes))
            assert {process.poll() for process in processes} <= {Exit.UNREACHABLE, None}
        finally:
            for process in processes:
                process.kill()
                process.wait()


async def test_connection_that_closes_with_an_error_ends(tmp_path: Path) -> None:
    """The public client does not say that it closed if it fails meanwhile."""

    async def fail() -> None:
        raise RuntimeError("it cannot close properly")

    async def close_and_wait(url: str) -> None:
        async with connect(url, disconnected_cb=fail) as connection:
            closing.append(asyncio.create_task(connection.client.close()))
            await asyncio.sleep(PATIENCE_S)

    closing: list[asyncio.Task[None]] = []
    with EmbeddedServer(tmp_path / "nats", port=ANY_PORT).start() as server:
        with pytest.raises(ConnectionEnded) as ended:
            await close_and_wait(server.url)
        assert isinstance(closing[0].exception(), RuntimeError)
    assert ended.value.code == "connection-ended"
