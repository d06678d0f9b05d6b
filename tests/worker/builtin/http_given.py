"""Requests for the tests, and a server for them that answers what a test says."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

from pydantic import JsonValue

from tests.worker.given import Bench
from tocsin.domain.definition.http_request import HttpRequest
from tocsin.domain.events import Failure
from tocsin.settings.builtin import HttpRules
from tocsin.testing import settle
from tocsin.worker.builtin.guarded_network import GuardedNetwork
from tocsin.worker.builtin.http_request import HttpFunction
from tocsin.worker.held_tasks import HeldTask

FUNCTION = "tocsin.http"
LOOPBACK = "127.0.0.0/8"
Respond: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes = b"", status: int = 200, **headers: str) -> bytes:
    """Return an answer as bytes."""
    fields = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"HTTP/1.1 {status} Text", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def json_answer(body: bytes, status: int = 200, **headers: str) -> bytes:
    return answer(body, status, Content_Type="application/json", **headers)


class Server:
    """A server that stores what it gets."""

    def __init__(self) -> None:
        self.response: bytes | Respond = answer()
        self.requests: list[bytes] = []
        self.is_gone = asyncio.Event()
        """Set when a client has closed its connection."""
        self.has_request = asyncio.Event()
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
            )
            self.requests.append(head + await reader.readexactly(length))
            self.has_request.set()
            if isinstance(self.response, bytes):
                writer.write(self.response)
                await writer.drain()
            else:
                await self.response(writer)
            await reader.read()
        self.is_gone.set()
        writer.close()
        self._open.discard(writer)

    @asynccontextmanager
    async def running(self, context: ssl.SSLContext | None = None) -> AsyncIterator["Server"]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=context)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in self._open:
                writer.transport.abort()
            await settle()


class HttpBench(Bench):
    """A bench whose worker offers `tocsin.http` under some rules."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server
        self.offer()

    def offer(self, *, names: Mapping[str, str] | None = None, **rules: Any) -> None:  # noqa: ANN401 - as in the settings
        """Offer the function under these rules; `names` have these addresses."""
        usual: dict[str, Any] = {"urls": [self.server.url], "networks": [LOOPBACK]}
        checked = HttpRules.model_validate(usual | rules)
        network = None if names is None else GuardedNetwork(checked.networks, _resolver(names))
        self.handlers.add_builtin(FUNCTION, HttpFunction(checked, network))

    async def give(self, request: Mapping[str, Any], **task: Any) -> HeldTask:  # noqa: ANN401 - as `given_tasks`
        """Dispatch and claim a task with a request; its URL may be the part after the server's."""
        url = request.get("url", "/")
        fields = {**request, "url": self.server.url + url if url.startswith("/") else url}
        builtin: dict[str, JsonValue] = HttpRequest(**fields).model_dump(mode="json", exclude_defaults=True)
        await self.given_task(function=FUNCTION, builtin=builtin, **task)
        return HeldTask(await self.assigned())

    async def execute(self, request: Mapping[str, Any], **task: Any) -> JsonValue:  # noqa: ANN401
        """Send a request, and return its result."""
        await self.executor.run(await self.give(request, **task))
        report = await self.report()
        assert report.error is None, report.error
        return report.result

    async def fail(self, request: Mapping[str, Any], **task: Any) -> Failure:  # noqa: ANN401
        """Send a request, and return its failure."""
        await self.executor.run(await self.give(request, **task))
        error = (await self.report()).error
        assert error is not None
        return error


def _resolver(names: Mapping[str, str]) -> Any:  # noqa: ANN401 - as `resolve`
    async def resolve(host: str, port: int) -> tuple[str, ...]:  # noqa: ARG001 - as the real one
        return tuple(names[host].split())

    return resolve
