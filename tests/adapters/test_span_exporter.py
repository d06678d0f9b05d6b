"""The export of spans to trace stores that answer wrongly."""

import asyncio
import importlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
import structlog
import trustme
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tocsin.adapters.otel.span_exporter import MAX_ANSWER, MAX_LEFT, MAX_REASON, OtlpSpanExporter
from tocsin.adapters.otel.traces import SpansLost
from tocsin.domain.trace import Span
from tocsin.domain.trace_context import TraceContext
from tocsin.settings import SettingsError

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
SPAN = Span(
    name="execute job", context=TraceContext("1" * 32, "1" * 16, True), parent=None, start=NOON, end=NOON, attributes={}
)


@contextmanager
def store(
    answer: Callable[[socket.socket], None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    context: ssl.SSLContext | None = None,
) -> Iterator[OtlpSpanExporter]:
    """An exporter, and the store to which it sends."""

    def receive(accepted: socket.socket) -> None:
        accepted.settimeout(10)
        with suppress(OSError), accepted:
            connection = accepted if context is None else context.wrap_socket(accepted, server_side=True)
            with connection:
                while b"execute job" not in connection.recv(65_536):
                    pass
                answer(connection)

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=receive, args=[connection], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        scheme = "http" if context is None else "https"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/T0KEN")
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


async def test_last_try_without_time_hides_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1.5")  # the second try begins after 0.8 to 1.2 seconds
    requests = []

    def answer(connection: socket.socket) -> None:
        requests.append(1)
        connection.sendall(b"HTTP/1.1 503 Not Now\r\nContent-Length: 0\r\n\r\n" if len(requests) == 1 else b"HTTP")
        if len(requests) > 1:
            time.sleep(3)

    with store(answer, monkeypatch) as exporter, pytest.raises(SpansLost, match="status 503: Not Now"):
        await exporter.export([SPAN])


def partial_success(rejected: int, message: str, media_type: str = "application/x-protobuf") -> bytes:
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans, answer.partial_success.error_message = rejected, message
    body: bytes = answer.SerializeToString()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_rejected_spans_are_named_and_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def answer(connection: socket.socket) -> None:
        requests.append(1)
        connection.sendall(partial_success(1, "too many attributes"))

    with store(answer, monkeypatch) as exporter, pytest.raises(SpansLost, match="rejected 1 of 2 spans: too") as lost:
        await exporter.export([SPAN, SPAN])
    assert lost.value.rejected == 1
    assert requests == [1]


@pytest.mark.parametrize(
    "response",
    [
        partial_success(0, "a hint"),
        partial_success(-1, "a defect"),
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 4\r\n\r\n\x0a\xffno",
        partial_success(1, "not of this form", media_type="text/html"),
    ],
)
async def test_other_answers_reject_nothing(response: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with store(lambda connection: connection.sendall(response), monkeypatch) as exporter:
        await exporter.export([SPAN])


async def test_hint_of_a_store_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        store(lambda connection: connection.sendall(partial_success(0, "send less")), monkeypatch) as exporter,
        structlog.testing.capture_logs() as lines,
    ):
        await exporter.export([SPAN])
        await exporter.export([SPAN])
    assert [(line["log_level"], line["reason"]) for line in lines] == [("info", "send less")]


async def test_endless_head_of_an_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    is_well = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not is_well.wait(0.01):
            connection.sendall(b"x")
        connection.sendall(b"\r\nContent-Length: 0\r\n\r\n")

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with store(answer, monkeypatch) as exporter:
        for _ in range(MAX_LEFT):
            with pytest.raises(SpansLost, match=r"no complete answer within 0\.2 s"):
                await exporter.export([SPAN])
        with pytest.raises(SpansLost, match=f"{MAX_LEFT} requests before"):
            await exporter.export([SPAN])
        is_well.set()
        async with asyncio.timeout(10):
            while True:
                with suppress(SpansLost):
                    await exporter.export([SPAN])
                    break
                await asyncio.sleep(0.01)


async def test_loss_names_the_certificate_and_no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with store(lambda _: None, monkeypatch, context=context) as exporter, pytest.raises(SpansLost) as lost:
        await exporter.export([SPAN])
    assert "CERTIFICATE_VERIFY_FAILED" in str(lost.value)
    assert "T0KEN" not in str(lost.value)


async def test_authority_of_the_exporter_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    for name, known in (("OTEL_EXPORTER_OTLP_CERTIFICATE", authority), ("REQUESTS_CA_BUNDLE", trustme.CA())):
        known.cert_pem.write_to_path(tmp_path / name)
        monkeypatch.setenv(name, str(tmp_path / name))

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with store(answer, monkeypatch, context=context) as exporter:
        await exporter.export([SPAN])


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318/T0KEN", "grpc://127.0.0.1:4317/T0KEN", "http://[T0KEN"])
async def test_endpoint_that_is_no_url_is_named(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    exporter = OtlpSpanExporter("1")
    with pytest.raises(SpansLost, match="begins with http") as lost:
        await exporter.export([SPAN])
    exporter.close()
    assert "T0KEN" not in str(lost.value)


async def test_port_of_grpc_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # the exporter tries again until then
    exporter = OtlpSpanExporter("1")
    with pytest.raises(SpansLost, match=r"speaks gRPC .*4318"):
        await exporter.export([SPAN])
    exporter.close()
    server.stop(None)


@pytest.mark.parametrize(
    "response",
    [
        b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01",  # the end of a connection, as some servers send it alone
        b"\0\0\x04\0\0\0\0\0\0",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"",
    ],
)
async def test_answer_of_another_protocol_is_a_loss(response: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    is_grpc = response[3:4] == b"\x07"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with (
        store(lambda connection: connection.sendall(response), monkeypatch) as exporter,
        pytest.raises(SpansLost) as lost,
    ):
        await exporter.export([SPAN])
    assert ("gRPC" in str(lost.value)) is is_grpc


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
