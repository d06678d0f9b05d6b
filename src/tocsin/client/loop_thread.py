"""An event loop in a background thread, for blocking calls from other threads."""

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, Generic, ParamSpec, TypeVar
from weakref import WeakSet

from ..worker.event_loop import ending_loop
from .errors import ClientClosed, WrongContext

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
_END: Final = object()
_PARKING_TIME: Final = 1.0
"""Seconds that the end of the interpreter waits for a busy event loop."""
_begun: Final[WeakSet["LoopThread[Any]"]] = WeakSet()
_changing_begun: Final = threading.Lock()


class LoopThread(Generic[C]):
    """A background thread whose event loop runs a client, or a whole application."""

    def __init__(self, client: AbstractAsyncContextManager[C]) -> None:
        """`open` starts the thread, which opens the client."""
        self._client = client
        self._ended: Future[None] = Future()
        self._lock = threading.Lock()
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._parking: Callable[[Callable[[], None]], object] | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> C:
        """Start the thread, wait until the client is open, and return it."""
        if self._thread is not None:
            raise ClientClosed("the client was opened before: a client is opened once")
        self._process = os.getpid()
        opened: Future[C] = Future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="tocsin-client", daemon=True)
        with _changing_begun:
            _begun.add(self)
        try:
            self._thread.start()
            return opened.result()
        except BaseException:
            # If a signal interrupted the wait, there is no caller that could close the client.
            opened.add_done_callback(lambda _: self._begin_close())
            if opened.done():
                self._thread.join()
            raise

    def close(self) -> None:
        """Close the client and end the thread; a forked process leaves both to its parent.

        The first call raises an error of the end.
        """
        if self._thread is None or os.getpid() != self._process:
            return
        if threading.current_thread() is self._thread:
            raise WrongContext("the client's own thread would wait for its own end: close it in another thread")
        self._begin_close()
        self._thread.join()
        ended, self._ended = self._ended, Future()
        if ended.done():
            ended.result()

    def _begin_close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None and self._closing is not None:
                loop.call_soon_threadsafe(self._closing.set)

    def park(self, timeout: float) -> None:
        """Halt a thread that still closes its client; wait at most `timeout` seconds.

        For the end of the interpreter only: nothing that the thread runs goes on or is closed.
        """
        park = self._parking
        if park is None or self._loop is not None or os.getpid() != self._process:
            return
        parked = threading.Event()

        def wait() -> None:
            parked.set()
            threading.Event().wait()

        with suppress(RuntimeError):  # the loop is closed; `is_alive` is false after an interrupted `join`
            park(wait)
            parked.wait(timeout)

    def call(self, do: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the thread's event loop, and wait for its result.

        Raises:
            ClientClosed: the client is not open, or was closed during the call.
            WrongContext: this is another process, or the thread itself.
        """
        if self._thread is not None and os.getpid() != self._process:
            raise WrongContext("the client was opened before this process was forked: open one in each process")
        if threading.current_thread() is self._thread:
            raise WrongContext("a blocking call in the client's own thread would wait for itself: use Client there")

        async def call() -> T:
            return await do(*args, **kwargs)

        with self._lock:
            if self._loop is None:
                how = "is not open: use `with`" if self._thread is None else "was closed"
                raise ClientClosed(f"the client {how}")
            future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed("the client was closed during the call") from None
        finally:
            future.cancel()  # an interrupted call, such as by Ctrl-C

    def iterate(self, make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Yield the items of an asynchronous iterator of the thread's event loop."""

        async def begin() -> AsyncIterator[T]:
            return make()

        rows = self.call(begin)
        try:
            while (row := self.call(anext, rows, _END)) is not _END:
                yield row  # type: ignore[misc] # it is not `_END`
        finally:
            if isinstance(rows, AsyncGenerator):
                with suppress(ClientClosed):
                    self.call(rows.aclose)

    def _run(self, opened: "Future[C]") -> None:
        try:
            with ending_loop() as runner:
                runner.run(self._serve(opened))
        finally:
            self._parking = None  # nothing runs there any more, also if the loop stays open

    async def _serve(self, opened: "Future[C]") -> None:
        try:
            async with self._client as client:
                self._closing = asyncio.Event()
                self._loop = asyncio.get_running_loop()
                self._parking = self._loop.call_soon_threadsafe
                opened.set_result(client)
                await self._closing.wait()
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            (self._ended if opened.done() else opened).set_exception(error)


def _park_all() -> None:
    """Halt threads that still close their clients, such as after a second Ctrl-C.

    A background thread that writes to standard output while the interpreter ends would abort it: exit code 134 and a
    dump. Executors have joined their threads by now, so that no thread waits for these loops.
    """
    with _changing_begun:
        begun = tuple(_begun)
    for thread in begun:
        thread.park(_PARKING_TIME)


atexit.register(_park_all)
