"""Serve the application on a socket, or in process without one."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, cast

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from typing_extensions import override

from ...settings import Server
from .connections import Connection, ConnectionTable


@asynccontextmanager
async def answering(app: Starlette, listener: socket.socket, server: Server) -> AsyncIterator[None]:
    """Serve requests within the block. At its end, running requests are completed."""
    table = ConnectionTable(server)
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(Connection, table)),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_keep_alive=int(server.keep_alive),
        timeout_graceful_shutdown=int(server.shutdown_timeout),
        proxy_headers=bool(server.trusted_proxies),
        forwarded_allow_ips=list(server.trusted_proxies),
    )
    running = _Server(config)
    task = asyncio.create_task(running.serve([listener]))
    sweep = asyncio.create_task(table.run())
    try:
        while not running.started and not task.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        yield
    finally:
        app.state.closing.set()  # ends the event streams, which would otherwise delay the shutdown
        running.should_exit = True
        await task
        sweep.cancel()
        listener.close()


class _Server(uvicorn.Server):
    """A server without uvicorn's signal handlers, because the program handles signals."""

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


ENDLESS: Final = "streamEvents"
"""The operation whose answer is an endless stream, which only HTTP can carry."""


def operations(routes: Iterable[APIRoute]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield each operation: its id, its method, its path, and whether it has a body."""
    for route in routes:
        if route.operation_id and route.operation_id != ENDLESS:
            [method] = route.methods or ("GET",)
            yield route.operation_id, method, route.path, route.body_field is not None


class InProcessClient:
    """A client of an application in the same process."""

    def __init__(self, app: FastAPI, source: str) -> None:
        """Record `source` in events as the origin of requests."""
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(source, 0))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def request(
        self, method: str, path: str, query: Mapping[str, Any], body: object, headers: Mapping[str, bytes]
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Return the status, the headers and the body of the answer."""
        answer = await self._client.request(
            method, path, params=query, json=body, headers=[(name.encode(), value) for name, value in headers.items()]
        )
        return answer.status_code, answer.headers, answer.content
