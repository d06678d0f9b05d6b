"""The API of an in-memory world on a socket, in a thread, for blocking clients."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from tests.http.conftest import World
from tocsin.adapters.http.server import answering
from tocsin.adapters.http.sockets import listen, url_of
from tocsin.adapters.sql.history import open_history
from tocsin.settings import Server


@contextmanager
def served(folder: Path, prepare: Callable[[World], Awaitable[None]]) -> Iterator[str]:
    """Yield its URL; `prepare` fills the world first."""
    listener = listen("127.0.0.1", 0)
    loop = asyncio.new_event_loop()
    ended, ready = asyncio.Event(), Event()

    async def serve() -> None:
        async with open_history(f"sqlite:///{folder}/history.db") as history:
            world = World(folder, history)
            await prepare(world)
            async with answering(world.app(), listener, Server()):
                ready.set()
                await ended.wait()

    thread = Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield url_of(listener)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
