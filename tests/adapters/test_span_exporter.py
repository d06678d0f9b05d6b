"""The export of spans to trace stores that answer wrongly."""

import importlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tocsin.adapters.otel.span_exporter import MAX_ANSWER, MAX_REASON, OtlpSpanExporter
from tocsin.domain.spans import Span
from tocsin.domain.trace_context import TraceContext
from tocsin.ports import SpansLost
from tocsin.settings import SettingsError

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
SPAN = Span(
    name="execute job", context=TraceContext("1" * 32, "1" * 16, True), parent=None, start=NOON, end=NOON, attributes={}
)


@contextmanager
def store(answer: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpSpanExporter]:
    """An exporter, and the store to which it sends."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.settimeout(10)
                with connection, suppress(OSError):
                    while b"execute job" not in connection.recv(65_536):
                        pass
                    answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        exporter = OtlpSpanExporter("1")
        try:
            yield exporter
        finally:
            exporter.close()


async def test_redirect_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 301 Moved\r\nLocation: https://example.test/\r\nContent-Length: 0\r\n\r\n")

    with store(answer, monkeypatch) as exporter, pytest.raises(SpansLost, match="status 301: redirects"):
        await exporter.export([SPAN])


async def test_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    def answer(connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent < 1_000 * MAX_ANSWER:
            connection.sendall(bytes(MAX_ANSWER))
            sent += MAX_ANSWER

    with store(answer, monkeypatch) as exporter:
        await exporter.export([SPAN])
    assert sent < 1_000 * MAX_ANSWER


async def test_broken_answer_after_a_success_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")

    with store(answer, monkeypatch) as exporter:
        await exporter.export([SPAN])


async def test_reason_of_a_loss_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 400 " + b"A" * 10_000 + b"\r\nContent-Length: 0\r\n\r\n")

    with store(answer, monkeypatch) as exporter, pytest.raises(SpansLost, match="AAA") as lost:
        await exporter.export([SPAN])
    assert len(str(lost.value)) == MAX_REASON


PROVIDER = """
import requests

used = []


def session():
    session = requests.Session()
    session.auth = lambda request: used.append(request.url) or request
    return session
"""


def given_provider(folder: Path, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "otlp_credentials.py").write_text(PROVIDER)
    entry_points = folder / "otlp_credentials-1.dist-info" / "entry_points.txt"
    entry_points.parent.mkdir()
    entry_points.write_text(f"[opentelemetry_otlp_credential_provider]\nours = otlp_credentials:{function}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "ours")


async def test_provider_of_credentials_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 301 Moved\r\nLocation: https://example.test/\r\nContent-Length: 0\r\n\r\n")

    given_provider(tmp_path, "session", monkeypatch)
    with store(answer, monkeypatch) as exporter, pytest.raises(SpansLost, match="status 301: redirects"):
        await exporter.export([SPAN])
    assert importlib.import_module("otlp_credentials").used


def test_unusable_provider_of_credentials_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_provider(tmp_path, "session.__name__.upper", monkeypatch)
    with pytest.raises(SettingsError, match="must return a `requests"):
        OtlpSpanExporter("1")
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "other")
    with pytest.raises(SettingsError, match=r"CREDENTIAL_PROVIDER.*other"):
        OtlpSpanExporter("1")
