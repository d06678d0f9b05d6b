"""An installation operated through its HTTP API: `tocsin --server URL`.

Lists, facts and changes are requests. Facts are folded here, as they are beside the log, so that a command shows the same
through the API and through NATS. The API records the identity of the caller's token.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from inspect import signature
from types import NoneType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from urllib.parse import quote
from uuid import uuid4

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from ...domain import dead_letter, ledger
from ...domain.access import NO_TASKS, Binding, Role
from ...domain.agent import AgentRecord
from ...domain.definition import STORED, JobDefinition
from ...domain.events import Actor, Input, Message, Recorded, Silence
from ...domain.execution import Status
from ...domain.ledger import JobNotFound, Ledger
from ...domain.policy import changed
from ...domain.what_if import WhatIfReport
from ...ports import Clock, DeadLetterRow, ExecutionRow, SequenceConflict
from ...ports.queries import DeadLetterQuery, ExecutionQuery, NotificationQuery, Page
from ...services.agents import GrantAnswer
from ...services.definition_settings import DefinitionSettings
from ...services.documents import PolicyVersion
from ...services.explain import Answer
from ...services.health import Finding
from ...services.hold_ups import HoldUp
from ...services.jobs import Change, Job, Plan, RunCounters, each, plan_of
from ...services.jobs.dependencies import check_dependencies
from ...services.namespaces import NamespaceChange, NamespaceDetails, NamespaceMap
from ...services.notifications import NotificationRow
from ...services.operations.backfill import Asked, Backfill
from ...services.operations.dead_letters import Letter, Replay, Resolution, match_dead_letter
from ...services.operations.errors import NotFound, NotServed, OperationError
from ...services.operations.execution_output import ExecutionOutput
from ...services.operations.execution_requests import Cancellation
from ...services.operations.lookup import ExecutionMatch, FanOut, fanned_out, match_execution
from ...services.operator import OUTCOMES, Operator, last_ended
from ...services.past_reader import IgnoredEvent
from ...services.queue_decisions import PurgeAnswer
from ...services.queues import QueueDetails
from ...services.shards import ShardMap
from ...services.statements import StatementResult
from ...services.timeline import JobRevision, no_definition
from ...services.trigger_test import GivenEvent, TriggerAnswer
from ...services.what_if import Question
from ...telemetry.trace_ids import current_traceparent
from ..system_clock import SystemClock
from .api_client import ApiClient, if_match, job_of, open_api, path_of, read_as, reason_header, recorded_of
from .auth.tokens import Token
from .event_stream import FIRST, follow_events

P = ParamSpec("P")
T = TypeVar("T")

MAX_CHECKED: Final = 2_000
"""Definitions of a plan that the API checks together. A request with more might be too large, or take too long."""
CHECKED_DAYS: Final = 0.001
"""Days of instants that the check of a plan compares; it needs none."""
JOBS_AT_ONCE: Final = 50
"""Jobs of a request for outcomes, whose names are in its URL."""
MAX_TRIES: Final = 5
"""Tries to delete a job or to change the policy while other writers change it too."""


@asynccontextmanager
async def connect(url: str, token: str | None) -> AsyncIterator["HttpOperator"]:
    """Yield an operator for the API at `url`; it sends `token` as bearer token."""
    async with open_api(url, token) as api:
        yield HttpOperator(api, SystemClock())


def _request(
    method: Callable[Concatenate[Any, P], Awaitable[T]], kind: type[T], route: str, field: str | None = None
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the request that carries out an operation.

    The answer, or a field of the answer, has a `kind`. Arguments that the route does not name are the query of a GET, the reason of a
    DELETE, or the body. `expected` is a version for `If-Match`.
    """
    parameters = signature(method)
    verb, _, path = route.partition(" ")

    async def call(self: "HttpOperator", /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound = parameters.bind(self, *args, **kwargs)
        bound.apply_defaults()
        _, *given = bound.arguments.items()
        place = path.format_map({name: quote(str(value), safe="") for name, value in given})
        rest = {name: value for name, value in given if f"{{{name}}}" not in path}
        headers = if_match(rest.pop("expected")) if "expected" in rest else {}
        query, body = None, None
        if verb == "GET":
            query = {name: value for name, value in rest.items() if value is not None}
        elif verb == "DELETE":
            headers |= reason_header(rest["reason"])
        else:
            body = to_jsonable_python(rest)
        answer = await self._api.request(verb, place, body, query=query, headers=headers)
        return read_as(kind, answer if field is None else answer[field])

    return call


class HttpOperator(Operator):
    """Carries out each operation with requests."""

    def __init__(self, api: ApiClient, clock: Clock) -> None:
        self._api = api
        self._clock = clock

    definition_settings = _request(Operator.definition_settings, DefinitionSettings, "GET /v1/definition-settings")
    pause = _request(Operator.pause, bool, "POST /v1/jobs/{job}/pause", "changed")
    resume = _request(Operator.resume, bool, "POST /v1/jobs/{job}/resume", "changed")
    delete = _request(Operator.delete, NoneType, "DELETE /v1/jobs/{job}")
    ignored_events = _request(
        Operator.ignored_events, tuple[IgnoredEvent, ...], "GET /v1/jobs/{job}/triggers/ignored", "events"
    )
    purge_queue = _request(Operator.purge_queue, PurgeAnswer, "POST /v1/queues/{queue}/purge?dry_run={dry_run}")
    shards = _request(Operator.shards, ShardMap, "GET /v1/shards")
    apply_shards = _request(Operator.apply_shards, bool, "PUT /v1/shards", "changed")
    namespaces = _request(Operator.namespaces, NamespaceMap, "GET /v1/namespaces")
    namespace = _request(Operator.namespace, NamespaceDetails, "GET /v1/namespaces/{name}")
    plan_namespaces = _request(
        Operator.plan_namespaces, tuple[NamespaceChange, ...], "PUT /v1/namespaces?dry_run=true", "changes"
    )
    apply_namespaces = _request(Operator.apply_namespaces, bool, "PUT /v1/namespaces", "changed")
    drain_agents = _request(Operator.drain_agents, tuple[AgentRecord, ...], "POST /v1/agents/{name}/drain", "agents")
    grant_agents = _request(Operator.grant_agents, GrantAnswer, "POST /v1/agents/{name}/{verb}")
    policy = _request(Operator.policy, PolicyVersion, "GET /v1/policy")
    silences = _request(Operator.silences, tuple[Silence, ...], "GET /v1/silences", "silences")
    end_silence = _request(Operator.end_silence, Silence, "DELETE /v1/silences/{silence}")
    status = _request(Operator.status, dict[str, Any], "GET /v1/status")

    async def jobs(self) -> tuple[Job, ...]:
        return tuple(map(job_of, await self._api.listed("/v1/jobs", {"details": True})))

    async def job(self, name: str) -> Job:
        return job_of(await self._api.request("GET", path_of("jobs", name)))

    async def run_counters(self, job: str) -> RunCounters | None:
        runs = (await self._api.request("GET", path_of("jobs", job))).get("runs")
        return None if runs is None else read_as(RunCounters, runs)

    async def all_run_counters(self) -> Mapping[str, RunCounters]:
        jobs = await self._api.listed("/v1/jobs", {"runs": True})
        return {job["name"]: read_as(RunCounters, job["runs"]) for job in jobs if job["runs"] is not None}

    async def plan(self, definitions: Collection[JobDefinition], *, prune: Collection[str] = ()) -> Plan:
        by_name = {definition.name: definition for definition in definitions}
        ledgers = await each(by_name, self._ledger)
        plan = plan_of(by_name, ledgers, await self.jobs() if prune else (), prune, now=self._clock.now())
        return replace(plan, unknown=await check_dependencies(by_name, lambda jobs: each(jobs, self._ledger)))

    async def carry_out(self, plan: Plan) -> None:
        changes, deletions = plan.of("create", "update"), plan.of("delete")
        is_checked = False
        if changes and len(changes) + len(deletions) > 1:  # a single change is checked when it is made
            is_checked = await self._check(plan)
        # Deletions make room in the quotas, but a job is not deleted before its replacement may be refused.
        for portion in (deletions, changes) if is_checked else (changes, deletions):
            await each(portion, partial(self._carry_out, is_guarded=plan.is_guarded))

    async def trigger(
        self,
        job: str,
        input: Input | None = None,  # noqa: A002 - the field is called so
        args: Sequence[JsonValue] | None = None,
        *,
        priority: int | None = None,
        reason: str | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        body: JsonValue = {
            "input": input,
            "args": None if args is None else list(args),
            "reason": reason,
            "trigger": "manual",
            **({} if priority is None else {"priority": priority}),
            **({} if idempotency_key is None else {"idempotency_key": idempotency_key}),
        }
        triggered = await self._start(path_of("jobs", job, "trigger"), body)
        return str(triggered["execution_id"])

    async def sql(self, text: str, *, reason: str | None = None) -> tuple[StatementResult, ...]:
        result = await self._start("/v1/sql", {"sql": text, "reason": reason})
        return read_as(tuple[StatementResult, ...], result["results"])

    async def why(self, job: str, at: datetime | None = None) -> tuple[Answer, ...]:
        query = {"time": at.isoformat()} if at else {}
        result = await self._api.request("GET", path_of("jobs", job, "why"), query=query)
        return tuple(
            replace(read_as(Answer, {**answer, "facts": ()}), facts=tuple(map(recorded_of, answer["facts"])))
            for answer in result["answers"]
        )

    async def what_if(self, question: Question) -> WhatIfReport:
        body: JsonValue = {
            "jobs": [definition.model_dump(mode="json", exclude_none=True) for definition in question.definitions],
            "since": None if question.since is None else question.since.isoformat(),
            "until": None if question.until is None else question.until.isoformat(),
            "capacity": dict(question.capacity),
        }
        return read_as(WhatIfReport, await self._api.request("POST", "/v1/what-if", body))

    async def test_triggers(self, job: str, event: GivenEvent) -> tuple[TriggerAnswer, ...]:
        body: JsonValue = event.model_dump(mode="json")
        answer = await self._api.request("POST", path_of("jobs", job, "triggers/test"), body)
        return read_as(tuple[TriggerAnswer, ...], answer["triggers"])

    async def revisions(self, job: str) -> tuple[JobRevision, ...]:
        rows = await self._api.listed(path_of("jobs", job, "revisions"), position="before")
        return read_as(tuple[JobRevision, ...], rows)

    async def definition(self, job: str, revision: int) -> JobDefinition:
        request = self._api.request("GET", path_of("jobs", job, f"definitions/{revision}"))
        fact = (await self._of_revision(job, revision, request))["fact"]
        return JobDefinition.model_validate(fact["definition"], context=STORED)

    async def roll_back(self, job: str, revision: int, *, current: int, reason: str | None = None) -> None:
        body: JsonValue = {"sequence": revision, "reason": reason}
        request = self._api.request("POST", path_of("jobs", job, "rollback"), body, headers=if_match(current))
        await self._of_revision(job, revision, request)

    async def _of_revision(self, job: str, revision: int, request: Awaitable[Any]) -> Any:  # noqa: ANN401 - JSON
        try:
            return await request
        except JobNotFound:
            await self.job(job)
            raise no_definition(job, revision) from None

    async def plan_backfill(self, *_: object, **_options: object) -> Backfill:
        raise NotServed("backfill")

    def backfill(self, *_: object, **_options: object) -> AsyncIterator[Asked]:
        raise NotServed("backfill")

    async def executions(self, query: ExecutionQuery) -> Page[ExecutionRow]:
        return await self._api.page(ExecutionRow, "/v1/executions", query.parameters(), query.limit)

    async def last_outcomes(self, jobs: Collection[str]) -> Mapping[str, str]:
        statuses: dict[str, list[str]] = {}
        for names in (list(jobs)[first : first + JOBS_AT_ONCE] for first in range(0, len(jobs), JOBS_AT_ONCE)):
            answer = await self._api.request("GET", "/v1/outcomes", query={"job": names, "limit": OUTCOMES})
            statuses |= {job: [outcome["status"] for outcome in of_job] for job, of_job in answer["jobs"].items()}
        return last_ended(statuses)

    async def execution(self, given: str) -> ExecutionMatch:
        return await match_execution(given, self._facts, list_executions=self.executions)

    async def output(self, match: ExecutionMatch, *, after: int = 0) -> ExecutionOutput:
        result = await self._api.request("GET", f"/v1/executions/{match.execution_id}/logs", query={"after": after})
        return read_as(ExecutionOutput, result)

    async def fan_out(self, match: ExecutionMatch) -> FanOut | None:
        if fanned_out(match) is None:
            return None
        result = await self._api.request("GET", f"/v1/executions/{match.execution_id}")
        fan_out = result.get("fan_out")
        return None if fan_out is None else read_as(FanOut, fan_out)

    async def cancel(self, given: str, *, reason: str | None = None, job: str | None = None) -> Cancellation:
        match = await match_execution(given, self._facts, job=job, list_executions=self.executions)
        result = await self._api.request("POST", f"/v1/executions/{match.execution_id}/cancel", {"reason": reason})
        return read_as(Cancellation, result)

    async def dead_letters(self, query: DeadLetterQuery) -> Page[DeadLetterRow]:
        return await self._api.page(DeadLetterRow, "/v1/dead-letters", query.parameters(), query.limit)

    async def dead_letter(self, given: str, *, job: str | None = None) -> Letter:
        return await match_dead_letter(given, self._letter, job=job, list_dead_letters=self.dead_letters)

    async def replay(
        self,
        given: str,
        *,
        job: str | None = None,
        input: Input | None = None,  # noqa: A002 - the field is called so
        reason: str | None = None,
        again: bool = False,
        failed_only: bool = False,
    ) -> Replay:
        letter = await self.dead_letter(given, job=job)
        path, headers = f"/v1/dead-letters/{letter.id}/replay", {"Idempotency-Key": uuid4().hex}
        body: JsonValue = {"input": input, "again": again, "reason": reason, "failed_only": failed_only}
        result = await self._api.request("POST", path, body, query={"job": letter.job}, headers=headers)
        return read_as(Replay, result)

    async def resolve(self, given: str, *, reason: str | None = None, job: str | None = None) -> Resolution:
        letter = await self.dead_letter(given, job=job)
        body: JsonValue = {"resolved": True, "reason": reason}
        path = f"/v1/dead-letters/{letter.id}"
        result = await self._api.request("PATCH", path, body, query={"job": letter.job})
        return read_as(Resolution, result)

    async def queues(self) -> tuple[QueueDetails, ...]:
        return read_as(tuple[QueueDetails, ...], await self._api.listed("/v1/queues"))

    async def hold_ups(self, match: ExecutionMatch) -> tuple[HoldUp, ...]:
        result = await self._api.request("GET", f"/v1/executions/{match.execution_id}")
        return read_as(tuple[HoldUp, ...], result.get("held_up_by", ()))

    async def switch_queue(self, queue: str, *, paused: bool, reason: str | None = None) -> bool:
        path = path_of("queues", queue, "pause" if paused else "resume")
        return bool((await self._api.request("POST", path, {"reason": reason}))["changed"])

    async def agents(self, name: str | None = None) -> tuple[AgentRecord, ...]:
        if name is None:
            return read_as(tuple[AgentRecord, ...], await self._api.listed("/v1/agents"))
        return read_as(tuple[AgentRecord, ...], (await self._api.request("GET", path_of("agents", name)))["agents"])

    async def switch_agents(self, name: str, *, enabled: bool, reason: str | None = None) -> bool:
        path = path_of("agents", name, "enable" if enabled else "disable")
        return bool((await self._api.request("POST", path, {"reason": reason}))["changed"])

    async def change_policy(self, changes: Mapping[str, object], *, reason: str | None = None) -> bool:
        for _ in range(MAX_TRIES):
            current = await self.policy()
            body = {**changed(current.policy, changes).model_dump(), "reason": reason}
            with suppress(SequenceConflict):
                answer = await self._api.request("PUT", "/v1/policy", body, headers=if_match(current.version))
                return bool(answer["changed"])
        raise SequenceConflict(
            f"cannot change the policy: another writer changed it on each of {MAX_TRIES} tries. Try again."
        )

    async def notifications(self, query: NotificationQuery) -> Page[NotificationRow]:
        parameters = {"failed": query.failed} | ({} if query.cursor is None else {"cursor": query.cursor})
        return await self._api.page(NotificationRow, "/v1/notifications", parameters, query.limit)

    async def start_silence(self, *, job: str | None, tag: str | None, seconds: float, reason: str) -> Silence:
        body: dict[str, JsonValue] = {"job": job, "tag": tag, "duration": seconds, "reason": reason}
        body["all"] = job is None and tag is None
        return Silence.model_validate(await self._api.request("POST", "/v1/silences", body))

    def follow(
        self, job: str | None = None, *, from_start: bool = False
    ) -> AsyncGenerator[Sequence[Recorded[Message]], None]:
        return follow_events(self._api, job, after=FIRST if from_start else None)

    async def _ledger(self, job: str) -> Ledger:
        try:
            return (await self.job(job)).ledger
        except JobNotFound:
            return ledger.initial

    async def _check(self, plan: Plan) -> bool:
        """Let the API check all changes together; return whether it did."""
        deleted = plan.of("delete")
        # Deletions make room in the quotas. The API finds them by the owner: they are the jobs that the definitions lack.
        needed = plan.of("create", "update", "unchanged") if deleted else plan.of("create", "update")
        if len(needed) > MAX_CHECKED:
            return False
        body: JsonValue = {
            "jobs": [change.definition.model_dump(mode="json", exclude_none=True) for change in needed],
            "owner": deleted[0].definition.owner if deleted else None,
            "prune": bool(deleted),
            "dry_run": True,
            "days": CHECKED_DAYS,
        }
        try:
            await self._api.request("POST", "/v1/jobs:apply", body)
        except OperationError as error:
            if error.code == "too-large":  # each change is checked when it is made
                return False
            raise
        return True

    async def _carry_out(self, change: Change, *, is_guarded: bool) -> None:
        if change.verb == "delete":
            await self._prune(change, is_guarded=is_guarded)
            return
        body = change.definition.model_dump(mode="json", exclude_none=True)
        headers: dict[str, str] = {}
        if is_guarded:
            headers = {"If-None-Match": "*"} if change.sequence is None else if_match(change.sequence)
        try:
            await self._api.request("PUT", path_of("jobs", change.job), body, headers=headers)
        except SequenceConflict:
            if not change.is_made(Job.of(await self._ledger(change.job))):
                raise

    async def _prune(self, change: Change, *, is_guarded: bool) -> None:
        """Delete a job unless another owner took it over."""
        with suppress(JobNotFound):
            for _ in range(MAX_TRIES):
                job = await self.job(change.job)
                if is_guarded:
                    change.require_planned(job)
                if job.definition.owner != change.definition.owner:
                    return
                headers = if_match(job.sequence) | reason_header("pruned")
                with suppress(SequenceConflict):
                    await self._api.request("DELETE", path_of("jobs", change.job), headers=headers)
                    return
            raise SequenceConflict(
                f"cannot delete job {change.job!r}: another writer changed it on each of {MAX_TRIES} tries. Try again."
            )

    async def _start(self, path: str, body: JsonValue) -> Any:  # noqa: ANN401 - JSON
        headers = {"Idempotency-Key": uuid4().hex, "traceparent": current_traceparent() or ""}
        return await self._api.request("POST", path, body, headers=headers)

    async def _facts(self, execution_id: str, job: str | None) -> Sequence[Recorded[Message]]:
        """Return an execution's facts; none if it is unknown or belongs to another job."""
        try:
            result = await self._api.request("GET", f"/v1/executions/{execution_id}/events")
        except NotFound:
            return ()
        facts = result["facts"] or [result["expected"]]  # it is requested, and not planned yet
        return () if job not in {None, result["job_name"]} else [recorded_of(fact) for fact in facts]

    async def _letter(self, letter_id: str, job: str | None) -> Letter | None:
        path, query = f"/v1/dead-letters/{letter_id}", None if job is None else {"job": job}
        try:
            events = await self._api.request("GET", f"{path}/events", query=query)
            details = await self._api.request("GET", path, query=query)
        except NotFound:
            return None
        facts = [recorded_of(fact) for fact in events["facts"]]
        state = dead_letter.fold(facts)
        statuses = {replay["number"]: Status(replay["status"]) for replay in details["replays"]}
        replays = tuple(statuses.get(replay.fact.number, Status.UNKNOWN) for replay in state.replays)
        return Letter(events["job"], events["id"], state, tuple(facts), replays=replays)


class RemoteAdmin:
    """Tokens, with the methods of `Tokens`, and the checks of an installation."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def create(
        self,
        identity: str,
        roles: Collection[Role],
        *,
        binding: Binding = NO_TASKS,
        namespaces: Collection[str] | None = None,
        lifetime: timedelta | None = None,
        by: Actor | None = None,
    ) -> tuple[str, Token]:
        """See `Tokens`. The API records the identity of the caller's token in place of `by`."""
        _ = by
        body: dict[str, Any] = {"identity": identity, "roles": list(roles)}
        if lifetime is not None:
            body["lifetime"] = lifetime.total_seconds()
        if binding.queues:
            body |= {"queues": list(binding.queues), "functions": list(binding.functions)}
        if namespaces is not None:
            body["namespaces"] = sorted(namespaces)
        created = await self._api.request("POST", "/v1/tokens", body)
        return created.pop("token"), Token.model_validate(created)

    async def list(self) -> Sequence[Token]:
        return read_as(list[Token], (await self._api.request("GET", "/v1/tokens"))["tokens"])

    async def revoke(self, token_id: str) -> bool:
        try:
            await self._api.request("DELETE", path_of("tokens", token_id))
        except NotFound:
            return False
        return True

    async def examine(self) -> Sequence[Finding]:
        """Run the checks of `tocsin doctor`, except the checks of monitoring endpoints."""
        return read_as(list[Finding], (await self._api.request("GET", "/v1/doctor"))["findings"])
