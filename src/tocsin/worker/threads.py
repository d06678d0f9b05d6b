"""The threads that sync handlers run in.

They are daemons, unlike those of `concurrent.futures`: an abandoned handler must not keep the process from ending.
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
    """As many threads as there is work at once. The worker's slots bound how many that is."""

    def __init__(self) -> None:
        """None yet."""
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, function: Callable[[], object]) -> Future[object]:
        """Run a function in a thread that has nothing else to do, with the caller's context variables."""
        future: Future[object] = Future()
        context = copy_context()
        self._work.put((future, lambda: context.run(function)))
        if not self._idle.acquire(blocking=False):
            self._started += 1
            threading.Thread(target=self._serve, name=f"tocsin-task-{self._started}", daemon=True).start()
        return future

    def close(self) -> None:
        """Let every thread end when it has nothing to do; waits for none."""
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
    except StopIteration as error:  # a future cannot carry it: what a coroutine would make of it (PEP 479)
        future.set_exception(_with_cause(RuntimeError("the handler raised StopIteration"), error))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to who awaits the future
        future.set_exception(error)
    else:
        future.set_result(result)


def _with_cause(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error
