"""An installation operated through its HTTP API: `tocsin --server URL`.

Lists, facts and changes are requests. Facts are folded here, as they are beside the log, so that a command shows the same
through the API and through NATS. The API records the identity of the caller's token.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import httpx
from pydantic import JsonValue, TypeAdapter

from ...domain import dead_letter, ledger
from ...domain.agent import AgentRecord
from ...domain.definition import STORED, JobDefinition
from ...domain.events import Input, Message, Namespace, Recorded, Shard, Silence
from ...domain.execution import Status
from ...domain.ledger import JobNotFound, Ledger
from ...domain.policy import changed
from ...ports import Clock, DeadLetterRow, ExecutionRow, SequenceConflict
from ...ports.queries import DeadLetterQuery, ExecutionQuery, NotificationQuery, Page
from ...services.agent_grants import GrantAnswer, GrantVerb
from ...services.definition_settings import DefinitionSettings
from ...services.explain import Answer
from ...services.hold_ups import HoldUp
from ...services.ignored_events import IgnoredEvent
from ...services.jobs import Change, Job, Plan, RunCounters, each, plan_of
from ...services.jobs.dependencies import check_dependencies
from ...services.namespaces import NamespaceChange, NamespaceDetails, NamespaceMap
from ...services.notifications import NotificationRow
from ...services.operations import dead_letters
from ...services.operations.backfill import Asked, Backfill, Span
from ...services.operations.dead_letter_lookup import Letter, match_dead_letter
from ...services.operations.dead_letters import Replay, Resolution
from ...services.operations.errors import Ambiguous, NotFound, OperationError
from ...services.operations.execution_output import ExecutionOutput
from ...services.operations.execution_requests import Cancellation
from ...services.operations.fan_out import FanOut, fanned_out
from ...services.operations.lookup import ExecutionMatch, match_execution
from ...services.operator import OUTCOMES, NotServed, last_ended
from ...services.policies import PolicyVersion
from ...services.queue_decisions import PurgeAnswer
from ...services.queues import QueueDetails
from ...services.shards import ShardMap
from ...services.statements import StatementResult
from ...services.timeline import Revision, no_definition
from ...services.trigger_test import GivenEvent, TriggerAnswer
from ...services.what_if import Question, WhatIfReport
from ...telemetry.execution_fields import current_traceparent
from ..system_clock import SystemClock
from .api_client import ApiClient, agent_path, job_of, job_path, queue_path, reason_header, recorded_of
from .event_stream import FIRST, follow_events

PAGE_SIZE: Final = 500
"""Rows per request; the API returns at most 1,000."""
MAX_CHECKED: Final = 2_000
"""Definitions of a plan that the API checks together. A request with more might be too large, or take too long."""
CHECKED_DAYS: Final = 0.001
"""Days of instants that the check of a plan compares; it needs none."""
JOBS_AT_ONCE: Final = 50
"""Jobs of a request for outcomes, whose names are in its URL."""
TIMEOUT_S: Final = 60.0
MAX_TRIES: Final = 5
"""Tries to delete a job or to change the policy while other writers change it too."""

_RUNS: Final = TypeAdapter(RunCounters | None)
_AGENTS: Final = TypeAdapter(list[AgentRecord])
_QUEUES: Final = TypeAdapter(list[QueueDetails])
_SHARDS: Final = TypeAdapter(ShardMap)
_NAMESPACES: Final = TypeAdapter(NamespaceMap)
_NAMESPACE_CHANGES: Final = TypeAdapter(tuple[NamespaceChange, ...])
_GRANTS: Final = TypeAdapter(GrantAnswer)
_POLICY: Final = TypeAdapter(PolicyVersion)
_DEFINITION_SETTINGS: Final = TypeAdapter(DefinitionSettings)
_NOTIFICATIONS: Final = TypeAdapter(tuple[NotificationRow, ...])
_SILENCES: Final = TypeAdapter(tuple[Silence, ...])
_HOLD_UPS: Final = TypeAdapter(tuple[HoldUp, ...])
_FAN_OUT: Final = TypeAdapter(FanOut | None)
_RESULTS: Final = TypeAdapter(tuple[StatementResult, ...])
_WHAT_IF: Final = TypeAdapter(WhatIfReport)
_PURGE: Final = TypeAdapter(PurgeAnswer)
_EXECUTIONS: Final = TypeAdapter(list[ExecutionRow])
_TRIGGERS: Final = TypeAdapter(tuple[TriggerAnswer, ...])
_IGNORED: Final = TypeAdapter(tuple[IgnoredEvent, ...])
_REVISIONS: Final = TypeAdapter(tuple[Revision, ...])
_ANSWER: Final = TypeAdapter(Answer)
_OUTPUT: Final = TypeAdapter(ExecutionOutput)
_DEAD_LETTERS: Final = TypeAdapter(list[DeadLetterRow])


@asynccontextmanager
async def connect(url: str, token: str | None) -> AsyncIterator["HttpOperator"]:
    """Yield an operator for the API at `url`; it sends `token` as bearer token."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT_S) as http:
        yield HttpOperator(ApiClient(http), SystemClock())


class HttpOperator:
    """Implements `services.operator.Operator` with requests."""

    def __init__(self, api: ApiClient, clock: Clock) -> None:
        """`clock` paces `replay_all`."""
        self._api = api
        self._clock = clock

    # --- jobs ---------------------------------------------------------------------------------------------------------

    async def jobs(self) -> tuple[Job, ...]:
        return tuple(map(job_of, await self._listed("/v1/jobs", "jobs", details=True)))

    async def job(self, name: str) -> Job:
        return job_of(await self._api.request("GET", job_path(name)))

    async def run_counters(self, job: str) -> RunCounters | None:
        return _RUNS.validate_python((await self._api.request("GET", job_path(job))).get("runs"))

    async def all_run_counters(self) -> Mapping[str, RunCounters]:
        runs = {
            job["name"]: _RUNS.validate_python(job["runs"]) for job in await self._listed("/v1/jobs", "jobs", runs=True)
        }
        return {job: of_job for job, of_job in runs.items() if of_job is not None}

    async def plan(self, definitions: Collection[JobDefinition], *, prune: Collection[str] = ()) -> Plan:
        by_name = {definition.name: definition for definition in definitions}
        ledgers = await each(by_name, self._ledger)
        plan = plan_of(by_name, ledgers, await self.jobs() if prune else (), prune, now=self._clock.now())
        return replace(plan, unknown=await check_dependencies(by_name, lambda jobs: each(jobs, self._ledger)))

    async def definition_settings(self) -> DefinitionSettings:
        return _DEFINITION_SETTINGS.validate_python(await self._api.request("GET", "/v1/definition-settings"))

    async def carry_out(self, plan: Plan) -> None:
        changes, deletions = plan.of("create", "update"), plan.of("delete")
        is_checked = False
        if changes and len(changes) + len(deletions) > 1:  # a single change is checked when it is made
            is_checked = await self._check(plan)
        # Deletions make room in the quotas, but a job is not deleted before its replacement may be refused.
        for portion in (deletions, changes) if is_checked else (changes, deletions):
            await each(portion, partial(self._carry_out, is_guarded=plan.is_guarded))

    async def pause(self, job: str, *, reason: str | None = None) -> bool:
        return await self._switch(job, "pause", reason)

    async def resume(self, job: str, *, reason: str | None = None) -> bool:
        return await self._switch(job, "resume", reason)

    async def delete(self, job: str, *, reason: str | None = None) -> None:
        await self._api.request("DELETE", job_path(job), headers=reason_header(reason))

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
        triggered = await self._api.request("POST", f"{job_path(job)}/trigger", body, headers=_start_headers())
        return str(triggered["execution_id"])

    async def sql(self, text: str, *, reason: str | None = None) -> tuple[StatementResult, ...]:
        body: JsonValue = {"sql": text, "reason": reason}
        result = await self._api.request("POST", "/v1/sql", body, headers=_start_headers())
        return _RESULTS.validate_python(result["results"])

    async def why(self, job: str, at: datetime | None = None) -> tuple[Answer, ...]:
        query = {"time": at.isoformat()} if at else {}
        result = await self._api.request("GET", f"{job_path(job)}/why", query=query)
        return tuple(
            replace(_ANSWER.validate_python({**answer, "facts": ()}), facts=tuple(map(recorded_of, answer["facts"])))
            for answer in result["answers"]
        )

    async def what_if(self, question: Question) -> WhatIfReport:
        body: JsonValue = {
            "jobs": [definition.model_dump(mode="json", exclude_none=True) for definition in question.definitions],
            "since": None if question.since is None else question.since.isoformat(),
            "until": None if question.until is None else question.until.isoformat(),
            "capacity": dict(question.capacity),
        }
        return _WHAT_IF.validate_python(await self._api.request("POST", "/v1/what-if", body))

    async def test_triggers(self, job: str, event: GivenEvent) -> tuple[TriggerAnswer, ...]:
        body: JsonValue = event.model_dump(mode="json")
        answer = await self._api.request("POST", f"{job_path(job)}/triggers/test", body)
        return _TRIGGERS.validate_python(answer["triggers"])

    async def ignored_events(self, job: str, *, limit: int, sequence: int | None = None) -> tuple[IgnoredEvent, ...]:
        query: dict[str, str | int | bool] = {"limit": limit}
        if sequence is not None:
            query["sequence"] = sequence
        answer = await self._api.request("GET", f"{job_path(job)}/triggers/ignored", query=query)
        return _IGNORED.validate_python(answer["events"])

    async def revisions(self, job: str) -> tuple[Revision, ...]:
        query: dict[str, str | int | bool] = {"limit": PAGE_SIZE}
        rows: list[Any] = []
        while True:
            page = await self._api.request("GET", f"{job_path(job)}/revisions", query=query)
            rows += page["revisions"]
            if page["next"] is None:
                return _REVISIONS.validate_python(rows)
            query["before"] = page["next"]

    async def definition(self, job: str, revision: int) -> JobDefinition:
        fact = await self._of_revision(job, revision, "GET", f"{job_path(job)}/definitions/{revision}")
        return JobDefinition.model_validate(fact["fact"]["definition"], context=STORED)

    async def roll_back(self, job: str, revision: int, *, current: int, reason: str | None = None) -> None:
        body: JsonValue = {"sequence": revision, "reason": reason}
        headers = {"If-Match": f'"{current}"'}
        await self._of_revision(job, revision, "POST", f"{job_path(job)}/rollback", body, headers)

    async def _of_revision(
        self,
        job: str,
        revision: int,
        method: str,
        path: str,
        body: JsonValue = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON
        try:
            return await self._api.request(method, path, body, headers=dict(headers or {}))
        except JobNotFound:
            await self.job(job)
            raise no_definition(job, revision) from None

    async def plan_backfill(
        self,
        job: str,  # noqa: ARG002 - the protocol's
        span: Span,  # noqa: ARG002
        *,
        now: datetime,  # noqa: ARG002
        name: str | None = None,  # noqa: ARG002
    ) -> Backfill:
        """Raise `NotServed`."""
        raise NotServed("backfill")

    def backfill(self, plan: Backfill, *, rate: float, reason: str | None = None) -> AsyncIterator[Asked]:  # noqa: ARG002
        """Raise `NotServed`."""
        raise NotServed("backfill")

    # --- executions ---------------------------------------------------------------------------------------------------

    async def executions(self, query: ExecutionQuery) -> Page[ExecutionRow]:
        rows, cursor = await self._rows("/v1/executions", "executions", query)
        return Page(_EXECUTIONS.validate_python(rows), cursor)

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
        return _OUTPUT.validate_python({**result, "job": result["job_name"]})

    async def fan_out(self, match: ExecutionMatch) -> FanOut | None:
        if fanned_out(match) is None:
            return None
        result = await self._api.request("GET", f"/v1/executions/{match.execution_id}")
        return _FAN_OUT.validate_python(result.get("fan_out"))

    async def cancel(self, given: str, *, reason: str | None = None, job: str | None = None) -> Cancellation:
        match = await match_execution(given, self._facts, job=job, list_executions=self.executions)
        result = await self._api.request("POST", f"/v1/executions/{match.execution_id}/cancel", {"reason": reason})
        return Cancellation(result["job"], result["execution_id"], Status(result["status"]), result["changed"])

    # --- dead letters -------------------------------------------------------------------------------------------------

    async def dead_letters(self, query: DeadLetterQuery) -> Page[DeadLetterRow]:
        rows, cursor = await self._rows("/v1/dead-letters", "dead_letters", query)
        return Page(_DEAD_LETTERS.validate_python(rows), cursor)

    async def dead_letter(self, given: str, *, job: str | None = None) -> Letter:
        return await self._match_letter(given, job, names_job=job is not None)

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
        body: JsonValue = {"input": input, "again": again, "reason": reason, "failed_only": failed_only}
        return await self._replay(given, job, body, names_job=job is not None)

    async def _replay(self, given: str, job: str | None, body: JsonValue, *, names_job: bool) -> Replay:
        letter = await self._match_letter(given, job, names_job=names_job)
        result = await self._request_letter(
            "POST",
            f"/v1/dead-letters/{letter.id}/replay",
            body,
            job=letter.job,
            names_job=names_job,
            headers={"Idempotency-Key": uuid4().hex},
        )
        return Replay(result["job"], result["id"], result["number"], result["execution_id"])

    def replay_all(
        self, letters: Iterable[DeadLetterRow], *, rate: float, reason: str | None = None
    ) -> AsyncIterator[Replay | OperationError]:
        def replay(given: str, job: str) -> Awaitable[Replay]:
            return self._replay(given, job, {"reason": reason}, names_job=False)

        return dead_letters.replay_all(replay, letters, self._clock, rate=rate)

    async def resolve(self, given: str, *, reason: str | None = None, job: str | None = None) -> Resolution:
        names_job = job is not None
        letter = await self._match_letter(given, job, names_job=names_job)
        body: JsonValue = {"resolved": True, "reason": reason}
        path = f"/v1/dead-letters/{letter.id}"
        result = await self._request_letter("PATCH", path, body, job=letter.job, names_job=names_job)
        return Resolution(result["job"], result["id"], result["changed"])

    # --- events -------------------------------------------------------------------------------------------------------

    async def queues(self) -> tuple[QueueDetails, ...]:
        return tuple(_QUEUES.validate_python(await self._listed("/v1/queues", "queues")))

    async def hold_ups(self, match: ExecutionMatch) -> tuple[HoldUp, ...]:
        result = await self._api.request("GET", f"/v1/executions/{match.execution_id}")
        return _HOLD_UPS.validate_python(result.get("held_up_by", ()))

    async def switch_queue(self, queue: str, *, paused: bool, reason: str | None = None) -> bool:
        verb = "pause" if paused else "resume"
        result = await self._api.request("POST", f"{queue_path(queue)}/{verb}", {"reason": reason})
        return bool(result["changed"])

    async def purge_queue(self, queue: str, *, reason: str | None = None, dry_run: bool = False) -> PurgeAnswer:
        query = {"dry_run": dry_run} if dry_run else None
        return _PURGE.validate_python(
            await self._api.request("POST", f"{queue_path(queue)}/purge", {"reason": reason}, query=query)
        )

    async def shards(self) -> ShardMap:
        return _SHARDS.validate_python(await self._api.request("GET", "/v1/shards"))

    async def apply_shards(self, shards: Sequence[Shard], *, expected: int, reason: str | None = None) -> bool:
        body: JsonValue = {"shards": [shard.model_dump(mode="json") for shard in shards], "reason": reason}
        headers = {"If-Match": f'"{expected}"'}
        return bool((await self._api.request("PUT", "/v1/shards", body, headers=headers))["changed"])

    async def namespaces(self) -> NamespaceMap:
        return _NAMESPACES.validate_python(await self._api.request("GET", "/v1/namespaces"))

    async def namespace(self, name: str) -> NamespaceDetails:
        return NamespaceDetails.model_validate(await self._api.request("GET", f"/v1/namespaces/{quote(name, safe='')}"))

    async def plan_namespaces(self, wanted: Sequence[Namespace]) -> tuple[NamespaceChange, ...]:
        body: JsonValue = {"namespaces": [namespace.model_dump(mode="json") for namespace in wanted]}
        planned = await self._api.request("PUT", "/v1/namespaces", body, query={"dry_run": True})
        return _NAMESPACE_CHANGES.validate_python(planned["changes"])

    async def apply_namespaces(self, wanted: Sequence[Namespace], *, expected: int, reason: str | None = None) -> bool:
        body: JsonValue = {
            "namespaces": [namespace.model_dump(mode="json") for namespace in wanted],
            "reason": reason,
        }
        headers = {"If-Match": f'"{expected}"'}
        return bool((await self._api.request("PUT", "/v1/namespaces", body, headers=headers))["changed"])

    async def agents(self, name: str | None = None) -> tuple[AgentRecord, ...]:
        if name is None:
            return tuple(_AGENTS.validate_python(await self._listed("/v1/agents", "agents")))
        return tuple(_AGENTS.validate_python((await self._api.request("GET", agent_path(name)))["agents"]))

    async def drain_agents(self, name: str, *, reason: str | None = None) -> tuple[AgentRecord, ...]:
        result = await self._api.request("POST", f"{agent_path(name)}/drain", {"reason": reason})
        return tuple(_AGENTS.validate_python(result["agents"]))

    async def switch_agents(self, name: str, *, enabled: bool, reason: str | None = None) -> bool:
        verb = "enable" if enabled else "disable"
        result = await self._api.request("POST", f"{agent_path(name)}/{verb}", {"reason": reason})
        return bool(result["changed"])

    async def grant_agents(
        self,
        verb: GrantVerb,
        name: str,
        queues: Sequence[str],
        functions: Sequence[str],
        *,
        shards: Sequence[str] = (),
        reason: str | None = None,
    ) -> GrantAnswer:
        body: dict[str, JsonValue] = {"queues": [*queues], "functions": [*functions], "reason": reason}
        if shards:
            body["shards"] = [*shards]
        return _GRANTS.validate_python(await self._api.request("POST", f"{agent_path(name)}/{verb}", body))

    async def policy(self) -> PolicyVersion:
        return _POLICY.validate_python(await self._api.request("GET", "/v1/policy"))

    async def change_policy(self, changes: Mapping[str, object], *, reason: str | None = None) -> bool:
        for _ in range(MAX_TRIES):
            current = await self.policy()
            body = {**changed(current.policy, changes).model_dump(), "reason": reason}
            try:
                answer = await self._api.request(
                    "PUT", "/v1/policy", body, headers={"If-Match": f'"{current.version}"'}
                )
            except SequenceConflict:
                continue
            return bool(answer["changed"])
        raise SequenceConflict(
            f"cannot change the policy: another writer changed it on each of {MAX_TRIES} tries. Try again."
        )

    async def notifications(self, query: NotificationQuery) -> Page[NotificationRow]:
        parameters: dict[str, str | int | bool] = {"limit": query.limit, "failed": query.failed}
        if query.cursor is not None:
            parameters["cursor"] = query.cursor
        answer = await self._api.request("GET", "/v1/notifications", query=parameters)
        return Page(_NOTIFICATIONS.validate_python(answer["notifications"]), answer["next"])

    async def silences(self) -> tuple[Silence, ...]:
        return tuple(_SILENCES.validate_python((await self._api.request("GET", "/v1/silences"))["silences"]))

    async def start_silence(self, *, job: str | None, tag: str | None, seconds: float, reason: str) -> Silence:
        body: dict[str, JsonValue] = {"job": job, "tag": tag, "duration": seconds, "reason": reason}
        body["all"] = job is None and tag is None
        return Silence.model_validate(await self._api.request("POST", "/v1/silences", body))

    async def end_silence(self, silence: str, *, reason: str | None = None) -> Silence:
        path = f"/v1/silences/{quote(silence, safe='')}"
        return Silence.model_validate(await self._api.request("DELETE", path, headers=reason_header(reason)))

    async def status(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = await self._api.request("GET", "/v1/status")
        return status

    async def tail(
        self, job: str | None = None, *, from_start: bool = False
    ) -> AsyncGenerator[Recorded[Message], None]:
        async with aclosing(follow_events(self._api, job, after=FIRST if from_start else None)) as follower:
            async for facts in follower:
                for fact in facts:
                    yield fact

    def follow(self, job: str | None = None) -> AsyncGenerator[Sequence[Recorded[Message]], None]:
        return follow_events(self._api, job)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _ledger(self, job: str) -> Ledger:
        try:
            return (await self.job(job)).ledger
        except JobNotFound:
            return ledger.initial

    async def _check(self, plan: Plan) -> bool:
        """Let the API check all changes together; return whether it did.

        Raises:
            DefinitionError, NotPermitted: the API would refuse one.
        """
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
            headers = {"If-None-Match": "*"} if change.sequence is None else {"If-Match": f'"{change.sequence}"'}
        try:
            await self._api.request("PUT", job_path(change.job), body, headers=headers)
        except SequenceConflict:
            if not change.is_made(Job.of(await self._ledger(change.job))):
                raise

    async def _prune(self, change: Change, *, is_guarded: bool) -> None:
        """Delete a job unless another owner took it over.

        Raises:
            SequenceConflict: another writer changed it since it was planned, if it is guarded; or on each try.
        """
        for _ in range(MAX_TRIES):
            try:
                job = await self.job(change.job)
            except JobNotFound:
                return
            if is_guarded:
                change.require_planned(job)
            if job.definition.owner != change.definition.owner:
                return
            headers = {"If-Match": f'"{job.sequence}"'} | reason_header("pruned")
            try:
                await self._api.request("DELETE", job_path(change.job), headers=headers)
            except JobNotFound:
                return
            except SequenceConflict:
                continue
            return
        raise SequenceConflict(
            f"cannot delete job {change.job!r}: another writer changed it on each of {MAX_TRIES} tries. Try again."
        )

    async def _switch(self, job: str, verb: str, reason: str | None) -> bool:
        result = await self._api.request("POST", f"{job_path(job)}/{verb}", {"reason": reason})
        return bool(result["changed"])

    async def _facts(self, execution_id: str, job: str | None) -> Sequence[Recorded[Message]]:
        """Return an execution's facts; none if it is unknown or belongs to another job."""
        try:
            result = await self._api.request("GET", f"/v1/executions/{execution_id}/events")
        except NotFound:
            return ()
        facts = result["facts"] or [result["expected"]]  # it is requested, and not planned yet
        return () if job not in {None, result["job_name"]} else [recorded_of(fact) for fact in facts]

    async def _match_letter(self, given: str, job: str | None, *, names_job: bool) -> Letter:
        read = partial(self._letter, names_job=names_job)
        return await match_dead_letter(given, read, job=job, list_dead_letters=self.dead_letters)

    async def _letter(self, id: str, job: str | None, *, names_job: bool) -> Letter | None:  # noqa: A002 - the field is called so
        path = f"/v1/dead-letters/{id}"
        try:
            events, details = [
                await self._request_letter("GET", url, job=job, names_job=names_job) for url in (f"{path}/events", path)
            ]
        except NotFound:
            return None
        if job not in {None, events["job"]}:  # a request without `job` finds the letter of any job
            return None
        facts = [recorded_of(fact) for fact in events["facts"]]
        state = dead_letter.fold(facts)
        statuses = {replay["number"]: Status(replay["status"]) for replay in details["replays"]}
        replays = tuple(statuses.get(replay.fact.number, Status.UNKNOWN) for replay in state.replays)
        return Letter(events["job"], events["id"], state, tuple(facts), replays=replays)

    async def _request_letter(
        self,
        method: str,
        path: str,
        body: JsonValue = None,
        *,
        job: str | None,
        names_job: bool,
        headers: Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON
        """Send a request on a dead letter.

        It has the job if the caller named that, or if several jobs have the id: an older API refuses the parameter `job`.
        """
        if not names_job:
            try:
                return await self._api.request(method, path, body, headers=headers)
            except OperationError as error:
                if job is None or error.code != Ambiguous.code:
                    raise
        return await self._api.request(method, path, body, query=None if job is None else {"job": job}, headers=headers)

    async def _listed(self, path: str, name: str, **query: bool) -> list[Any]:
        """Return the items of all pages of a list that is sorted by name."""
        parameters: dict[str, str | int | bool] = {**query, "limit": PAGE_SIZE}
        items: list[Any] = []
        while True:
            page = await self._api.request("GET", path, query=parameters)
            items += page[name]
            if page["next"] is None:
                return items
            parameters["after"] = page["next"]

    async def _rows(
        self, path: str, name: str, query: ExecutionQuery | DeadLetterQuery
    ) -> tuple[list[Any], str | None]:
        """Return up to `query.limit` rows, from several pages, and the next cursor."""
        parameters = query.parameters()
        rows: list[Any] = []
        while True:
            parameters["limit"] = min(PAGE_SIZE, query.limit - len(rows))
            page = await self._api.request("GET", path, query=parameters)
            rows += page[name]
            if page["next"] is None or len(rows) >= query.limit:
                return rows, page["next"]
            parameters["cursor"] = page["next"]


def _start_headers() -> Mapping[str, str]:
    """Return the headers of a request that starts executions: its key and its trace."""
    return {"Idempotency-Key": uuid4().hex, "traceparent": current_traceparent() or ""}
