"""An application in a background thread, for programs without an event loop."""

import atexit
import concurrent.futures.thread  # noqa: F401 - it registers its end first, so that ours comes before it
import threading
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from typing import TYPE_CHECKING, Final, Self

from typing_extensions import override

from ..client import SyncClient
from ..client.loop_thread import LoopThread

if TYPE_CHECKING:
    from .application import Running

_open: Final[set["AppThread"]] = set()
"""The applications that run, also if their callers forgot them."""


class AppThread(SyncClient):
    """An application that runs in a background thread, and the blocking client of it.

        with app.start() as scheduler:
            print(scheduler.trigger("nightly", {"limit": 3}).result(timeout=60))

    `close` stops the application, as the end of the block and the end of the program do.
    """

    def __init__(self, running: "AbstractAsyncContextManager[Running]") -> None:
        """Start `running` in a thread, and wait until it runs."""
        self._thread = LoopThread(running)
        opened = self._thread.open()
        self._called = opened.client
        self.url = opened.url
        """The URL of the HTTP API; None: it does not run."""
        _open.add(self)

    @override
    def __enter__(self) -> Self:
        """Return the application, which runs already."""
        return self

    @override
    def close(self) -> None:
        """Stop the application. Calls that still wait in other threads raise `ClientClosed`.

        A second call does nothing. A forked process leaves the application to its parent.
        """
        _open.discard(self)
        super().close()


def _stop_all() -> None:
    # An error of an end does not keep others from theirs.
    with suppress(KeyboardInterrupt, SystemExit), ExitStack() as stack:
        for thread in tuple(_open):
            stack.callback(thread.close)


# At the end of the main thread, when other threads still work. `atexit` is later: executors refuse work by then, so that handlers and the history
# would fail. It is used where the private function of `threading` does not exist.
getattr(threading, "_register_atexit", atexit.register)(_stop_all)
