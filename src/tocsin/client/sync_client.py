"""The client for programs without an event loop: blocking calls, safe from many threads."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ..services.operator import Operator
from ..settings import Settings
from .client import Client
from .loop_thread import LoopThread
from .run import Run

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", Client, Run)
N = TypeVar("N", bound=None)
F = TypeVar("F", bound=Callable[..., Any])


class _Blocking:
    """A client or a run with methods that block the calling thread."""

    _thread: LoopThread[Any]
    _called: Any
    """The asynchronous client or run, which the thread's event loop runs."""


def _described(call: F, method: Callable[..., object]) -> F:
    """Give a blocking method the signature and documentation of its asynchronous method."""
    update_wrapper(call, method)
    summary = (method.__doc__ or "").partition("\n")[0].removesuffix(".")
    call.__doc__ = f"{summary} (see `{method.__qualname__}`)."
    return call


def _blocking(method: Callable[Concatenate[C, P], Awaitable[T]]) -> Callable[Concatenate[_Blocking, P], T]:
    def call(self: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(method, self._called, *args, **kwargs)

    return _described(call, method)


def _iterating(
    method: Callable[Concatenate[C, P], AsyncIterator[T]],
) -> Callable[Concatenate[_Blocking, P], Iterator[T]]:
    def call(self: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._thread.iterate(lambda: method(self._called, *args, **kwargs))

    return _described(call, method)


class SyncRun(_Blocking):
    """One run of a job, with blocking methods (see `Run`)."""

    def __init__(self, thread: LoopThread[Any], run: Run) -> None:
        self._thread = thread
        self._called = run

    def __repr__(self) -> str:
        return repr(self._called).replace("Run(", "SyncRun(", 1)

    @property
    def job(self) -> str:
        """The name of the job."""
        return str(self._called.job)

    @property
    def execution_id(self) -> str:
        """The id of the execution, a UUIDv7."""
        return str(self._called.execution_id)

    result = _blocking(Run.result)
    results = _blocking(Run.results)
    status = _blocking(Run.status)
    cancel = _blocking(Run.cancel)
    output = _blocking(Run.output)
    events = _iterating(Run.events)


def _starting(
    method: Callable[Concatenate[Client, P], Awaitable[Run | N]],
) -> Callable[Concatenate[_Blocking, P], SyncRun | N]:
    def call(self: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> SyncRun | N:
        run = self._thread.call(method, self._called, *args, **kwargs)
        return SyncRun(self._thread, run) if isinstance(run, Run) else run

    return _described(call, method)


class SyncClient(_Blocking):
    """A client with blocking methods, for any number of threads.

        with tocsin.SyncClient(url="https://tocsin.example.com", token=token) as client:
            run = client.trigger("nightly", idempotency_key="nightly-2026-11-26")
            print(run.result(timeout=60))

    A background thread runs a `Client` in its event loop. A program that forks opens a client in each process.
    """

    def __init__(
        self,
        *,
        nats: str | None = None,
        url: str | None = None,
        token: str | None = None,
        settings: Settings | None = None,
        operator: Operator | None = None,
    ) -> None:
        """Prepare a client. `with` connects it.

        The arguments and errors are those of `Client`. An `operator` is used in the event loop of the client's thread.
        """
        self._called = Client(nats=nats, url=url, token=token, settings=settings, operator=operator)
        self._thread = LoopThread(self._called)

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            Unreachable, NotInitialized, SettingsError, ClientClosed: see `Client`.
        """
        self._thread.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Calls that still wait in other threads raise `ClientClosed`; runs continue.

        A second call does nothing. A forked process leaves the connection to its parent.
        """
        self._thread.close()

    trigger = _starting(Client.trigger)
    run = _starting(Client.run)
    executions = _iterating(Client.executions)
    jobs = _blocking(Client.jobs)
    job = _blocking(Client.job)
    job_count = _blocking(Client.job_count)
    get_status = _blocking(Client.get_status)
    get_all_status = _blocking(Client.get_all_status)
    is_running = _blocking(Client.is_running)
    pause = _blocking(Client.pause)
    resume = _blocking(Client.resume)
    remove = _blocking(Client.remove)
    apply = _blocking(Client.apply)
    dead_letters = _iterating(Client.dead_letters)
    replay = _starting(Client.replay)
    resolve = _blocking(Client.resolve)
