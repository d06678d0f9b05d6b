"""From what somebody types to the execution that is meant.

An id is unique among all jobs but does not tell its job. The log knows, by a filter that spans all jobs; only the beginning
of an id needs the history, since subjects cannot be asked for by the beginning of a token.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from ... import subjects
from ...archive.stream_reader import archived
from ...domain.events import Message, Recorded
from ...ports import EventLog, History, StoredLog
from ...ports.queries import ExecutionQuery
from .errors import Ambiguous, NotAnId, NotFound

LEAST: Final = 4
"""Characters of an id below which nobody can mean one."""
COMPLETE: Final = 36
"""Characters of a whole id."""
SHOWN: Final = 5
"""Ids that an ambiguity names."""

OpenHistory = Callable[[], AbstractAsyncContextManager[History]]


@dataclass(frozen=True, slots=True)
class ExecutionMatch:
    """One execution, with the newest fact of each of its subjects, oldest first."""

    job: str
    execution_id: str
    facts: tuple[Recorded[Message], ...]


async def find(
    log: EventLog,
    given: str,
    *,
    job: str | None = None,
    history: OpenHistory | None = None,
    stored: StoredLog | None = None,
) -> ExecutionMatch:
    """The execution whose id is `given`, or begins with it where a history can be asked.

    Args:
        log: where its facts are.
        given: an id, or its first characters.
        job: whose it is, if that is known.
        history: opens the history, which is done only for the beginning of an id.
        stored: what was ever stored; asked where the log holds nothing any more.

    Raises:
        NotAnId: no id looks like this.
        NotFound: there is none.
        Ambiguous: there are several.
    """
    if not given or not all(c.isalnum() or c == "-" for c in given):
        raise NotAnId(f"{given!r} is no execution's id: letters, digits and hyphens")
    if facts := await _read(log, given, job, stored):
        return ExecutionMatch(subjects.job_of(facts[0].subject), given, facts)
    if history is not None and LEAST <= len(given) < COMPLETE:
        async with history() as rows:
            meant = (await rows.executions(ExecutionQuery(id_prefix=given, job=job, limit=SHOWN))).rows
        if len(meant) > 1:
            raise Ambiguous(given, "executions", tuple(row.execution_id for row in meant))
        if meant:
            return await find(log, meant[0].execution_id, job=meant[0].job_name, stored=stored)
    if history is not None and len(given) < LEAST:
        raise NotAnId(f"{given!r} is too short to mean one execution: {LEAST} characters of its id at least")
    of = f"execution of {job!r}" if job else "execution"
    raise NotFound(f"no {of} has the id {given!r}" + ("" if len(given) >= COMPLETE else ", or one that begins so"))


async def was_archived(execution_id: str, history: History, stored: StoredLog) -> bool:
    """Whether an execution, whose job nobody knows, has left the log.

    That it has not is mostly said by the archive's manifests alone, and that it has by the history, as long as that goes back.
    """
    scope = subjects.execution(subjects.ANY, execution_id)
    if not await stored.may_be_archived(scope):
        return False
    return await history.execution(execution_id) is not None or bool(await archived(stored, scope))


async def is_newest(log: EventLog, found: ExecutionMatch) -> bool:
    """Whether nothing was stored behind what was found; who is to be refused by it is not to be refused by what is old."""
    return await log.tail(subjects.execution(found.job, found.execution_id)) == found.facts[-1].sequence


async def _read(
    log: EventLog, execution_id: str, job: str | None, stored: StoredLog | None
) -> tuple[Recorded[Message], ...]:
    scope = subjects.execution(job or subjects.ANY, execution_id)
    facts = await log.load(scope)
    if not facts and await log.tail(scope):
        facts = await log.load(scope)  # a replica that lags answered first
    if not facts and stored is not None:
        facts = await archived(stored, scope)
    return tuple(facts)
