"""An application as a client of its installation."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .declarations import Declarations
from .errors import AppError
from .job import Job, name_of, request_of

if TYPE_CHECKING:
    from ..client import Client, JobSnapshot, Run
    from ..domain.execution_record import Status
    from ..ports import ExecutionRow
    from ..ports.queries import ExecutionSort


class NotConnectedError(AppError, RuntimeError):
    """An application is used as a client without a connection."""

    code = "app-not-connected"


class Operations(Declarations):
    """The part of `Tocsin` that triggers and reads jobs, while the application is connected."""

    _client: "Client | None" = None
    """The client of `connected`; None: the application is not connected."""

    @property
    def client(self) -> "Client":
        """The client of `connected`: executions, jobs, pauses and so on.

        Raises:
            NotConnectedError: the application is not connected.
        """
        if self._client is None:
            raise NotConnectedError(
                f"The application `{self.name}` is not connected. Write `async with app.connected():` or `app.running()` around the call."
            )
        return self._client

    async def trigger(
        self,
        job: "Job[..., Any] | str",
        /,
        *,
        idempotency_key: str | None = None,
        reason: str | None = None,
        **given: object,
    ) -> "Run":
        """Request a run of a job now.

        The input is checked by the function's annotations before it is sent, and may have their types: dates, dataclasses and
        models. It may also be JSON already.

        Args:
            job: a decorated function, or the name of a job; the input of a job of another program is sent as it is.
            idempotency_key: requests of a job with one key make one run.
            reason: recorded with the request.
            given: keys that override those of the definition's input. For a key that is called like an option, use
                `client.trigger`.

        Raises:
            NotConnectedError: the application is not connected.
            DefinitionError: the job does not accept the input; the error names the fields.
            JobNotFound: the job is not registered.
        """
        name, written = request_of(job, self.declared, given)
        return await self.client.trigger(name, written, idempotency_key=idempotency_key, reason=reason)

    def executions(
        self,
        job: "Job[..., Any] | str | None" = None,
        *,
        status: "Status | None" = None,
        trigger: str | None = None,
        tag: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error: str | None = None,
        sort: "ExecutionSort" = "newest",
    ) -> "AsyncIterator[ExecutionRow]":
        """Iterate over the executions of the history.

            async for execution in app.executions(nightly, status="failed"):
                print(execution.execution_id, execution.error)

        `job`: executions of this job only: a decorated function, or the name of a job. The other arguments are those of `Client.executions`.

        Raises:
            NotConnectedError: the application is not connected.
            InvalidQuery, HistoryUnavailable: see `Client.executions`.
        """
        return self.client.executions(
            job=None if job is None else name_of(job),
            status=status,
            trigger=trigger,
            tag=tag,
            since=since,
            until=until,
            error=error,
            sort=sort,
        )

    async def pause(self, job: "Job[..., Any] | str", *, reason: str | None = None) -> bool:
        """Pause a job, so that its instants pass; return whether it was running before.

        `job`: a decorated function, or the name of a job.

        Raises:
            NotConnectedError: the application is not connected.
            JobNotFound, NotAllowed: see `Client.pause`.
        """
        return await self.client.pause(name_of(job), reason=reason)

    async def resume(self, job: "Job[..., Any] | str", *, reason: str | None = None) -> bool:
        """Resume a job, so that its instants fire; return whether it was paused before.

        Raises:
            NotConnectedError, JobNotFound, NotAllowed: see `pause`.
        """
        return await self.client.resume(name_of(job), reason=reason)

    async def remove(self, job: "Job[..., Any] | str", *, reason: str | None = None) -> None:
        """Delete a job. Its active executions continue, and its history remains.

        A job that the code still has returns with the next registration.

        Raises:
            NotConnectedError, JobNotFound, NotAllowed: see `pause`.
        """
        await self.client.remove(name_of(job), reason=reason)

    async def get_status(self, job: "Job[..., Any] | str") -> "JobSnapshot":
        """Return the state of a job and the counters of its runs (see `Client.get_status`).

        `job`: a decorated function, or the name of a job.

        Raises:
            NotConnectedError: the application is not connected.
            JobNotFound, CountersUnknown, HistoryUnavailable: see `Client.get_status`.
        """
        return await self.client.get_status(name_of(job))

    async def get_all_status(self) -> "tuple[JobSnapshot, ...]":
        """Return the state and the counters of every job of the installation, sorted by name.

        Raises:
            NotConnectedError, CountersUnknown, HistoryUnavailable: see `get_status`.
        """
        return await self.client.get_all_status()

    async def job_count(self) -> int:
        """Return the number of jobs of the installation.

        Raises:
            NotConnectedError: the application is not connected.
        """
        return await self.client.job_count()

    async def is_running(self, job: "Job[..., Any] | str") -> bool:
        """Return whether an execution of a job runs now.

        Raises:
            NotConnectedError, JobNotFound, CountersUnknown, HistoryUnavailable: see `get_status`.
        """
        return await self.client.is_running(name_of(job))
