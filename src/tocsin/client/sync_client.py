"""The client for programs without an event loop: blocking calls, safe from many threads."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue

from ..domain.definition import JobDefinition
from ..domain.events import Message, Recorded
from ..domain.execution_record import Status
from ..domain.identity import NO_OWNER
from ..ports import DeadLetterRow, ExecutionRow
from ..ports.queries import DeadLetterSort, ExecutionSort
from ..services.jobs import Job, Plan
from ..services.operator import Operator
from ..settings import Settings
from .client import Client
from .job_snapshot import JobSnapshot
from .loop_thread import LoopThread
from .run import Run

if TYPE_CHECKING:
    from ..services.operations.dead_letters import Resolution
    from ..services.operations.execution_output import ExecutionOutput
    from ..services.operations.execution_requests import Cancellation


class SyncClient:
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

        Args:
            nats: see `Client`.
            url: see `Client`.
            token: see `Client`.
            settings: see `Client`.
            operator: see `Client`; it is used in the event loop of the client's thread.

        Raises:
            InvalidArgument: see `Client`.
        """
        self._client = Client(nats=nats, url=url, token=token, settings=settings, operator=operator)
        self._thread: LoopThread[Any] = LoopThread(self._client)

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
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close the connection. Calls that still wait in other threads raise `ClientClosed`; runs continue.

        A second call does nothing. A forked process leaves the connection to its parent.
        """
        self._thread.close()

    # --- runs ---------------------------------------------------------------------------------------------------------

    def trigger(
        self,
        job: str,
        input: Mapping[str, JsonValue] | None = None,  # noqa: A002 - the field is called so
        *,
        args: Iterable[JsonValue] | None = None,
        priority: int | None = None,
        reason: str | None = None,
        idempotency_key: str | None = None,
    ) -> "SyncRun":
        """Request a run now (see `Client.trigger`)."""
        run = self._thread.call(
            self._client.trigger,
            job,
            input,
            args=args,
            priority=priority,
            reason=reason,
            idempotency_key=idempotency_key,
        )
        return SyncRun(self._thread, run)

    def run(self, execution_id: str, *, job: str | None = None) -> "SyncRun":
        """Return a run by the id of its execution (see `Client.run`)."""
        return SyncRun(self._thread, self._thread.call(self._client.run, execution_id, job=job))

    def executions(
        self,
        *,
        job: str | None = None,
        status: Status | None = None,
        trigger: str | None = None,
        tag: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error: str | None = None,
        sort: ExecutionSort = "newest",
    ) -> Iterator[ExecutionRow]:
        """Iterate over the executions of the history (see `Client.executions`)."""
        return self._thread.iterate(
            lambda: self._client.executions(
                job=job, status=status, trigger=trigger, tag=tag, since=since, until=until, error=error, sort=sort
            )
        )

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def jobs(self) -> tuple[Job, ...]:
        """Return every job that the caller may see, sorted by name."""
        return self._thread.call(self._client.jobs)

    def job(self, name: str) -> Job:
        """Return one job (see `Client.job`)."""
        return self._thread.call(self._client.job, name)

    def job_count(self) -> int:
        """Return the number of jobs that the caller may see."""
        return self._thread.call(self._client.job_count)

    def get_status(self, job: str) -> JobSnapshot:
        """Return the state of a job and the counters of its runs (see `Client.get_status`)."""
        return self._thread.call(self._client.get_status, job)

    def get_all_status(self) -> tuple[JobSnapshot, ...]:
        """Return the state and the counters of every job (see `Client.get_all_status`)."""
        return self._thread.call(self._client.get_all_status)

    def is_running(self, job: str) -> bool:
        """Return whether an execution of a job runs now (see `Client.is_running`)."""
        return self._thread.call(self._client.is_running, job)

    def pause(self, job: str, *, reason: str | None = None) -> bool:
        """Pause a job (see `Client.pause`)."""
        return self._thread.call(self._client.pause, job, reason=reason)

    def resume(self, job: str, *, reason: str | None = None) -> bool:
        """Resume a job (see `Client.resume`)."""
        return self._thread.call(self._client.resume, job, reason=reason)

    def remove(self, job: str, *, reason: str | None = None) -> None:
        """Delete a job (see `Client.remove`)."""
        self._thread.call(self._client.remove, job, reason=reason)

    def apply(
        self,
        definitions: Iterable[JobDefinition | Mapping[str, Any]],
        *,
        owner: str = NO_OWNER,
        prune: bool = False,
        dry_run: bool = False,
    ) -> Plan:
        """Register definitions (see `Client.apply`)."""
        return self._thread.call(self._client.apply, definitions, owner=owner, prune=prune, dry_run=dry_run)

    # --- dead letters -------------------------------------------------------------------------------------------------

    def dead_letters(
        self,
        *,
        job: str | None = None,
        unresolved: bool = True,
        since: datetime | None = None,
        until: datetime | None = None,
        error: str | None = None,
        sort: DeadLetterSort = "newest",
    ) -> Iterator[DeadLetterRow]:
        """Iterate over dead letters (see `Client.dead_letters`)."""
        return self._thread.iterate(
            lambda: self._client.dead_letters(
                job=job, unresolved=unresolved, since=since, until=until, error=error, sort=sort
            )
        )

    def replay(
        self,
        dead_letter: str,
        *,
        job: str | None = None,
        input: Mapping[str, JsonValue] | None = None,  # noqa: A002 - the field is called so
        reason: str | None = None,
        again: bool = False,
        failed_only: bool = False,
    ) -> "SyncRun | None":
        """Run failed work again (see `Client.replay`)."""
        run = self._thread.call(
            self._client.replay, dead_letter, job=job, input=input, reason=reason, again=again, failed_only=failed_only
        )
        return None if run is None else SyncRun(self._thread, run)

    def resolve(self, dead_letter: str, *, reason: str | None = None, job: str | None = None) -> "Resolution":
        """Mark a dead letter as resolved (see `Client.resolve`)."""
        return self._thread.call(self._client.resolve, dead_letter, reason=reason, job=job)


class SyncRun:
    """One run of a job, with blocking methods (see `Run`)."""

    def __init__(self, thread: LoopThread[Any], run: Run) -> None:
        self._thread = thread
        self._run = run

    def __repr__(self) -> str:
        return repr(self._run).replace("Run(", "SyncRun(", 1)

    @property
    def job(self) -> str:
        """The name of the job."""
        return self._run.job

    @property
    def execution_id(self) -> str:
        """The id of the execution, a UUIDv7."""
        return self._run.execution_id

    def result(self, timeout: float | None = None) -> JsonValue:
        """Wait for the end of the run, and return its result (see `Run.result`)."""
        return self._thread.call(self._run.result, timeout)

    def results(self, timeout: float | None = None) -> dict[str, JsonValue]:
        """Wait for the end of the run, and return the results by step (see `Run.results`)."""
        return self._thread.call(self._run.results, timeout)

    def status(self) -> Status:
        """Return the status of the run (see `Run.status`)."""
        return self._thread.call(self._run.status)

    def cancel(self, reason: str | None = None) -> "Cancellation":
        """Cancel the run (see `Run.cancel`)."""
        return self._thread.call(self._run.cancel, reason)

    def output(self, after: int = 0) -> "ExecutionOutput":
        """Return the lines that the handlers logged (see `Run.output`)."""
        return self._thread.call(self._run.output, after)

    def events(self) -> Iterator[Recorded[Message]]:
        """Yield the stored events of the run until its end (see `Run.events`)."""
        return self._thread.iterate(self._run.events)
