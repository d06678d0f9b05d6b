"""Serve the application on a socket, or in process without one.

Serving the application on a socket, inside a loop that is somebody else's.

The application asked from inside, without a socket: for those who speak another protocol outside.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from typing_extensions import override

from ...settings import Server
from .middleware.guards import HeadLimit


@asynccontextmanager
async def answering(app: Starlette, listener: socket.socket, server: Server) -> AsyncIterator[None]:
    """Answer requests within the block; behind it those that have begun are finished."""
    config = uvicorn.Config(
        app,
        http=HeadLimit,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_keep_alive=int(server.keep_alive),
        timeout_graceful_shutdown=int(server.shutdown_timeout),
        limit_concurrency=server.max_connections,
        proxy_headers=bool(server.trusted_proxies),
        forwarded_allow_ips=list(server.trusted_proxies),
    )
    running = _Server(config)
    task = asyncio.create_task(running.serve([listener]))
    try:
        while not running.started and not task.done():  # noqa: ASYNC110 - uvicorn says it no other way
            await asyncio.sleep(0.01)
        yield
    finally:
        app.state.closing.set()  # streams of events end, so that nobody waits for them
        running.should_exit = True
        await task
        listener.close()


class _Server(uvicorn.Server):
    """Without uvicorn's signal handlers: what signals do is for the program to say."""

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


NO_END: Final = "streamEvents"
"""Its answer has no end, so that only HTTP can tell it."""


def operations(routes: Iterable[APIRoute]) -> Iterator[tuple[str, str, str, bool]]:
    """Each operation: its name, its method, its path, and whether it takes a body."""
    for route in routes:
        if route.operation_id and route.operation_id != NO_END:
            [method] = route.methods or ("GET",)
            yield route.operation_id, method, route.path, route.body_field is not None


class InProcessClient:
    """Asks an application."""

    def __init__(self, app: FastAPI, source: str) -> None:
        """`source`: where facts say that requests come from."""
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(source, 0))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def ask(
        self, method: str, path: str, query: Mapping[str, Any], body: object, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        """The status, the headers and the body of the answer."""
        answer = await self._client.request(method, path, params=query, json=body, headers=headers)
        return answer.status_code, answer.headers, answer.content
