"""`/v1/sql`: statements about jobs (scratchbird §9)."""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from typing_extensions import override

from ....domain.access import Permission, Principal
from ....domain.agent import AgentRecord
from ....domain.definition import JobDefinition
from ....domain.ledger import JobNotFound
from ....domain.statements import Select, ShowCreateJob, ShowJobs, Statement, read_statements
from ....ports import ExecutionRow, LogUnavailable
from ....services.jobs import Check, Job
from ....services.operations.errors import NotFound
from ....services.operations.lookup import ExecutionMatch
from ....services.statements import Rights, SeesRow, StatementResult, StatementRunner, defined_jobs, keyed
from ..auth.security import TRIGGERS, Reader, actor, defining, forbidden, permitted
from ..auth.visibility import Run, sees_agent
from ..middleware.idempotency import IdempotentRoute, forget_key, request_name
from .apply import UnservedTasks, known_workers, unserved_tasks
from .dependencies import Calculate, Components, Here, Reason, ReasonText, Traceparent
from .problems import Problem, problem_of

MAX_SQL: Final = 65_536
"""Characters of the statements in a request."""
MAX_STATEMENTS: Final = 100

router = APIRouter(prefix="/v1/sql", tags=["jobs"], route_class=IdempotentRoute)


class SqlRequest(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """Statements, separated by semicolons."""

    sql: Annotated[str, Field(max_length=MAX_SQL, examples=["SHOW JOBS"])]
    """`CREATE JOB`, `ALTER JOB`, `DROP JOB`, `EXECUTE JOB`, `CANCEL JOB RUN`, `SHOW JOBS`, `SHOW CREATE JOB`, and `SELECT` from
    `sys.jobs`, `sys.job_runs`, `sys.job_dependencies`, `sys.agents` and `sys.shards`."""
    reason: ReasonText | None = None


class SqlResults(BaseModel, use_attribute_docstrings=True):
    """The results of the statements, in order."""

    results: list[StatementResult]
    unserved: list[UnservedTasks]
    """Queues and functions of the created and altered jobs that no worker serves; at most 100 entries."""


@router.post("", operation_id="runSql")
async def run_sql(
    here: Here,
    caller: Reader,
    calculate: Calculate,
    request: Request,
    body: SqlRequest,
    reason: Reason = None,
    traceparent: Traceparent = None,
) -> SqlResults:
    """Carry out statements one after the other, until the first that fails.

    All of them are read before the first is carried out. An error names the statement that failed; those before it have
    taken effect.
    """
    statements = await calculate(lambda effort: read_statements(body.sql, effort.is_spent))
    if len(statements) > MAX_STATEMENTS:
        raise Problem(
            422, "invalid-statement", f"{len(statements)} statements, more than {MAX_STATEMENTS}: send several requests"
        )
    if all(isinstance(statement, Select | ShowJobs | ShowCreateJob) for statement in statements):
        forget_key(request)
    runner = StatementRunner(
        here.registry,
        here.log,
        here.clock,
        here.settings,
        rights=CallerRights(here, caller),
        by=actor(caller),
        reason=body.reason or reason,
        list_runs=lambda query: here.history.executions(replace(query, namespaces=caller.reached)),
        list_agents=here.agents.agents,
        calculate=calculate,
        traceparent=traceparent,
    )
    has_select = any(isinstance(statement, Select) for statement in statements)
    async with here.selects.turn(caller.party) if has_select else nullcontext():
        results = await _results(runner, statements, request)
    return SqlResults(results=results, unserved=await _unserved(here, caller, results))


async def _unserved(here: Components, caller: Principal, results: Sequence[StatementResult]) -> list[UnservedTasks]:
    definitions = list[JobDefinition]()
    for name in defined_jobs(results):
        with suppress(JobNotFound, LogUnavailable):  # a later statement dropped it, or its answer is missing
            definitions.append((await here.registry.job(name)).definition)
    return unserved_tasks(definitions, await known_workers(here, caller), here) if definitions else []


async def _results(runner: StatementRunner, statements: Sequence[Statement], request: Request) -> list[StatementResult]:
    results: list[StatementResult] = []
    for number, statement in enumerate(statements, 1):
        try:
            results.append(await runner.run(statement, asking=keyed(request_name(request), number)))
        except Exception as error:
            problem = problem_of(error)
            if len(statements) == 1 or problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            where = f"statement {number} of {len(statements)}, at {statement.place}"
            done = "the statements before it are carried out" if results else "nothing is changed"
            raise Problem(
                problem.status, problem.kind, f"{where}: {problem.detail}; {done}", problem.errors, problem.headers
            ) from error
    return results


class CallerRights(Rights):
    """The rights of a caller of the API."""

    def __init__(self, here: Components, caller: Principal) -> None:
        self._here = here
        self._caller = caller

    @override
    async def define(self, definition: JobDefinition, before: Job | None) -> Check:
        self._require(Permission.REGISTER)
        if before is None:
            await self._here.visibility.require_name(self._caller, definition.name)
        await self._here.visibility.require_dependencies(self._caller, definition)
        return defining(self._caller, definition)

    @override
    async def change(self) -> Check:
        self._require(Permission.REGISTER)
        return permitted(self._caller, Permission.REGISTER)

    @override
    async def trigger(self) -> Check:
        self._require(*TRIGGERS)
        return permitted(self._caller, Permission.TRIGGER)

    @override
    async def cancel(self, match: ExecutionMatch) -> None:
        run = Run.of(match)
        if not await self._here.visibility.may_see_run(self._caller, run):
            raise NotFound(f"no execution has the id {match.execution_id!r}")
        self._require(Permission.CANCEL, Permission.REGISTER)
        await self._here.visibility.require(self._caller, Permission.CANCEL, run)

    @override
    def sees(self, job: Job) -> bool:
        return self._caller.may_see(job)

    @override
    def sees_agent(self, agent: AgentRecord) -> bool:
        return sees_agent(self._caller, agent)

    @override
    async def see_runs(self) -> SeesRow:
        self._require(Permission.HISTORY)

        async def sees(row: ExecutionRow) -> bool:
            return await self._here.visibility.may_see_run(self._caller, Run.of(row))

        return sees

    @override
    async def knows(self, job: str) -> bool:
        return await self._here.visibility.may_see(self._caller, job)

    def _require(self, *permissions: Permission) -> None:
        if not any(self._caller.may(permission) for permission in permissions):
            raise forbidden(self._caller, permissions[0])
