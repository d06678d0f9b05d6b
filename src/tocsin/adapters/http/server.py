"""Serving the application on a socket, inside a loop that is somebody else's."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.applications import Starlette
from typing_extensions import override

from ...settings import Server
from .middleware.head_limit import HeadLimit


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
