"""The threads of sync handlers.

They are daemon threads, unlike those of `concurrent.futures`: an abandoned handler must not keep the process from exiting.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue
from typing import Final, TypeAlias

_Work: TypeAlias = tuple[Future[object], Callable[[], object]]
_END: Final = None


class Threads:
    """A pool that grows to the number of concurrent calls, which the worker's slots limit."""

    def __init__(self) -> None:
        """Start without threads."""
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, function: Callable[[], object]) -> Future[object]:
        """Run a function in an idle or new thread, with the caller's context variables."""
        future: Future[object] = Future()
        context = copy_context()
        self._work.put((future, lambda: context.run(function)))
        if not self._idle.acquire(blocking=False):
            self._started += 1
            threading.Thread(target=self._serve, name=f"tocsin-task-{self._started}", daemon=True).start()
        return future

    def close(self) -> None:
        """Let every thread end once it is idle; does not wait."""
        for _ in range(self._started):
            self._work.put(_END)

    def _serve(self) -> None:
        while (work := self._work.get()) is not _END:
            _run(*work)
            del work  # an idle thread must not keep the last task's input alive
            self._idle.release()


def _run(future: Future[object], function: Callable[[], object]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except StopIteration as error:  # a future cannot carry it; convert it as a coroutine does (PEP 479)
        future.set_exception(_with_cause(RuntimeError("the handler raised StopIteration"), error))
    except BaseException as error:  # noqa: BLE001 - the future passes any exception to its awaiter
        future.set_exception(error)
    else:
        future.set_result(result)


def _with_cause(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error
