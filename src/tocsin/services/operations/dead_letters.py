"""Find, replay and resolve dead letters (hip-62, Dead Letter Handling).

A replay is an event, `replayed.<n>`, in the dead letter's own guarded scope, and the planner makes its one execution. The
replay uses the definition in force now, the failed execution's scheduled time, and the input that the failed execution got
beyond the definition of its time. While a replay is open, a second replay needs `again`. A completed replay resolves its dead
letter, and the dead letter that the failed execution was a replay of. A replay of the failed steps only adopts the results of
steps that completed, if their function, input and dependencies are still the same.

A refused input is published again, and then its replay and its end are stored together: if the caller dies between, the dead letter
stays open. A second copy changes nothing, because the stage that takes the input decides on its own state.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from secrets import token_hex
from typing import Any, Final, TypeAlias

from ... import subjects
from ...domain import dead_letter, execution, execution_plan
from ...domain.dead_letter import DeadLetter
from ...domain.definition import DefinitionError, check_input, check_replay_input
from ...domain.events import Actor, DeadLettered, Defined, Input, Message, Plan, PoisonMessage, Recorded, Trigger
from ...domain.execution import Status
from ...domain.ledger import JobNotFound
from ...engine.ledger_reader import LedgerReader
from ...engine.rerun import NotRerunnable, message_of, rerun_subject, unregistered_request
from ...ports import Append, Clock, DeadLetterRow, EventLog, OutdatedState, SequenceConflict
from ...ports.queries import DeadLetterQuery, Page
from .errors import Ambiguous, NotAnId, NotFound, OperationError, SharedId
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


MAX_TRIES: Final = 5
"""Tries to append while other writers change the dead letter."""
DEFAULT_RATE: Final = 10.0
"""Replays per second, unless the caller sets another rate."""
_CONFLICT: Final = "cannot change dead letter {}: another writer changed it on each of {} tries. Try again."


@dataclass(frozen=True, slots=True)
class Replay:
    """A requested replay. `execution_id` is None for a poison message, which is only published again."""

    job: str
    id: str
    number: int
    execution_id: str | None


@dataclass(frozen=True, slots=True)
class Resolution:
    """Result of a request to resolve a dead letter. `changed`: this request resolved it."""

    job: str
    id: str
    changed: bool


async def replay(  # noqa: PLR0913 - all but two are keywords
    log: EventLog,
    given: str,
    *,
    job: str | None = None,
    input: Input | None = None,  # noqa: A002 - the field is called so
    by: Actor | None = None,
    reason: str | None = None,
    again: bool = False,
    failed_only: bool = False,
    request: str | None = None,
    list_dead_letters: ListDeadLetters | None = None,
) -> Replay:
    """Run failed work again.

    `input`: keys that override those of the failed execution's input. `by` and `reason` are recorded. `again`: replay even if a replay is
    open or the dead letter is resolved. `failed_only`: adopt the steps that completed, and run the rest. `request`: idempotency key, of which
    a repetition returns the first replay and makes none. Other arguments and errors: see `find`.

    Raises:
        OperationError: it cannot be replayed, or needs `again`.
        DefinitionError: the job does not accept the input.
    """
    letter = await match_dead_letter(given, partial(read_letter, log), job=job, list_dead_letters=list_dead_letters)
    ledger = await _check(log, letter, input, failed_only=failed_only)
    for _ in range(MAX_TRIES):
        known = dead_letter.find_replay(letter.state, request)
        if not again and known is None:
            await _check_idle(log, letter)
        cause, fact, ends = _failed_input(letter), letter.state.fact, list[Message]()
        facts = dead_letter.request_replay(
            letter.state,
            request=request,
            input=input,
            by=by,
            reason=reason,
            ledger=ledger,
            failed_only=failed_only,
            now=await log.now(),
        )
        if facts and isinstance(fact, PoisonMessage) and not isinstance(cause, Trigger):
            await log.publish(rerun_subject(fact), cause, message_id=token_hex(16))
            ends += dead_letter.resolve(letter.state, by=by, reason="handed in again")
        if not await _is_appended(log, letter, [*facts, *ends]):
            letter = await read_letter(log, letter.id, letter.job) or letter
            continue
        number, execution_id = (
            (known.fact.number, known.execution_id) if known else (facts[0].number, facts[0].execution_id)
        )
        is_run = isinstance(cause, DeadLettered | Trigger)
        return Replay(letter.job, letter.id, number, execution_id if is_run else None)
    raise SequenceConflict(_CONFLICT.format(letter.id, MAX_TRIES))


async def replay_all(
    replay_one: Callable[[str, str], Awaitable[Replay]],
    letters: Iterable[DeadLetterRow],
    clock: Clock,
    *,
    rate: float = DEFAULT_RATE,
) -> AsyncIterator[Replay | OperationError]:
    """Replay dead letters, each once.

    A dead letter that cannot be replayed, or has an open replay, is skipped: its error is yielded. So an interrupted run can
    be started again. `replay_one` takes the id of a dead letter and its job. `rate`: replays per second.
    """
    begin, done = clock.monotonic(), 0
    for row in letters:
        if (early := begin + done / rate - clock.monotonic()) > 0:
            await clock.sleep(early)
        try:
            yield await replay_one(row.id, row.job_name)
            done += 1
        except OperationError as error:
            yield error
        except DefinitionError as error:
            yield OperationError(f"cannot replay dead letter {row.id}: {error}")


async def resolve(
    log: EventLog,
    given: str,
    *,
    job: str | None = None,
    by: Actor | None = None,
    reason: str | None = None,
    list_dead_letters: ListDeadLetters | None = None,
) -> Resolution:
    """Mark a dead letter as resolved, unless it is. Arguments and errors: see `replay`."""
    letter = await match_dead_letter(given, partial(read_letter, log), job=job, list_dead_letters=list_dead_letters)
    for _ in range(MAX_TRIES):
        facts = dead_letter.resolve(letter.state, by=by, reason=reason)
        if not await _is_appended(log, letter, facts):
            letter = await read_letter(log, letter.id, letter.job) or letter
            continue
        return Resolution(letter.job, letter.id, bool(facts))
    raise SequenceConflict(_CONFLICT.format(letter.id, MAX_TRIES))


async def _is_appended(log: EventLog, letter: Letter, facts: Sequence[Message]) -> bool:
    """Append events; False: another writer changed the dead letter."""
    for written in await log.write([Append(tuple(facts), letter.sequence)] if facts else []):
        if written.error is not None and not isinstance(written.error, OutdatedState):
            raise written.error
        if written.error is not None:
            return False
    return True


async def _check(log: EventLog, letter: Letter, over: Input | None, *, failed_only: bool) -> int | None:
    """Refuse at once a replay that the planner would refuse later.

    Returns:
        The sequence of the job's ledger that this and the planner decide on; None if the replay needs no ledger.
    """
    job = letter.job
    cause = _failed_input(letter)
    if failed_only:
        _check_failed_only(letter, cause, over)
    if not isinstance(cause, DeadLettered | Trigger):
        if over:
            raise OperationError(
                f"cannot replay dead letter {letter.id} with an input: it is a {getattr(cause, 'type', 'message')}. Leave the input out.",
                code="input-not-accepted",
            )
        return None
    if isinstance(cause, DeadLettered) and (original := await unregistered_request(log, cause)) is not None:
        if over:
            check_replay_input(job, {**original.plan.input, **over}, over)
        if failed_only:
            await _check_remains(log, letter, original.plan)
        return None
    state, sequence = await LedgerReader(log).load(job)
    if state.definition is None:
        raise OperationError(
            f"cannot replay dead letter {letter.id}: {JobNotFound(job)}. Apply the job's definition first.",
            code="job-not-registered",
        )
    before = cause.definition if isinstance(cause, DeadLettered) else 0
    replayed = dead_letter.request_replay(letter.state, input=over, failed_only=failed_only)[0]
    defined = await log.get(subjects.ledger(job), before) if before else None
    old = defined.message.definition if defined is not None and isinstance(defined.message, Defined) else None
    input_ = execution_plan.replay_input(cause, replayed, old)
    written = (over or {}) if isinstance(cause, DeadLettered) else None  # the rest was checked when it was requested
    check_input(state.definition, input_.input or {}, input_.args, written=written)
    if failed_only and isinstance(cause, DeadLettered):
        request = Recorded(replayed, "", 0, cause.last_attempt)
        first = execution_plan.from_replay(request, cause, state.definition, sequence, before=old)
        await _check_remains(log, letter, first.plan)
    return sequence


def _check_failed_only(letter: Letter, cause: Message, over: Input | None) -> None:
    """Refuse to run only the failed steps where no results can be adopted."""
    if not isinstance(cause, DeadLettered):
        raise OperationError(
            f"cannot replay only the failed steps of dead letter {letter.id}: it is a message and has no steps. "
            "Leave `failed_only` out.",
            code="no-steps",
        )
    if over:
        raise OperationError(
            f"cannot replay only the failed steps of dead letter {letter.id} with another input: the results of the other "
            "steps come from the original input. Leave the input or `failed_only` out.",
            code="input-not-accepted",
        )


async def _check_remains(log: EventLog, letter: Letter, plan: Plan) -> None:
    """Refuse a replay whose results are gone, or that has nothing to run."""
    facts = await log.load(subjects.execution(letter.job, letter.id))
    if not facts:
        raise OperationError(
            f"cannot replay only the failed steps of dead letter {letter.id}: the results of its execution were archived. "
            "Leave `failed_only` out to run all steps.",
            code="dead-letter-archived",
        )
    if len(execution.adoptable_steps(execution.fold(facts), plan)) == len(plan.steps):
        raise OperationError(
            f"cannot replay only the failed steps of dead letter {letter.id}: the execution completed every step of the job's "
            "current definition. Leave `failed_only` out to run all steps.",
            code="nothing-to-replay",
        )


def _failed_input(letter: Letter) -> Message:
    """Return the failed execution or the poison message that a replay runs again."""
    fact = letter.state.fact
    if isinstance(fact, DeadLettered):
        return fact
    try:
        return message_of(fact)
    except NotRerunnable as error:
        raise OperationError(f"cannot replay dead letter {letter.id}: {error}", code="not-replayable") from None


async def _check_idle(log: EventLog, letter: Letter) -> None:
    if letter.state.replays:
        newest = letter.state.replays[-1]
        if await replay_status(log, letter, len(letter.state.replays) - 1) not in execution.TERMINAL_STATUSES:
            raise OperationError(
                f"cannot replay dead letter {letter.id}: replay {newest.fact.number}, execution {newest.execution_id}, "
                "is still open. Use --again (`again: true`) to replay it anyway.",
                code="replay-open",
            )
    if letter.state.resolved is not None:
        raise OperationError(
            f"cannot replay dead letter {letter.id}: it is resolved ({_resolution(letter)}). Use --again (`again: true`) to replay it anyway.",
            code="dead-letter-resolved",
        )


def _resolution(letter: Letter) -> str:
    resolved = letter.state.resolved
    by, reason = (resolved.message.execution_id, resolved.message.reason) if resolved else (None, None)
    return f"by execution {by}" if by else reason or "without a reason"
