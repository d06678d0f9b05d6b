"""Find an execution by its complete id or by its first characters.

An execution id is unique across jobs but does not name its job. The log finds a complete id with a filter over all jobs. Until the
planner has decided on a request, the request is found by the id that it chose.
Subjects cannot be searched by the beginning of a token, so a shortened id is looked up in the history.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final, TypeAlias, TypeVar

from ... import subjects
from ...domain import dead_letter, execution, execution_plan, history
from ...domain.definition import JobDefinition
from ...domain.events import (
    DeadLettered,
    Defined,
    Dispatched,
    Enqueued,
    FannedOut,
    Message,
    PoisonMessage,
    Recorded,
    Replayed,
    Requested,
    Trigger,
    newest_of,
)
from ...domain.execution import WaitsFor
from ...domain.execution_record import ExecutionRecord, Status
from ...domain.fan_out import execution_ids
from ...engine.rerun import message_of, unregistered_request
from ...ports import EventLog, ExecutionRow
from ...ports.queries import ExecutionQuery, Page
from ..jobs import read_back
from .errors import Ambiguous, NotAnId, NotFound

MIN_ID_LENGTH: Final = 4
"""Characters that a shortened id must have."""
FULL_ID_LENGTH: Final = 36
MAX_SUGGESTIONS: Final = 5
"""Ids that an error for an ambiguous id lists."""

M = TypeVar("M", bound=Message)
ListExecutions: TypeAlias = Callable[[ExecutionQuery], Awaitable[Page[ExecutionRow]]]
ReadFacts: TypeAlias = Callable[[str, str | None], Awaitable[Sequence[Recorded[Message]]]]
"""Read the facts of an execution by its complete id, and by its job if that is known."""


@dataclass(frozen=True, slots=True)
class ExecutionMatch:
    """An execution and the newest fact of each of its subjects, oldest first.

    The only fact of an execution that is requested and not planned yet is the event that would begin it now. It is not stored, and its
    sequence is 0.
    """

    job: str
    execution_id: str
    facts: tuple[Recorded[Message], ...]

    @property
    def is_planned(self) -> bool:
        """Whether the execution has an event; otherwise it is only requested."""
        return self.facts[-1].sequence > 0

    @property
    def events(self) -> tuple[Recorded[Message], ...]:
        return tuple(fact for fact in self.facts if fact.sequence)

    @property
    def waits_for(self) -> WaitsFor | None:
        """The reason for which it waits; None: for the planner, or for nothing."""
        return execution.waits_for(execution.fold(self.facts)) if self.is_planned else None

    @property
    def tokens(self) -> dict[tuple[str, int], str]:
        """The token of each task, by step and attempt, which makes its seal."""
        tasks = (fact.message for fact in self.facts if isinstance(fact.message, Dispatched))
        return {(task.step, task.attempt): task.token for task in tasks}


async def find(
    log: EventLog, given: str, *, job: str | None = None, list_executions: ListExecutions | None = None
) -> ExecutionMatch:
    """Return the execution that a complete or shortened id names.

    `given`: a complete id or, with `list_executions`, its first characters. The history is queried for a shortened id only.

    Raises:
        NotAnId: `given` cannot be an execution id.
        NotFound: no execution matches.
        Ambiguous: several executions match.
    """
    return await match_execution(given, partial(_read, log), job=job, list_executions=list_executions)


async def match_execution(
    given: str, read: ReadFacts, *, job: str | None = None, list_executions: ListExecutions | None = None
) -> ExecutionMatch:
    """Return an execution as `find` does; `read` returns no facts for an unknown id."""
    if not is_id(given):
        shown = repr(given) if len(given) <= FULL_ID_LENGTH else f"A text of {len(given):,} characters"
        raise NotAnId(
            f"{shown} is not an execution id. An id has only letters, digits and hyphens, at most {FULL_ID_LENGTH}."
        )
    if facts := await read(given, job):
        return ExecutionMatch(subjects.job_of(facts[0].subject), given, tuple(facts))
    if list_executions is not None and MIN_ID_LENGTH <= len(given) < FULL_ID_LENGTH:
        rows = (await list_executions(ExecutionQuery(id_prefix=given, job=job, limit=MAX_SUGGESTIONS))).rows
        if len(rows) > 1:
            raise Ambiguous(given, "executions", tuple(row.execution_id for row in rows))
        if rows:
            return await match_execution(rows[0].execution_id, read, job=rows[0].job_name)
    if list_executions is not None and len(given) < MIN_ID_LENGTH:
        raise NotAnId(f"The execution id {given!r} is too short. Give at least {MIN_ID_LENGTH} characters.")
    kind = f"execution of {job!r}" if job else "execution"
    shortened = list_executions is not None and len(given) < FULL_ID_LENGTH
    raise NotFound(f"no {kind} has the id {given!r}" + (", or an id that begins with it" if shortened else ""))


def is_id(given: str) -> bool:
    """Return whether a text can be an execution id or its beginning."""
    return 0 < len(given) <= FULL_ID_LENGTH and all(c.isalnum() or c == "-" for c in given)


async def is_newest(log: EventLog, match: ExecutionMatch) -> bool:
    """Return whether the log holds no newer fact of the execution.

    Check this before refusing a request, so that the refusal does not rest on a stale read.
    """
    return await log.tail(subjects.execution(match.job, match.execution_id)) == match.facts[-1].sequence


async def _read(log: EventLog, execution_id: str, job: str | None) -> Sequence[Recorded[Message]]:
    scope = subjects.execution(job or subjects.ANY, execution_id)
    facts = of_one_job(await log.load(scope), execution_id)
    return facts or await _requested(log, execution_id, job)


async def _requested(log: EventLog, execution_id: str, job: str | None) -> list[Recorded[Message]]:
    """Return the event that would begin an execution that is requested, and not decided yet."""
    for durable, subject in subjects.requests_of(job or subjects.ANY, execution_id).items():
        if not (sequence := await log.tail(subject)):
            continue
        request = await read_back(log, subject, sequence)
        of = subjects.job_of(request.subject)
        refused = PoisonMessage.id_of(durable, subjects.partition(subject), sequence)
        if await log.tail(subjects.dead_letter(of, refused)):
            break
        if (first := await _beginning(log, request, of)) is not None:
            return [Recorded(first, subjects.subject_of(first), 0, request.time)]
    return []


async def _beginning(log: EventLog, request: Recorded[Message], job: str) -> Requested | None:
    """Return the event that the planner would store now for a request."""
    match request.message:
        case Enqueued() as message:
            return execution_plan.from_enqueued(_with(request, message))
        case Trigger() as message if (newest := await _newest_definition(log, job)) is not None:
            return execution_plan.from_trigger(_with(request, message), *newest)
        case Replayed() as message:
            letter = dead_letter.fold(await log.load(subjects.dead_letter(job, message.id))).kept
            return None if letter is None else await _replay(log, _with(request, message), letter.message)
    return None


async def _replay(
    log: EventLog, replayed: Recorded[Replayed], letter: DeadLettered | PoisonMessage
) -> Requested | None:
    cause = message_of(letter) if isinstance(letter, PoisonMessage) else letter
    if isinstance(cause, DeadLettered) and (original := await unregistered_request(log, cause)) is not None:
        return execution_plan.from_replay_of(replayed, original)
    newest = await _newest_definition(log, letter.job)
    if newest is None or not isinstance(cause, DeadLettered | Trigger):
        return None
    return execution_plan.from_replay(replayed, cause, *newest)


async def _newest_definition(log: EventLog, job: str) -> tuple[JobDefinition, int] | None:
    """Return the last definition of a job, which may be deleted, and its sequence."""
    newest = await log.last(subjects.definition(job))
    return (
        None
        if newest is None or not isinstance(newest.message, Defined)
        else (newest.message.definition, newest.sequence)
    )


def _with(recorded: Recorded[Message], message: M) -> Recorded[M]:
    return Recorded(message, recorded.subject, recorded.sequence, recorded.time, recorded.message_id)


def of_one_job(facts: Sequence[Recorded[Message]], given: str) -> list[Recorded[Message]]:
    """Return the facts of the job that has an id first.

    A client may bring an id that a job of others gets later. Their facts must not meet, because the caller may see one job and not the other.
    """
    if not facts:
        return []
    scope = facts[0].subject.partition(f".{given}")[0]
    return [fact for fact in facts if fact.subject.partition(f".{given}")[0] == scope]


@dataclass(frozen=True, slots=True)
class ShardRun:
    """The execution on a shard."""

    shard: str
    execution_id: str
    status: Status = "pending"
    worker: str | None = None
    attempt: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FanOut:
    """The executions of an occurrence or trigger, by shard."""

    map: int
    """The version of the shard map."""
    runs: tuple[ShardRun, ...]
    counts: dict[Status, int] = field(default_factory=dict)
    """The number of executions of each status that occurs."""

    @property
    def status(self) -> Status:
        """The state of all together.

        It is an end only after the last run ended, and `completed` only if all completed.
        """
        kinds = self.counts.keys()
        if kinds & {"pending", "running"}:
            return "pending" if kinds == {"pending"} else "running"
        for status in ("failed", "cancelled", "skipped"):
            if status in kinds:
                return status
        return "completed"

    @property
    def summary(self) -> str:
        """The state in words: `14 of 16 completed, 1 failed, 1 running`."""
        others = [f"{number:,} {status}" for status, number in self.counts.items() if status != "completed"]
        return ", ".join((f"{self.counts.get('completed', 0):,} of {len(self.runs):,} completed", *others))


def fanned_out(match: ExecutionMatch) -> Recorded[FannedOut] | None:
    """Return the event by which an id stands for several executions.

    None: it is an execution.
    """
    return newest_of(match.facts, FannedOut)


async def read_fan_out(log: EventLog, match: ExecutionMatch) -> FanOut | None:
    """Return the executions of an occurrence.

    None: `match` is an execution of its own.
    """
    fanned = fanned_out(match)
    if fanned is None:
        return None
    fact = fanned.message
    names = execution_ids(fact)
    reads = await log.load_each(*(subjects.execution(fact.job, name) for name in names.values()))
    records = history.fold({}, chain.from_iterable(reads.facts))
    runs = tuple(_run(shard, name, records.get(name)) for shard, name in names.items())
    return FanOut(fact.map, runs, dict(Counter(run.status for run in runs)))


def _run(shard: str, execution_id: str, run: ExecutionRecord | None) -> ShardRun:
    if run is None:
        return ShardRun(shard, execution_id)  # it is about to begin
    return ShardRun(shard, execution_id, run.status, run.worker, run.attempt, run.error)
