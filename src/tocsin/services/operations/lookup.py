"""Find an execution by its complete id or by its first characters.

An execution id is unique across jobs but does not name its job. The log finds a complete id with a filter over all jobs.
Subjects cannot be searched by the beginning of a token, so a shortened id is looked up in the history.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from ... import subjects
from ...archive.stream_reader import archived
from ...domain.events import Dispatched, Message, Recorded
from ...ports import EventLog, ExecutionRow, History, StoredLog
from ...ports.queries import ExecutionQuery, Page
from .errors import Ambiguous, NotAnId, NotFound

MIN_ID_LENGTH: Final = 4
"""Characters that a shortened id must have."""
FULL_ID_LENGTH: Final = 36
"""Characters of a complete id."""
MAX_SUGGESTIONS: Final = 5
"""Ids that an error for an ambiguous id lists."""

ListExecutions: TypeAlias = Callable[[ExecutionQuery], Awaitable[Page[ExecutionRow]]]
ReadFacts: TypeAlias = Callable[[str, str | None], Awaitable[Sequence[Recorded[Message]]]]
"""Read the facts of an execution by its complete id, and by its job if that is known."""


@dataclass(frozen=True, slots=True)
class ExecutionMatch:
    """An execution and the newest fact of each of its subjects, oldest first.

    Foreign messages are among them, because a guard counts their sequences.
    """

    job: str
    execution_id: str
    facts: tuple[Recorded[Message], ...]

    @property
    def events(self) -> tuple[Recorded[Message], ...]:
        """The events of the execution, without foreign messages."""
        return tuple(fact for fact in self.facts if not subjects.is_foreign(fact))

    @property
    def tokens(self) -> dict[tuple[str, int], str]:
        """The token of each task, by step and attempt, which makes its seal."""
        tasks = (fact.message for fact in self.facts if isinstance(fact.message, Dispatched))
        return {(task.step, task.attempt): task.token for task in tasks}


async def find(
    log: EventLog,
    given: str,
    *,
    job: str | None = None,
    list_executions: ListExecutions | None = None,
    stored: StoredLog | None = None,
) -> ExecutionMatch:
    """Return the execution that a complete or shortened id names.

    Args:
        log: holds the facts.
        given: a complete id or, with `list_executions`, its first characters.
        job: the job, if it is known.
        list_executions: queries the history; called only for a shortened id.
        stored: the log and its archive; read if the log no longer holds the execution.

    Raises:
        NotAnId: `given` cannot be an execution id.
        NotFound: no execution matches.
        Ambiguous: several executions match.
    """
    return await match_execution(given, partial(_read, log, stored), job=job, list_executions=list_executions)


async def match_execution(
    given: str, read: ReadFacts, *, job: str | None = None, list_executions: ListExecutions | None = None
) -> ExecutionMatch:
    """Return the execution that a complete or shortened id names.

    `read` returns no facts for an unknown id.

    Raises:
        NotAnId: `given` cannot be an execution id.
        NotFound: no execution matches.
        Ambiguous: several executions match.
    """
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


async def was_archived(execution_id: str, history: History, stored: StoredLog) -> bool:
    """Return whether an execution of an unknown job is in the archive alone.

    The archive's manifests alone answer most calls with no. The history answers yes without reading the archive, for as
    long as it keeps the row.
    """
    scope = subjects.execution(subjects.ANY, execution_id)
    if not await stored.may_be_archived(scope):
        return False
    return await history.execution(execution_id) is not None or bool(await archived(stored, scope))


async def is_newest(log: EventLog, match: ExecutionMatch) -> bool:
    """Return whether the log holds no newer fact of the execution.

    Check this before refusing a request, so that the refusal does not rest on a stale read.
    """
    return await log.tail(subjects.execution(match.job, match.execution_id)) == match.facts[-1].sequence


async def _read(
    log: EventLog, stored: StoredLog | None, execution_id: str, job: str | None
) -> Sequence[Recorded[Message]]:
    scope = subjects.execution(job or subjects.ANY, execution_id)
    facts = await log.load(scope)
    if not facts and await log.tail(scope):
        facts = await log.load(scope)  # the first answer came from a lagging replica
    if not facts and stored is not None:
        facts = await archived(stored, scope)
    facts = of_one_job(facts, execution_id)
    return facts if subjects.has_events(facts) else []


def of_one_job(facts: Sequence[Recorded[Message]], given: str) -> list[Recorded[Message]]:
    """Return the facts of the job that has an id first.

    A client may bring an id that a job of others gets later. Their facts must not meet, because the caller may see one job and not the other.
    """
    if not facts:
        return []
    scope = facts[0].subject.partition(f".{given}")[0]
    return [fact for fact in facts if fact.subject.partition(f".{given}")[0] == scope]
