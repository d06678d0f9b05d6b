"""The asynchronous client: jobs, executions and dead letters, over NATS or HTTP."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

from pydantic import JsonValue

from ..bootstrap import operators
from ..domain.definition import JobDefinition
from ..domain.execution_record import Status
from ..domain.formats import read_job
from ..domain.identity import NO_OWNER
from ..ports import DeadLetterRow, ExecutionRow
from ..ports.queries import DeadLetterQuery, DeadLetterSort, ExecutionQuery, ExecutionSort, every
from ..services.apply import owners_of, with_defaults, with_owner
from ..services.jobs import Job, Plan
from ..services.operations.dead_letters import Resolution
from ..services.operator import Operator
from ..settings import Settings, load
from ..settings.fields import is_http_url
from ..worker.event_loop import running_loop
from .errors import ClientClosed, InvalidArgument, WrongContext
from .event_watch import EventWatch
from .job_snapshot import JobSnapshot, snapshots_of
from .run import Run

CONNECT_TIMEOUT_S: Final = 10.0
"""How long an opening client waits for NATS."""
PAGE_SIZE: Final = 500
"""Rows that a list requests at a time."""
MAX_KEY: Final = 255
"""Characters of an idempotency key."""


class Client:
    """A client of one installation.

        async with tocsin.Client(nats="nats://127.0.0.1:4222") as client:
            run = await client.trigger("nightly", {"day": "2026-11-26"})
            print(await run.result(timeout=60))

    Open it once and share it: any number of tasks of one event loop may use it at the same time. `SyncClient` has the same
    methods for programs without an event loop.
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
        """Prepare a client. `async with` connects it.

        Args:
            nats: the URLs of the NATS servers, separated by commas. They replace `nats.url` of the settings.
            url: the URL of the HTTP API instead of NATS, such as `https://tocsin.example.com`.
            token: the token for the HTTP API.
            settings: the settings; None: those of `TOCSIN_CONFIG`, `tocsin.yaml` and the environment.
            operator: an operator to use as it is; the client does not close it.

        Raises:
            InvalidArgument: the arguments exclude each other, or `url` is not the URL of an HTTP API.
        """
        if operator is not None and (nats, url, token, settings) != (None, None, None, None):
            raise InvalidArgument("operator", operator, "leave out `nats`, `url`, `token` and `settings` beside it")
        if nats is not None and url is not None:
            raise InvalidArgument("url", url, "name either `nats` or `url`")
        if token is not None and url is None:
            raise InvalidArgument("token", "******", "only the HTTP API takes a token: name its `url` too")
        if url is not None and not is_http_url(url):
            raise InvalidArgument("url", url, "write a URL with its scheme, such as http://127.0.0.1:8062")
        self._nats = nats
        self._url = url
        self._token = token
        self._settings = settings
        self._given = operator
        self._stack = AsyncExitStack()
        self._opened: tuple[Operator, EventWatch] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._was_opened = False

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            Unreachable: NATS does not answer, or refuses the connection.
            NotInitialized: the installation is not initialized.
            SettingsError: the settings are invalid.
            ClientClosed: the client was opened before.
        """
        if self._was_opened:
            raise ClientClosed("the client was opened before: a client is opened once")
        self._was_opened = True
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        async with AsyncExitStack() as stack:
            operator = self._given
            if operator is None:
                operator = await stack.enter_async_context(self._connect())
            watch = EventWatch(operator)
            stack.push_async_callback(watch.aclose, ClientClosed("the client was closed while it waited for a run"))
            self._stack = stack.pop_all()
        self._opened = operator, watch
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection. Calls that still wait raise `ClientClosed`; runs continue.

        A second call does nothing.

        Raises:
            WrongContext: the client belongs to another event loop or process.
        """
        if self._opened is None:
            return
        self._open()
        self._opened = None
        await self._stack.aclose()

    @property
    def operator(self) -> Operator:
        """The operator of the connection, with every operation that the command line has.

        Raises:
            ClientClosed, WrongContext: the client cannot be used here.
        """
        return self._open()[0]

    async def trigger(
        self,
        job: str,
        input: Mapping[str, JsonValue] | None = None,  # noqa: A002 - the field is called so
        *,
        args: Iterable[JsonValue] | None = None,
        priority: int | None = None,
        reason: str | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Request a run now, independently of the schedule.

        The run continues the trace of the current span of OpenTelemetry, if there is one.

        Args:
            job: the name of the job.
            input: keys that override those of the definition's input.
            args: positional arguments that replace those of the definition.
            priority: the priority of the run's tasks, from -100 to 100, in place of the job's.
            reason: recorded with the request.
            idempotency_key: 1 to 255 characters. Requests of a job with one key make one run, until 24 hours after its end; a
                later request returns that run, even if its input differs.

        Raises:
            JobNotFound: no job has this name.
            DefinitionError: the job does not accept this input; the error names the fields.
            InvalidArgument: the key or the priority is invalid.
            NotPermitted, NotAllowed: the token or the NATS user may not trigger the job.
            LogUnavailable: it is unknown whether the request is stored. Repeat it with an idempotency key.
        """
        if idempotency_key is not None and not 0 < len(idempotency_key) <= MAX_KEY:
            raise InvalidArgument("idempotency_key", idempotency_key, f"must have 1 to {MAX_KEY} characters")
        if priority is not None and not -100 <= priority <= 100:  # noqa: PLR2004 - the limits of `Trigger.priority`
            raise InvalidArgument("priority", priority, "must be from -100 to 100")
        execution_id = await self.operator.trigger(
            job,
            None if input is None else dict(input),
            None if args is None else list(args),
            priority=priority,
            reason=reason,
            idempotency_key=idempotency_key,
        )
        return Run(self._open, job, execution_id, is_requested=True)

    async def run(self, execution_id: str, *, job: str | None = None) -> Run:
        """Return a run by the id of its execution, or the beginning of this id.

        Args:
            execution_id: the id.
            job: the job of a complete id. The run is then not looked up, because it may have been requested just now: `result`
                waits for it, without a limit unless a `timeout` is passed.

        Raises:
            NotFound, NotAnId, Ambiguous: `execution_id` does not name one execution.
        """
        operator = self.operator
        if job is not None:
            return Run(self._open, job, execution_id, is_requested=True)
        match = await operator.execution(execution_id)
        return Run(self._open, match.job, match.execution_id)

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
    ) -> AsyncIterator[ExecutionRow]:
        """Iterate over the executions of the history.

        Pages are requested as they are read.

        Args:
            job: executions of this job only.
            status: `pending`, `running`, `completed`, `failed`, `cancelled` or `skipped`.
            trigger: `cron`, `manual`, `api`, `event`, `replay`, `recovery` or `backfill`.
            tag: executions of jobs with this tag only.
            since: scheduled at this time (aware) or later.
            until: scheduled before this time (aware).
            error: a text that the last error contains.
            sort: the order; `newest` scheduled time first.

        Raises:
            InvalidQuery: a filter is invalid.
            HistoryUnavailable: the history cannot be read.
        """
        query = ExecutionQuery(
            job=job, status=status, trigger=trigger, tag=tag, since=since, until=until, error=error, sort=sort,
            limit=PAGE_SIZE,
        )  # fmt: skip
        return every(self.operator.executions, query)

    async def jobs(self) -> tuple[Job, ...]:
        """Return every job that the caller may see, sorted by name."""
        return await self.operator.jobs()

    async def job(self, name: str) -> Job:
        """Return one job.

        Raises:
            JobNotFound: no job has this name.
        """
        return await self.operator.job(name)

    async def job_count(self) -> int:
        """Return the number of jobs that the caller may see."""
        return len(await self.jobs())

    async def get_status(self, job: str) -> JobSnapshot:
        """Return the state of a job and the counters of its runs.

        Raises:
            JobNotFound: no job has this name.
            CountersUnknown: the history is incomplete; over HTTP also: it is unavailable, or the token may not read executions.
            HistoryUnavailable: the history cannot be read.
        """
        operator = self.operator
        return JobSnapshot.of(await operator.job(job), await operator.run_counters(job))

    async def get_all_status(self) -> tuple[JobSnapshot, ...]:
        """Return the state and the counters of every visible job, sorted by name.

        Raises:
            CountersUnknown, HistoryUnavailable: see `get_status`.
        """
        operator = self.operator
        return snapshots_of(await operator.jobs(), await operator.all_run_counters())

    async def is_running(self, job: str) -> bool:
        """Return whether an execution of a job runs now.

        Raises:
            JobNotFound, CountersUnknown, HistoryUnavailable: see `get_status`.
        """
        return (await self.get_status(job)).is_running

    async def pause(self, job: str, *, reason: str | None = None) -> bool:
        """Pause a job, so that its instants pass; return whether it was running before.

        Raises:
            JobNotFound: no job has this name.
            NotPermitted, NotAllowed: the token or the NATS user may not do so.
        """
        return await self.operator.pause(job, reason=reason)

    async def resume(self, job: str, *, reason: str | None = None) -> bool:
        """Resume a job, so that its instants fire; return whether it was paused before.

        Raises:
            JobNotFound: no job has this name.
            NotPermitted, NotAllowed: the token or the NATS user may not do so.
        """
        return await self.operator.resume(job, reason=reason)

    async def remove(self, job: str, *, reason: str | None = None) -> None:
        """Delete a job. Its active executions continue, and its history remains.

        Raises:
            JobNotFound: no job has this name.
            NotPermitted, NotAllowed: the token or the NATS user may not do so.
        """
        await self.operator.delete(job, reason=reason)

    async def apply(
        self,
        definitions: Iterable[JobDefinition | Mapping[str, Any]],
        *,
        owner: str = NO_OWNER,
        prune: bool = False,
        dry_run: bool = False,
    ) -> Plan:
        """Register definitions, and return the plan that was carried out. A second call changes nothing.

        Args:
            definitions: definitions, or mappings with the fields of a job file.
            owner: the owner of definitions that name none.
            prune: delete the other jobs of the owners that the definitions name.
            dry_run: return the plan, and change nothing.

        Raises:
            DefinitionError: a definition is invalid; the error lists every invalid field.
            NotPermitted, NotAllowed: the token or the NATS user may not register a job.
        """
        operator = self.operator
        read = (each if isinstance(each, JobDefinition) else read_job(dict(each)) for each in definitions)
        owned = [with_owner(definition, owner) for definition in read]
        complete = await with_defaults(operator, owned, self._loaded_settings())
        plan = await operator.plan(complete, prune=owners_of(complete, owner) if prune else ())
        if not dry_run:
            await operator.carry_out(plan)
        return plan

    def dead_letters(
        self,
        *,
        job: str | None = None,
        unresolved: bool = True,
        since: datetime | None = None,
        until: datetime | None = None,
        error: str | None = None,
        sort: DeadLetterSort = "newest",
    ) -> AsyncIterator[DeadLetterRow]:
        """Iterate over dead letters.

        Pages are requested as they are read.

        Args:
            job: dead letters of this job only.
            unresolved: dead letters that are not resolved only.
            since: failed last at this time (aware) or later.
            until: failed last before this time (aware).
            error: a text that the last error contains.
            sort: `newest` or `oldest` failure first.

        Raises:
            InvalidQuery: a filter is invalid.
            HistoryUnavailable: the history cannot be read.
        """
        query = DeadLetterQuery(
            job=job, unresolved=unresolved, since=since, until=until, error=error, sort=sort, limit=PAGE_SIZE
        )
        return every(self.operator.dead_letters, query)

    async def replay(
        self,
        dead_letter: str,
        *,
        job: str | None = None,
        input: Mapping[str, JsonValue] | None = None,  # noqa: A002 - the field is called so
        reason: str | None = None,
        again: bool = False,
        failed_only: bool = False,
    ) -> Run | None:
        """Run failed work again, by the definition in force now.

        None: the dead letter is a message that no stage could read. It is published again, and makes no run of its own.

        Args:
            dead_letter: the id of the dead letter, or its beginning.
            job: its job, if several jobs have a dead letter with this id.
            input: keys that override those of the failed run.
            reason: recorded with the replay.
            again: also if it was replayed before.
            failed_only: adopt the results of the steps that completed, and run the rest.

        Raises:
            NotFound, NotAnId, Ambiguous: `dead_letter` does not name one dead letter.
            OperationError: it cannot be replayed, or needs `again`.
            DefinitionError: the job does not accept the input.
        """
        replay = await self.operator.replay(
            dead_letter,
            job=job,
            input=None if input is None else dict(input),
            reason=reason,
            again=again,
            failed_only=failed_only,
        )
        if replay.execution_id is None:
            return None
        return Run(self._open, replay.job, replay.execution_id, is_requested=True)

    async def resolve(self, dead_letter: str, *, reason: str | None = None, job: str | None = None) -> Resolution:
        """Mark a dead letter as resolved.

        `job`: its job, if several jobs have a dead letter with this id.

        Raises:
            NotFound, NotAnId, Ambiguous: `dead_letter` does not name one dead letter.
        """
        return await self.operator.resolve(dead_letter, reason=reason, job=job)

    def _open(self) -> tuple[Operator, EventWatch]:
        if self._opened is None:
            how = "was closed" if self._was_opened else "is not open: use `async with`"
            raise ClientClosed(f"the client {how}")
        if os.getpid() != self._process:
            raise WrongContext("the client was opened before this process was forked: open one in each process")
        if running_loop() is not self._loop:
            raise WrongContext("the client belongs to another event loop: open one in each loop, or use SyncClient")
        return self._opened

    def _connect(self) -> AbstractAsyncContextManager[Operator]:
        if self._url is not None:
            return operators.connect_api(self._url, self._token)
        settings = self._loaded_settings()
        return operators.connect_operator(settings, by=operators.local_actor("client"), within=CONNECT_TIMEOUT_S)

    def _loaded_settings(self) -> Settings:
        if self._settings is None:
            self._settings = load(options={} if self._nats is None else {("nats", "url"): self._nats})
        elif self._nats is not None and self._settings.nats.url != self._nats:
            nats = self._settings.nats.model_copy(update={"url": self._nats})
            self._settings = self._settings.model_copy(update={"nats": nats})
        return self._settings
