"""Find and read dead letters and the status of their replays."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

from ... import subjects
from ...domain import dead_letter, execution
from ...domain.dead_letter import DeadLetter
from ...domain.events import Message, PoisonMessage, Recorded
from ...domain.execution import Status
from ...ports import DeadLetterRow, EventLog
from ...ports.queries import DeadLetterQuery, Page
from .errors import Ambiguous, NotAnId, NotFound, SharedId
from .lookup import FULL_ID_LENGTH, MAX_SUGGESTIONS, MIN_ID_LENGTH

ListDeadLetters: TypeAlias = Callable[[DeadLetterQuery], Awaitable[Page[DeadLetterRow]]]
ReadLetter: TypeAlias = "Callable[[str, str | None], Awaitable[Letter | None]]"
"""Read a dead letter by its complete id, and by its job if that is known."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter folded from its facts. `replays`: the status of each replay's execution."""

    job: str
    id: str
    state: DeadLetter
    facts: tuple[Recorded[Message], ...]
    replays: tuple[Status, ...] = ()

    @property
    def sequence(self) -> int:
        """Sequence of the newest fact, or foreign message."""
        return self.facts[-1].sequence

    def document(self, name_of: Callable[[Status], str] = attrgetter("value")) -> dict[str, Any]:
        """Return the state for JSON; `name_of` returns the name of the status of a replay."""
        resolved = self.state.resolved
        return {
            "id": self.id,
            "job": self.job,
            "resolved": resolved is not None,
            "resolution": None if resolved is None else {"time": resolved.time, **resolved.message.document()},
            "letter": self.state.fact.document(exclude_none=True),
            "replays": [
                {
                    "number": replay.fact.number,
                    "time": replay.at,
                    "execution_id": replay.execution_id,
                    "status": name_of(status),
                    "input": replay.fact.input,
                    "by": replay.fact.by,
                    "reason": replay.fact.reason,
                }
                for replay, status in zip(self.state.replays, self.replays, strict=True)
            ],
        }


async def find(
    log: EventLog, given: str, *, job: str | None = None, list_dead_letters: ListDeadLetters | None = None
) -> Letter:
    """Return a dead letter and the status of its replays.

    Arguments: see `lookup.find`.

    Raises:
        NotAnId: `given` cannot be the id of a dead letter.
        NotFound: no dead letter matches.
        Ambiguous: several dead letters match, or several jobs have one with this id.
    """
    letter = await match_dead_letter(given, partial(read_letter, log), job=job, list_dead_letters=list_dead_letters)
    replays = [await replay_status(log, letter, n) for n in range(len(letter.state.replays))]
    return replace(letter, replays=tuple(replays))


async def match_dead_letter(
    given: str, read: ReadLetter, *, job: str | None = None, list_dead_letters: ListDeadLetters | None = None
) -> Letter:
    """Return a dead letter as `find` does, without its replays."""
    if not given or not all(c.isalnum() or c in "-_" for c in given):
        raise NotAnId(
            f"{given!r} is not the id of a dead letter. An id has only letters, digits, hyphens and underscores."
        )
    if letter := await read(given, job):
        return letter
    if list_dead_letters is not None and MIN_ID_LENGTH <= len(given) < FULL_ID_LENGTH:
        rows = (await list_dead_letters(DeadLetterQuery(id_prefix=given, job=job, limit=MAX_SUGGESTIONS))).rows
        if len({row.id for row in rows}) > 1:
            raise Ambiguous(given, "dead letters", tuple(row.id for row in rows))
        if rows and (letter := await read(rows[0].id, job if len(rows) > 1 else rows[0].job_name)):
            return letter
    shortened = list_dead_letters is not None and len(given) < FULL_ID_LENGTH
    raise NotFound(f"no dead letter has the id {given!r}" + (", or an id that begins with it" if shortened else ""))


async def read_letter(
    log: EventLog,
    id: str,  # noqa: A002 - the field is called so
    job: str | None,
) -> Letter | None:
    """Return a dead letter without its replays; None if none has this id.

    `id` is complete. Other arguments: see `lookup.find`.

    Raises:
        SharedId: dead letters of several jobs have the id, and the job is not known.
    """
    scope = subjects.dead_letter(job or subjects.ANY, id)
    facts = await log.load(scope)
    jobs = sorted({subjects.job_of(fact.subject) for fact in facts})
    if len(jobs) > 1:
        raise SharedId(id, tuple(jobs))
    state = dead_letter.fold(facts)
    return Letter(state.fact.job, state.fact.id, state, tuple(facts)) if state.kept else None


async def replay_status(log: EventLog, letter: Letter, index: int) -> Status:
    """Return the status of a replay, whether or not it made an execution."""
    replay = letter.state.replays[index]
    scope = subjects.execution(letter.job, replay.execution_id)
    if facts := await log.load(scope):
        return execution.fold(facts).status
    refused = PoisonMessage.id_of(subjects.REPLAYS, subjects.partition(scope), replay.sequence)
    if await read_letter(log, refused, letter.job) is not None:
        return Status.FAILED
    resolved = letter.state.resolved
    return Status.COMPLETED if resolved and resolved.sequence > replay.sequence else Status.UNKNOWN
