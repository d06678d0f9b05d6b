"""An operator on a thread of its own, so that no read delays a key."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from threading import Thread
from typing import Final, TypeVar

from ...services.operator import Operator
from ..runtime.session import Session

T = TypeVar("T")

PATIENCE_S: Final = 10.0
"""Seconds to wait for connections to close at the end."""


@dataclass(frozen=True, slots=True)
class OperatorThread:
    """An operator, and the event loop on which its methods run."""

    operator: Operator
    loop: asyncio.AbstractEventLoop

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await `work` on the operator's loop. A cancelled call cancels it there."""

        async def awaited() -> T:
            return await work()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(awaited(), self.loop))


@asynccontextmanager
async def operator_thread(session: Session) -> AsyncIterator[OperatorThread]:
    """Yield the operator of a session on a thread, which ends with the block."""
    connected: Future[OperatorThread] = Future()
    closed: Future[None] = Future()
    ended = asyncio.Event()

    async def serve() -> None:
        async with session.operator() as operator:
            connected.set_result(OperatorThread(operator, asyncio.get_running_loop()))
            await ended.wait()

    def work() -> None:
        connected.set_running_or_notify_cancel()  # from here on a cancelled caller does not cancel it
        try:
            asyncio.run(serve())
        except Exception as error:  # noqa: BLE001 - the caller gets every error
            (closed if connected.done() else connected).set_exception(error)
        else:
            closed.set_result(None)

    Thread(target=work, name="tocsin-operator", daemon=True).start()
    threaded = await asyncio.wrap_future(connected)
    try:
        yield threaded
    finally:
        threaded.loop.call_soon_threadsafe(ended.set)
        with suppress(TimeoutError):  # the thread does not outlive the process
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wrap_future(closed)
