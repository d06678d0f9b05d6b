"""Errors of an unreachable server, and processes that wait for it."""

import asyncio
import os
import sys
from pathlib import Path
from uuid import uuid4

import pytest
import structlog

from tests.security.server import DEADLINE, server
from tocsin import bootstrap
from tocsin.ports import Unreachable
from tocsin.settings import Settings


async def failure(url: str, folder: Path) -> Unreachable:
    settings = Settings.model_validate({"data_dir": folder, "nats": {"url": url}})
    with pytest.raises(Unreachable) as unreachable:
        async with bootstrap.connect(settings, within=1):
            pass
    return unreachable.value


async def test_closed_port_is_reported(tmp_path: Path) -> None:
    error = await failure("nats://127.0.0.1:9,nats://me:secret@127.0.0.1:10", tmp_path)
    assert error.code == "nats-unreachable"
    assert "nats://127.0.0.1:9, nats://me:******@127.0.0.1:10: nothing listens there. " in str(error)
    assert str(error).endswith("--nats, TOCSIN_NATS_URL or `nats.url`")


async def test_unknown_host_is_reported(tmp_path: Path) -> None:
    error = await failure("nats://no-such-host.invalid:4222", tmp_path)
    assert error.code == "nats-unreachable"
    assert "nats://no-such-host.invalid:4222: no such host. " in str(error)


async def test_other_protocol_is_reported(tmp_path: Path) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        error = await failure(f"nats://127.0.0.1:{port}", tmp_path)
        assert error.code == "nats-protocol-mismatch"
        assert "does not speak NATS" in str(error)


async def test_process_without_time_limit_waits_for_server(tmp_path: Path) -> None:
    with server(tmp_path / "s", "") as first:
        settings = Settings.model_validate({"data_dir": tmp_path, "nats": {"url": first.url}})

    async def connect() -> bool:
        async with bootstrap.connect(settings, within=None) as installation:
            return installation.connection.client.is_connected

    structlog.reset_defaults()  # another test may have had it write errors only
    with structlog.testing.capture_logs() as said:
        waiting = asyncio.create_task(connect())
        while not said:  # noqa: ASYNC110 - what is waited for is a line of the log
            await asyncio.sleep(0.01)
        assert said[0]["action"] == "nats-awaited"
        assert said[0]["reason"] == "nothing listens there"
        with server(tmp_path / "s", "", port=first.port):
            async with asyncio.timeout(DEADLINE):
                assert await waiting


async def test_worker_warns_without_an_installation(nats_url: str, tmp_path: Path) -> None:
    """A worker may use no JetStream, so it cannot know whether an installation is initialized."""
    (tmp_path / "mine.py").write_text("from tocsin import Worker\nworker = Worker()\n")
    command = ("-m", "tocsin", "--log-format", "json", "--root", f"t{uuid4().hex[:8]}", "worker", "mine.py:worker")
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, *command),
        cwd=tmp_path,
        env={**os.environ, "TOCSIN_NATS_URL": nats_url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert worker.stdout is not None
    async with asyncio.timeout(DEADLINE):
        while b"agent-not-answered" not in (line := await worker.stdout.readline()):
            assert line
        worker.terminate()
        assert await worker.wait() == 0
    assert b"check that the stages run" in line
