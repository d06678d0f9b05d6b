"""The history in PostgreSQL over TLS: the settings in `database.url` reach the driver, which verifies the server.

The server of the tests is built without TLS. A proxy before it speaks TLS as PostgreSQL does (protocol, SSLRequest).
"""

import re
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
import trustme
from typing_extensions import override

from tests.conformance.test_history import A_FAILURE, story
from tests.databases import HOST, PostgreSql, postgresql
from tests.domain.given import recorded, with_known
from tocsin.adapters.sql.history import open_history
from tocsin.domain.events import Failure
from tocsin.ports import HistoryUnavailable
from tocsin.subjects import Stream

SSL_REQUEST: Final = bytes.fromhex("0000000804d2162f")
FACTS: Final = recorded(story(*A_FAILURE))
SECRET: Final = "hunter2"  # noqa: S105 - no password of ours


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    with postgresql() as running:
        yield running


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca(authority: trustme.CA, tmp_path: Path) -> Path:
    file = tmp_path / "ca.crt"
    authority.cert_pem.write_to_path(file)
    return file


class Proxy(socketserver.ThreadingTCPServer):
    """Speaks TLS with clients, and counts their connections."""

    def __init__(self, server: PostgreSql, context: ssl.SSLContext) -> None:
        super().__init__((HOST, 0), _Handler)
        self.behind = HOST, server.port
        self.context = context
        self.encrypted = 0
        self.plain = 0


class _Handler(socketserver.BaseRequestHandler):
    server: Proxy

    @override
    def handle(self) -> None:
        if self.request.recv(8) != SSL_REQUEST:
            self.server.plain += 1
            return
        self.request.sendall(b"S")
        with (
            suppress(OSError),  # a client that does not trust us
            self.server.context.wrap_socket(self.request, server_side=True) as client,
            socket.create_connection(self.server.behind) as behind,
        ):
            self.server.encrypted += 1
            back = threading.Thread(target=_pipe, args=(behind, client))
            back.start()
            _pipe(client, behind)
            behind.shutdown(socket.SHUT_RDWR)
            back.join()


def _pipe(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)


@contextmanager
def over_tls(server: PostgreSql, authority: trustme.CA, name: str) -> Iterator[tuple[Proxy, str]]:
    """Yield the proxy and the beginning of a URL through it; its certificate is that of `name`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    with Proxy(server, context) as proxy:
        serving = threading.Thread(target=proxy.serve_forever)
        serving.start()
        database = server.new_database().rpartition("/")[2]
        try:
            yield proxy, f"postgresql://tocsin:{SECRET}@localhost:{proxy.server_address[1]}/{database}"
        finally:
            proxy.shutdown()
            serving.join()


async def test_server_is_verified_and_used(server: PostgreSql, authority: trustme.CA, ca: Path) -> None:
    with over_tls(server, authority, "localhost") as (proxy, url):
        async with open_history(f"{url}?sslmode=verify-full&sslrootcert={ca}") as history:
            await history.record(Stream.LOG, FACTS, after=0, upto=len(FACTS))
            assert await history.count() == 1
        assert (proxy.encrypted > 0, proxy.plain) == (True, 0)


@pytest.mark.parametrize(
    ("name", "is_ours", "reason"),
    [
        ("localhost", False, "certificate verify failed"),
        ("other.example", True, "does not match host name"),
    ],
)
async def test_other_server_gets_no_connection(
    server: PostgreSql, authority: trustme.CA, ca: Path, name: str, *, is_ours: bool, reason: str
) -> None:
    with over_tls(server, authority if is_ours else trustme.CA(), name) as (proxy, url):
        with pytest.raises(HistoryUnavailable, match=reason) as refused:
            async with open_history(f"{url}?sslmode=verify-full&sslrootcert={ca}") as history:
                await history.count()
        assert SECRET not in str(refused.value)
        assert proxy.plain == 0


async def test_missing_authority_is_named(server: PostgreSql, authority: trustme.CA, tmp_path: Path) -> None:
    absent = tmp_path / "absent.crt"
    named = pytest.raises(HistoryUnavailable, match=re.escape(str(absent)))
    with over_tls(server, authority, "localhost") as (_, url), named:
        async with open_history(f"{url}?sslmode=verify-full&sslrootcert={absent}") as history:
            await history.count()


async def test_database_without_an_encoding_keeps_texts(server: PostgreSql) -> None:
    """The driver returns bytes for the texts of a database in SQL_ASCII, unless the connection names an encoding."""
    server.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    async with open_history(server.url("plain")) as history:
        error = Failure(type="Error", message="Größe \U0001f4a3")
        update = {"error": error, "last_error": error, "input": {"größe": "Straße"}}
        facts = recorded([with_known(fact, **update) for fact in story(*A_FAILURE)])
        await history.record(Stream.LOG, facts, after=0, upto=len(facts))
        row, [letter] = await history.execution("1"), (await history.dead_letters()).rows
        assert row is not None
        assert row.error == letter.last_error == "Error: Größe \U0001f4a3"
        assert letter.input == {"größe": "Straße"}
