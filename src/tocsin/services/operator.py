"""Operations of a user on an installation, through NATS or through its HTTP API."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from pydantic import JsonValue

from ..domain.agent import AgentRecord
from ..domain.definition import JobDefinition
from ..domain.errors import TocsinError
from ..domain.events import Input, Message, Namespace, Recorded, Shard
from ..ports import DeadLetterRow, ExecutionRow, History, LogUnavailable
from ..ports.queries import DeadLetterQuery, ExecutionQuery, NotificationQuery, Page
from ..ports.summaries import ENDED
from .jobs import Job, Plan, RunCounters
from .operations.errors import OperationError

if TYPE_CHECKING:  # a command that lists jobs imports none of the other operations
    from ..domain.events import Silence
    from ..domain.what_if import WhatIfReport
    from .agent_grants import GrantAnswer, GrantVerb
    from .definition_settings import DefinitionSettings
    from .explain import Answer
    from .hold_ups import HoldUp
    from .ignored_events import IgnoredEvent
    from .namespaces import NamespaceChange, NamespaceDetails, NamespaceMap
    from .notifications import NotificationRow
    from .operations.backfill import Asked, Backfill, Span
    from .operations.dead_letter_lookup import Letter
    from .operations.dead_letters import Replay, Resolution
    from .operations.execution_output import ExecutionOutput
    from .operations.execution_requests import Cancellation
    from .operations.fan_out import FanOut
    from .operations.lookup import ExecutionMatch
    from .policies import PolicyVersion
    from .queue_decisions import PurgeAnswer
    from .queues import QueueDetails
    from .shards import ShardMap
    from .statements import StatementResult
    from .timeline import JobRevision
    from .trigger_test import GivenEvent, TriggerAnswer
    from .what_if import Question

OUTCOMES: Final = 10
"""Newest executions of a job that are searched for its last outcome."""

OpenHistory: TypeAlias = Callable[[], AbstractAsyncContextManager[History]]


class NotServed(TocsinError):
    """The HTTP API has no request for this operation."""

    code = "not-served-over-http"

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation} is not served over HTTP: leave --server out, and name the NATS server")
        self.operation = operation


class ApiUnavailable(LogUnavailable):
    """The HTTP API of `--server` does not answer, or answers with an error."""

    code = "api-unavailable"


def last_ended(statuses: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the status of the newest ended execution of each job that has one.

    `statuses`: those of each job's executions, newest first.
    """
    ended = ((job, next((status for status in of_job if status in ENDED), None)) for job, of_job in statuses.items())
    return {job: status for job, status in ended if status is not None}


class Operator(Protocol):
    """Operations on one installation. Each change records the identity of the caller."""

    async def jobs(self) -> tuple[Job, ...]:
        """Return every registered job, sorted by name."""

    async def job(self, name: str) -> Job:
        """Return one job.

        Raises:
            JobNotFound: no job has this name.
        """

    async def run_counters(self, job: str) -> RunCounters | None:
        """Return the counters of a registered job, with its last result.

        None: the history is incomplete until it is rebuilt. Over HTTP also: it is unavailable, or the caller may not read executions.

        Raises:
            JobNotFound: over HTTP: no job has this name.
            HistoryUnavailable: the history cannot be read.
        """

    async def all_run_counters(self) -> Mapping[str, RunCounters]:
        """Return the counters of all jobs by name, without results.

        They are empty if the counters are unknown (see `run_counters`).
        """

    async def plan(self, definitions: Collection[JobDefinition], *, prune: Collection[str] = ()) -> Plan:
        """Plan how to register `definitions` and delete the other jobs of the owners in `prune`."""

    async def definition_settings(self) -> "DefinitionSettings":
        """Return the names in the settings that definitions may refer to."""

    async def carry_out(self, plan: Plan) -> None:
        """Carry out a plan. Idempotent; a job that another owner took over is not deleted.

        Raises:
            SequenceConflict: the plan is guarded, and a job was changed since. Others may be changed already.
        """

    async def pause(self, job: str, *, reason: str | None = None) -> bool:
        """Pause a job; return whether it was running before.

        Raises:
            JobNotFound: no job has this name.
        """

    async def resume(self, job: str, *, reason: str | None = None) -> bool:
        """Resume a job; return whether it was paused before.

        Raises:
            JobNotFound: no job has this name.
        """

    async def delete(self, job: str, *, reason: str | None = None) -> None:
        """Delete a job; its active executions continue.

        Raises:
            JobNotFound: no job has this name.
        """

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
        """Request an execution now and return its id.

        The keys of `input` override those of the definition, and `priority` replaces its own. Requests of a job with one
        `idempotency_key` make one execution, until 24 hours after its end. The execution continues the trace of the current span
        of OpenTelemetry, if there is one.

        Raises:
            JobNotFound: no job has this name.
            DefinitionError: the job does not accept this input.
        """

    async def sql(self, text: str, *, reason: str | None = None) -> "tuple[StatementResult, ...]":
        """Carry out statements about jobs (see `services.statements`).

        Raises:
            StatementError, DefinitionError: a statement cannot be carried out as it is written.
            JobNotFound, NotFound, OperationError: the state of the installation does not allow it.
        """

    async def why(self, job: str, at: datetime | None = None) -> "tuple[Answer, ...]":
        """Explain why a job ran at an instant or did not (see `ExplainReader.why`).

        Raises:
            JobNotFound: no fact names this job.
        """

    async def what_if(self, question: "Question") -> "WhatIfReport":
        """Replay the recorded past, or the forecast, with other definitions or other workers (see `WhatIf.ask`).

        Raises:
            InvalidQuery, OperationError: the question is invalid or too large.
        """

    async def test_triggers(self, job: str, event: "GivenEvent") -> "tuple[TriggerAnswer, ...]":
        """Return what an event would do to each trigger of a job, without any effect.

        Raises:
            JobNotFound: no job has this name.
        """

    async def ignored_events(self, job: str, *, limit: int, sequence: int | None = None) -> "tuple[IgnoredEvent, ...]":
        """Return the newest events that started no execution of a job, oldest first.

        `sequence`: only events with this position in their stream.

        Raises:
            JobNotFound: no job has this name.
        """

    async def revisions(self, job: str) -> "tuple[JobRevision, ...]":
        """Return the changes to the definition of a job, newest first.

        Raises:
            JobNotFound: no fact names this job.
        """

    async def definition(self, job: str, revision: int) -> JobDefinition:
        """Return the definition of a revision.

        Raises:
            JobNotFound: no job has this name.
            NotFound: the revision defines nothing.
        """

    async def roll_back(self, job: str, revision: int, *, current: int, reason: str | None = None) -> None:
        """Register the definition of a revision again.

        `current`: the sequence of the job that it replaces.

        Raises:
            JobNotFound: no job has this name.
            NotFound: the revision defines nothing.
            SequenceConflict: another writer changed the job.
        """

    async def plan_backfill(self, job: str, span: "Span", *, now: datetime, name: str | None = None) -> "Backfill":
        """Plan a backfill (see `operations.backfill.plan`).

        Raises:
            JobNotFound: no job has this name.
            OperationError: the job cannot be backfilled for this span.
            NotServed: over HTTP.
        """

    def backfill(self, plan: "Backfill", *, rate: float, reason: str | None = None) -> "AsyncIterator[Asked]":
        """Trigger the executions of a backfill, at most `rate` per second.

        Raises:
            NotServed: over HTTP.
        """

    async def executions(self, query: ExecutionQuery) -> Page[ExecutionRow]:
        """Return a page of executions from the history."""

    async def last_outcomes(self, jobs: Collection[str]) -> Mapping[str, str]:
        """Return the status of the newest ended execution of each job.

        A job without one among its last `OUTCOMES` executions is left out.
        """

    async def execution(self, given: str) -> "ExecutionMatch":
        """Return the execution whose id is `given` or begins with it.

        Raises:
            NotAnId, NotFound, Ambiguous: `given` does not name one execution.
        """

    async def output(self, match: "ExecutionMatch", *, after: int = 0) -> "ExecutionOutput":
        """Return the lines of an execution after a sequence, and the progress of its steps.

        Raises:
            LogUnavailable: the log does not answer.
        """

    async def fan_out(self, match: "ExecutionMatch") -> "FanOut | None":
        """Return the executions of an occurrence (see `fan_out.read_fan_out`)."""

    async def cancel(self, given: str, *, reason: str | None = None, job: str | None = None) -> "Cancellation":
        """Cancel an execution; a finished execution stays as it is.

        Raises:
            NotAnId, NotFound, Ambiguous: `given` does not name one execution.
        """

    async def dead_letters(self, query: DeadLetterQuery) -> Page[DeadLetterRow]:
        """Return a page of dead letters from the history."""

    async def dead_letter(self, given: str, *, job: str | None = None) -> "Letter":
        """Return the dead letter whose id is `given` or begins with it.

        `job`: its job, if it is known.

        Raises:
            NotAnId, NotFound, Ambiguous: `given` does not name one dead letter.
        """

    async def replay(
        self,
        given: str,
        *,
        job: str | None = None,
        input: Input | None = None,  # noqa: A002 - the field is called so
        reason: str | None = None,
        again: bool = False,
        failed_only: bool = False,
    ) -> "Replay":
        """Run failed work again (see `operations.dead_letters.replay`).

        Raises:
            NotAnId, NotFound, Ambiguous: `given` does not name one dead letter.
            OperationError: it cannot be replayed, or needs `again`.
            DefinitionError: the job does not accept the input.
        """

    def replay_all(
        self, letters: Iterable[DeadLetterRow], *, rate: float, reason: str | None = None
    ) -> "AsyncIterator[Replay | OperationError]":
        """Replay dead letters, each once, at most `rate` per second.

        An error stands for a dead letter that was skipped.
        """

    async def resolve(self, given: str, *, reason: str | None = None, job: str | None = None) -> "Resolution":
        """Mark a dead letter as resolved.

        Raises:
            NotAnId, NotFound, Ambiguous: `given` does not name one dead letter.
        """

    async def queues(self) -> "tuple[QueueDetails, ...]":
        """Return all queues by name, with the jobs that the caller sees."""

    async def hold_ups(self, match: "ExecutionMatch") -> "tuple[HoldUp, ...]":
        """Return what holds back the waiting tasks of an execution."""

    async def switch_queue(self, queue: str, *, paused: bool, reason: str | None = None) -> bool:
        """Pause or resume a queue; return whether that changed anything.

        Raises:
            NotFound: no setting and no job names the queue.
            OperationError: its tasks cannot be held back.
        """

    async def purge_queue(self, queue: str, *, reason: str | None = None, dry_run: bool = False) -> "PurgeAnswer":
        """Cancel the executions whose tasks wait in a queue now.

        `dry_run`: only say how many wait.

        Raises:
            NotFound: no setting and no job names the queue.
            OperationError: its tasks cannot be held back.
        """

    async def shards(self) -> "ShardMap":
        """Return the newest shard map."""

    async def apply_shards(self, shards: Sequence[Shard], *, expected: int, reason: str | None = None) -> bool:
        """Replace the shard map of an expected version; return whether that changed anything.

        Raises:
            SequenceConflict: the map has another version.
            WrongShardMap: a shard is not valid, or there are too many.
        """

    async def namespaces(self) -> "NamespaceMap":
        """Return the declared namespaces."""

    async def namespace(self, name: str) -> "NamespaceDetails":
        """Return a declared namespace, with what it holds and what it used today.

        Raises:
            NotFound: it is not declared.
        """

    async def plan_namespaces(self, wanted: Sequence[Namespace]) -> "tuple[NamespaceChange, ...]":
        """Return what a declaration of all namespaces would change.

        Raises:
            WrongNamespaces: a namespace is not valid, or there are too many.
        """

    async def apply_namespaces(self, wanted: Sequence[Namespace], *, expected: int, reason: str | None = None) -> bool:
        """Replace the declarations of an expected version; return whether that changed anything.

        Raises:
            SequenceConflict: the declarations have another version.
            WrongNamespaces: a namespace is not valid, or there are too many.
        """

    async def agents(self, name: str | None = None) -> tuple[AgentRecord, ...]:
        """Return all agents, or those of a name or id.

        Raises:
            NotFound: no agent has this name or id.
        """

    async def drain_agents(self, name: str, *, reason: str | None = None) -> tuple[AgentRecord, ...]:
        """Drain the agents of a name, or one process by its id.

        Return those that began to drain.

        Raises:
            NotFound: no agent has this name or id.
        """

    async def switch_agents(self, name: str, *, enabled: bool, reason: str | None = None) -> bool:
        """Enable or disable all agents of a name; return whether that changed anything.

        Raises:
            NotFound: no agent has this name.
        """

    async def grant_agents(
        self,
        verb: "GrantVerb",
        name: str,
        queues: Sequence[str],
        functions: Sequence[str],
        *,
        shards: Sequence[str] = (),
        reason: str | None = None,
    ) -> "GrantAnswer":
        """Add functions of queues, and shards, to the grants of a name, or remove them.

        `agent_grants.change` has the rules.

        Raises:
            OperationError: a name, a queue, a function or a shard is invalid.
        """

    async def policy(self) -> "PolicyVersion":
        """Return the scheduler policy."""

    async def change_policy(self, changes: Mapping[str, object], *, reason: str | None = None) -> bool:
        """Change fields of the scheduler policy; return whether that changed anything. None unsets a field.

        Raises:
            DefinitionError: a field is unknown, or a value is invalid.
        """

    async def notifications(self, query: "NotificationQuery") -> "Page[NotificationRow]":
        """Return a page of notifications with their delivery, the newest first."""

    async def silences(self) -> "tuple[Silence, ...]":
        """Return the silences of notifications in force, the oldest first."""

    async def start_silence(self, *, job: str | None, tag: str | None, seconds: float, reason: str) -> "Silence":
        """Start a silence of a job, a tag or all jobs.

        Raises:
            JobNotFound: the job does not exist.
            OperationError: it is too long, has no reason or a wrong name, or too many silences are in force.
        """

    async def end_silence(self, silence: str, *, reason: str | None = None) -> "Silence":
        """End a silence; `silence`: its id.

        Raises:
            NotFound: no silence in force has this id.
        """

    async def status(self) -> Mapping[str, Any]:
        """Return the status of all parts, as `tocsin status -o json` prints it."""

    def tail(self, job: str | None = None, *, from_start: bool = False) -> AsyncGenerator[Recorded[Message], None]:
        """Yield the facts of a job or of all jobs as they are stored.

        `from_start`: begin with the facts stored before.

        Raises:
            LogUnavailable: the log does not answer at the beginning.
        """

    def follow(self, job: str | None = None) -> AsyncGenerator[Sequence[Recorded[Message]], None]:
        """Yield the facts of a job or of all jobs in batches, from now on.

        An empty batch comes first, and again after each gap: all facts stored after it follow, and facts stored before it may be missing.

        Raises:
            LogUnavailable: the log does not answer at the beginning.
        """
