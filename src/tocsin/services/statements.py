"""Carry out statements in SQL about jobs (scratchbird §9)."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, TypeAlias

from pydantic import JsonValue

from ..domain.agent import AgentRecord
from ..domain.definition import JobDefinition
from ..domain.events import Actor
from ..domain.ledger import JobNotFound
from ..domain.statements import (
    AlterJob,
    CancelRun,
    CreateJob,
    DropJob,
    ExecuteJob,
    Select,
    ShowCreateJob,
    ShowJobs,
    Statement,
    altered,
    create_statement,
    defined,
)
from ..domain.statements.definitions import is_pause
from ..ports import Clock, EventLog, ExecutionRow, SequenceConflict
from ..ports.queries import ExecutionQuery
from ..settings import Settings
from .apply import completed
from .calculations import Calculator, in_place
from .jobs import Check, Job, Registry
from .jobs.job import anything
from .jobs.registry import TRIES, RequestName
from .operations.errors import OperationError
from .operations.execution_requests import cancel
from .operations.lookup import ExecutionMatch, ListExecutions, find
from .select import (
    MAX_ROWS,
    CellRow,
    SysDatabase,
    agent_rows,
    dependency_rows,
    job_rows,
    run_rows,
    shard_rows,
    state_of,
)
from .shards import ShardMap, ShardMaps, owners_of, with_owners

MAX_RUNS: Final = 10_000
"""The newest runs over which a SELECT is answered."""
RUNS_OF_A_PAGE: Final = 1_000
YIELD_EVERY: Final = 20
"""Rows after which other tasks run."""
_COLUMNS: Final = ("job_name", "state", "schedule", "timezone", "next_run_time", "last_run_time", "job_uuid")


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The result of a statement."""

    statement: str
    """The statement without its clauses, such as `CREATE JOB`."""
    message: str
    """The effect, in a sentence."""
    job: str | None = None
    execution_id: str | None = None
    changed: bool = False
    """Whether the statement changed anything."""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[JsonValue, ...], ...] = ()
    truncated: bool = False
    """Whether there are more rows."""


SeesRow: TypeAlias = Callable[[ExecutionRow], Awaitable[bool]]


async def any_row(_: ExecutionRow) -> bool:
    return True


def defined_jobs(results: Iterable[StatementResult]) -> list[str]:
    """Return the names of the jobs that statements created or altered."""
    changed = (result for result in results if result.changed and result.statement in {"CREATE JOB", "ALTER JOB"})
    return list(dict.fromkeys(result.job for result in changed if result.job))


class Rights:
    """The rights of a caller with access to the log itself.

    Each method of a subclass raises an error if its caller lacks a right.
    """

    async def define(self, _definition: JobDefinition, _before: Job | None) -> Check:
        """Return the check of a job that is to get a definition."""
        return anything

    async def change(self) -> Check:
        """Return the check of a job that is to be changed or deleted."""
        return anything

    async def trigger(self) -> Check:
        """Return the check of a job that is to run."""
        return anything

    async def cancel(self, match: ExecutionMatch) -> None:
        """Check that the caller may cancel an execution."""

    def sees(self, _job: Job) -> bool:
        """Return whether the caller may see a job."""
        return True

    def sees_agent(self, _agent: AgentRecord) -> bool:
        """Return whether the caller may see an agent."""
        return True

    async def see_runs(self) -> SeesRow:
        """Check that the caller may see runs; return the check of a single run."""
        return any_row

    async def knows(self, _job: str) -> bool:
        """Return whether an error may name a job."""
        return True


@dataclass(frozen=True)
class StatementRunner:
    """Carries out statements for one caller."""

    registry: Registry
    log: EventLog
    clock: Clock
    settings: Settings
    """The settings with the defaults of new jobs."""
    rights: Rights = field(default_factory=Rights)
    by: Actor | None = None
    reason: str | None = None
    list_executions: ListExecutions | None = None
    """Finds a shortened id of a run in the history; None: ids are complete."""
    list_runs: ListExecutions | None = None
    """Lists the runs in the history for `sys.job_runs`."""
    list_agents: Callable[[], Awaitable[Sequence[AgentRecord]]] | None = None
    calculate: Calculator = in_place
    """Checks definitions; that of a large `input_schema` takes a second."""
    traceparent: str | None = None
    """The trace that the runs continue, if it is valid (W3C Trace Context)."""

    async def run(self, statement: Statement, *, asking: RequestName | None = None) -> StatementResult:
        """Carry out a statement; `asking` is the idempotency key of a run that it requests.

        Raises:
            StatementError, DefinitionError: the statement cannot be carried out as it is written.
            JobNotFound, NotFound, OperationError: the state of the installation does not allow it.
        """
        if isinstance(statement, ExecuteJob):
            return await self._execute(statement, asking)
        handlers: dict[type, Callable[..., Awaitable[StatementResult]]] = {
            CreateJob: self._create,
            AlterJob: self._alter,
            DropJob: self._drop,
            CancelRun: self._cancel,
            ShowJobs: self._show_jobs,
            ShowCreateJob: self._show_create,
            Select: self._select,
        }
        return await handlers[type(statement)](statement)

    async def _create(self, statement: CreateJob) -> StatementResult:
        policy = (await self.registry.policies.newest()).policy
        definition = completed(
            await self.calculate(lambda _: defined(statement, self.settings.execution.default_connection)),
            policy,
            self.settings,
        )
        check = await self.rights.define(definition, None)

        def is_new(job: Job | None) -> None:
            check(job)
            if job is not None and job.definition != definition:
                raise OperationError(
                    f"{statement.place}: job {job.name!r} exists. Change it with ALTER JOB, or drop it first",
                    code="job-exists",
                )

        verb = await self.registry.define(
            definition, by=self.by, reason=self.reason, check=is_new, may_see=self.rights.knows
        )
        is_created = verb == "create"
        message = f"created job {definition.name!r}" if is_created else f"job {definition.name!r} is unchanged"
        return StatementResult("CREATE JOB", message, definition.name, changed=is_created)

    async def _alter(self, statement: AlterJob) -> StatementResult:
        is_changed = await self._redefine(statement)
        state = statement.fields.get("state")
        if state is not None:
            switch = self.registry.pause if is_pause("state", state) else self.registry.resume
            check = await self.rights.change()
            is_switched = await switch(statement.job, by=self.by, reason=self.reason, check=check)
            is_changed = is_changed or is_switched
        message = f"{'altered' if is_changed else 'unchanged:'} job {statement.job!r}"
        return StatementResult("ALTER JOB", message, statement.job, changed=is_changed)

    async def _redefine(self, statement: AlterJob) -> bool:
        """Change the definition on which the change was decided; return whether it differs."""
        connection = self.settings.execution.default_connection
        for _ in range(TRIES):
            before = await self._visible(statement.job)
            definition = await self.calculate(
                lambda _: altered(statement, before.definition, connection)  # noqa: B023 - waited for at once
            )
            if definition == before.definition:
                (await self.rights.change())(before)
                return False
            check = await self.rights.define(definition, before)
            try:
                verb = await self.registry.define(
                    definition,
                    by=self.by,
                    reason=self.reason,
                    check=_same(check, before),
                    may_see=self.rights.knows,
                )
            except _Changed:
                continue
            return verb != "unchanged"
        raise SequenceConflict(
            f"cannot change {statement.job!r}: another writer changed it on each of {TRIES} tries. Try again."
        )

    async def _drop(self, statement: DropJob) -> StatementResult:
        check = await self.rights.change()
        await self.registry.delete(statement.job, by=self.by, reason=self.reason, check=check)
        message = f"dropped job {statement.job!r}; its history is kept"
        return StatementResult("DROP JOB", message, statement.job, changed=True)

    async def _execute(self, statement: ExecuteJob, asking: RequestName | None) -> StatementResult:
        check = await self.rights.trigger()
        execution_id = await self.registry.trigger(
            statement.job,
            by=self.by,
            reason=self.reason,
            traceparent=self.traceparent,
            check=check,
            asking=asking,
        )
        message = f"triggered job {statement.job!r}: run {execution_id}"
        return StatementResult("EXECUTE JOB", message, statement.job, execution_id, changed=True)

    async def _cancel(self, statement: CancelRun) -> StatementResult:
        match = await find(self.log, statement.run, list_executions=self.list_executions)
        await self.rights.cancel(match)
        outcome = await cancel(self.log, match.execution_id, by=self.by, reason=self.reason, job=match.job)
        verb = "cancelled" if outcome.changed else f"{outcome.status.value} before:"
        message = f"{verb} run {outcome.execution_id} of job {outcome.job!r}"
        return StatementResult("CANCEL JOB RUN", message, outcome.job, outcome.execution_id, changed=outcome.changed)

    async def _show_jobs(self, _: ShowJobs) -> StatementResult:
        jobs = [job for job in await self.registry.jobs() if self.rights.sees(job)]
        now, rows = self.clock.now(), list[tuple[JsonValue, ...]]()
        for number, job in enumerate(jobs[:MAX_ROWS], 1):
            rows.append(_row(job, now))
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)  # other tasks run
        is_truncated = len(jobs) > MAX_ROWS
        message = f"{len(rows):,} jobs" + (f" of {len(jobs):,}" if is_truncated else "")
        return StatementResult("SHOW JOBS", message, columns=_COLUMNS, rows=tuple(rows), truncated=is_truncated)

    async def _show_create(self, statement: ShowCreateJob) -> StatementResult:
        job = await self._visible(statement.job)
        rows = ((job.name, await self.calculate(lambda _: create_statement(job.definition))),)
        return StatementResult(
            "SHOW CREATE JOB", f"job {job.name!r}", job.name, columns=("job_name", "statement"), rows=rows
        )

    async def _select(self, statement: Select) -> StatementResult:
        database = SysDatabase(statement.text, statement.place)
        try:
            names = await asyncio.to_thread(database.check)
            tables, is_complete = await self._tables(names)
            selected = await asyncio.to_thread(database.select, tables)
        finally:
            database.close()
        message = f"{len(selected.rows):,} rows"
        if not is_complete:
            message += f", from the newest {MAX_RUNS:,} runs only"
        return StatementResult(
            "SELECT",
            message,
            columns=selected.columns,
            rows=selected.rows,
            truncated=selected.is_truncated or not is_complete,
        )

    async def _tables(self, names: Collection[str]) -> tuple[dict[str, Sequence[CellRow]], bool]:
        tables: dict[str, Sequence[CellRow]] = {}
        is_complete = True
        jobs = {job.name: job for job in await self.registry.jobs() if self.rights.sees(job)} if names else {}
        if "jobs" in names:
            now = self.clock.now()
            tables["jobs"] = await asyncio.to_thread(lambda: list(job_rows(jobs.values(), now)))
        if "job_dependencies" in names:
            tables["job_dependencies"] = list(dependency_rows(jobs))
        if "agents" in names and self.list_agents is not None:
            tables["agents"] = list(agent_rows(await self._agents()))
        if "shards" in names:
            tables["shards"] = list(shard_rows(await self._shards()))
        if "job_runs" in names:
            tables["job_runs"], is_complete = await self._runs(jobs)
        return tables, is_complete

    async def _agents(self) -> list[AgentRecord]:
        agents = () if self.list_agents is None else await self.list_agents()
        return [agent for agent in agents if self.rights.sees_agent(agent)]

    async def _shards(self) -> ShardMap:
        seen = await self._agents()
        newest = with_owners(await ShardMaps(self.log).newest(), await owners_of(self.log), seen)
        names = {agent.name for agent in seen}
        return replace(newest, owners={shard: owner for shard, owner in newest.owners.items() if owner.name in names})

    async def _runs(self, jobs: Mapping[str, Job]) -> tuple[list[CellRow], bool]:
        """Return the newest runs that the caller may see, and whether these are all.

        A page becomes short rows before the next is read, because results may be large.
        """
        sees, runs = await self.rights.see_runs(), list[CellRow]()
        if self.list_runs is None:
            return runs, True
        cursor: str | None = None
        for _ in range(MAX_RUNS // RUNS_OF_A_PAGE):
            page = await self.list_runs(ExecutionQuery(limit=RUNS_OF_A_PAGE, cursor=cursor))
            runs += run_rows([row for row in page.rows if await sees(row)], jobs)
            cursor = page.cursor
            if cursor is None:
                return runs, True
        return runs, False

    async def _visible(self, name: str) -> Job:
        job = await self.registry.job(name)
        if not self.rights.sees(job):
            raise JobNotFound(name)
        return job


class _Changed(Exception):
    """Another writer changed the job meanwhile."""


def _same(check: Check, before: Job) -> Check:

    def check_same(job: Job | None) -> None:
        if job is None:
            raise JobNotFound(before.name)
        check(job)
        if job.sequence != before.sequence:
            raise _Changed

    return check_same


def _row(job: Job, now: datetime) -> tuple[JsonValue, ...]:
    definition = job.definition
    following, last = job.next_fire_time(now), job.last_fire_time
    times = (at.isoformat() if at is not None else None for at in (following, last))
    return (job.name, state_of(job), definition.schedule, definition.timezone, *times, job.job_uuid)


def keyed(asking: RequestName | None, number: int) -> RequestName | None:
    """Return the idempotency key of a statement in a request with a key."""
    return None if asking is None else replace(asking, name=f"{asking.name}-{number}")
