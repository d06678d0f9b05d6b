"""Files of credentials that are replaced on disk: each connection of a process reads them when it connects again."""

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog

from tests.security.keys import REVOKED_AT, key, operator
from tests.security.server import Server, server
from tests.security.test_tls import Authority, speaks_tls
from tests.system.running import running
from tocsin import Context, Worker, bootstrap
from tocsin.adapters.nats.client import connection_attempts
from tocsin.domain.events import Completed
from tocsin.settings import Settings

DEADLINE = 20.0
_SHORT = 40
REFUSED = ("authentication error", "TLS handshake error")


class Kind(NamedTuple):
    """A kind of credentials in two generations."""

    nats: dict[str, Any]
    files: dict[str, tuple[bytes, bytes]]
    """The content of each file, before and after."""
    configs: tuple[str, str]


def _authority(folder: Path) -> Kind:
    old, new = Authority(folder / "old"), Authority(folder / "new")
    contents = old.file.read_bytes(), new.file.read_bytes()
    return Kind({"tls": {"ca": folder / "ca"}}, {"ca": contents}, (speaks_tls(old), speaks_tls(new)))


def _certificate(folder: Path) -> Kind:
    servers, old, new = (Authority(folder / name) for name in ("servers", "old", "new"))
    pairs = old.issue("me"), new.issue("me")
    files = {name: (pairs[0][i].read_bytes(), pairs[1][i].read_bytes()) for i, name in enumerate(("cert", "key"))}
    nats = {"tls": {"ca": servers.file, "cert": folder / "cert", "key": folder / "key"}}
    configs = [speaks_tls(servers, more=f'ca_file: "{callers.file}", verify: true') for callers in (old, new)]
    return Kind(nats, files, (configs[0], configs[1]))


def _password(folder: Path) -> Kind:
    nats = {"user": "me", "password": f"${{file:{folder}/password}}"}
    configs = [f"authorization {{ user: me, password: {word} }}" for word in ("first", "second")]
    return Kind(nats, {"password": (b"first\n", b"second\n")}, (configs[0], configs[1]))


def _token(folder: Path) -> Kind:
    configs = [f"authorization {{ token: {word} }}" for word in ("first", "second")]
    files = {"token": (b"first\n", b"second\n")}
    return Kind({"token": f"${{file:{folder}/token}}"}, files, (configs[0], configs[1]))


def _nkey(folder: Path) -> Kind:
    old, new = key(), key()
    configs = [f"authorization {{ users: [ {{ nkey: {each.public} }} ] }}" for each in (old, new)]
    files = {"seed": (old.seed.encode(), new.seed.encode())}
    return Kind({"nkey_seed": folder / "seed"}, files, (configs[0], configs[1]))


def _creds(folder: Path) -> Kind:
    at = operator()
    files = {"creds": (at.creds(iat=REVOKED_AT).encode(), at.creds().encode())}
    return Kind({"creds": folder / "creds"}, files, (at.config, at.revoking))


KINDS = {
    "authority": _authority,
    "certificate": _certificate,
    "password": _password,
    "token": _token,
    "nkey": _nkey,
    "creds": _creds,
}
kinds = pytest.mark.parametrize("kind", list(KINDS.values()), ids=list(KINDS))


def _write(kind: Kind, folder: Path, generation: int) -> None:
    for name, contents in kind.files.items():
        (folder / name).write_bytes(contents[generation])


async def _refuses(at: Server, times: int) -> None:
    async with asyncio.timeout(DEADLINE):
        while sum(map(at.log.count, REFUSED)) < times:  # noqa: ASYNC110 - another process writes the log
            await asyncio.sleep(0.01)


async def _says(said: Sequence[MutableMapping[str, Any]], *texts: str) -> None:
    """Wait for a line of the log that has all texts."""
    async with asyncio.timeout(DEADLINE):
        while not any(all(text in str(line) for text in texts) for line in said):  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.01)


def _torn(content: bytes) -> bytes:
    """The content of a file while another program writes it."""
    return content[: len(content) // 2] if len(content) > _SHORT else b""


@kinds
async def test_rotated_file_counts_for_every_connection(kind: Callable[[Path], Kind], tmp_path: Path) -> None:
    """The server changes first and refuses each connection; then the files are half written, and at last whole."""
    rotated, worker = kind(tmp_path), Worker()
    _write(rotated, tmp_path, 0)

    @worker.task("f")
    async def f(context: Context) -> None: ...

    structlog.reset_defaults()  # another test may have had it write errors only
    async with AsyncExitStack() as stack:
        servers = stack.enter_context(ExitStack())
        at = servers.enter_context(server(tmp_path / "s", rotated.configs[0]))
        nats = {**rotated.nats, "url": at.url}
        tocsin = await stack.enter_async_context(running(at.url, tmp_path, worker=worker, nats=nats))
        await tocsin.apply({"name": "job", "function": "f"})
        await tocsin.trigger("job")
        await tocsin.ended("job", Completed)
        servers.close()
        with structlog.testing.capture_logs() as said:
            at = servers.enter_context(server(tmp_path / "s", rotated.configs[1], port=at.port))
            await _refuses(at, 15)
            for name, contents in rotated.files.items():
                (tmp_path / name).write_bytes(_torn(contents[1]))
            await _says(said, "nats.", str(tmp_path / name))
            _write(rotated, tmp_path, 1)
            await tocsin.trigger("job")
            await tocsin.ended("job", Completed, 2)
        assert not any("traceback" in line or "exc_info" in line for line in said)


@kinds
async def test_refusals_that_go_on_are_one_line(
    kind: Callable[[Path], Kind], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotated = kind(tmp_path)
    _write(rotated, tmp_path, 0)
    structlog.reset_defaults()
    async with AsyncExitStack() as stack:
        servers = stack.enter_context(ExitStack())
        at = servers.enter_context(server(tmp_path / "s", rotated.configs[0]))
        settings = Settings.model_validate({"data_dir": tmp_path, "nats": {**rotated.nats, "url": at.url}})
        await stack.enter_async_context(bootstrap.connect(settings))
        servers.close()
        with structlog.testing.capture_logs() as said:
            at = servers.enter_context(server(tmp_path / "s", rotated.configs[1], port=at.port))
            await _refuses(at, 10)
            refusals = [line for line in said if "`nats." in str(line)]
            assert [line["action"] for line in refusals] == ["nats-awaited"]
            monkeypatch.setattr(connection_attempts, "REPEAT_INTERVAL_S", 0.0)
            async with asyncio.timeout(DEADLINE):
                while not any(line.get("attempts", 0) >= 10 for line in said):  # noqa: ASYNC110 - likewise
                    await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", [_password, _nkey, _creds], ids=["password", "nkey", "creds"])
async def test_ended_connection_opens_with_new_credentials(kind: Callable[[Path], Kind], tmp_path: Path) -> None:
    """A server that reads its configuration again ends the connections of users that are gone."""
    rotated = kind(tmp_path)
    _write(rotated, tmp_path, 0)
    with server(tmp_path / "s", rotated.configs[0]) as at:
        settings = Settings.model_validate({"data_dir": tmp_path, "nats": {**rotated.nats, "url": at.url}})
        async with bootstrap.connect(settings) as installation:
            _write(rotated, tmp_path, 1)
            at.reload(rotated.configs[1])
            async with asyncio.timeout(DEADLINE):
                while not installation.connection.client.stats["reconnects"]:  # noqa: ASYNC110 - of another program
                    await asyncio.sleep(0.01)
            assert (await installation.connection.manage("INFO"))["type"]
