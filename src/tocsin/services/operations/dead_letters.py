"""Dead letters: looking at one, replaying it, settling it (hip-62, Dead Letter Handling).

A replay is a fact, `replayed.<n>`, in the dead letter's own guarded scope, and the planner makes its one execution. It uses
the definition in force now, with what the failed execution was given beyond the definition of its time, under the failed
execution's scheduled time. While a replay is open, another one is refused unless it is asked for (`again`). What a replay
completes is resolved, together with what that was a replay of; so one piece of work leaves nothing open behind it.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from ... import subjects
from ...archive.stream_reader import archived, wherever
from ...domain import dead_letter, execution, execution_plan
from ...domain.dead_letter import DeadLetter
from ...domain.definition import DefinitionError, check_input
from ...domain.events import Actor, DeadLettered, Input, Message, PoisonMessage, Recorded, Trigger
from ...domain.execution import Status
from ...domain.ledger import JobNotFound, Ledger
from ...engine.ledger_reader import LedgerReader
from ...engine.poison_messages import NotRerunnable, message_of
from ...engine.unregistered_jobs import registered_nowhere
from ...ports import Clock, EventLog, History, OutdatedState, SequenceConflict, StaleRead, StoredLog
from ...ports.queries import DeadLetterQuery, every
from ...subjects import Stream
from ..jobs import read_back
from .errors import Ambiguous, NotAnId, NotFound, OperationError
from .lookup import COMPLETE, LEAST, SHOWN, OpenHistory

TRIES: Final = 5
"""How often it is decided anew when somebody else changed the dead letter in between."""
UNHURRIED: Final = 10.0
"""Replays a second, unless another rate is asked for."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as its facts tell it; `replays`: what has become of each of its replays.

    `is_archived`: it was resolved, and the log holds it no more, so that nothing is appended to it.
    """

    job: str
    id: str
    state: DeadLetter
    facts: tuple[Recorded[Message], ...]
    is_archived: bool = False
    replays: tuple[Status, ...] = ()

    @property
    def sequence(self) -> int:
        """Of its newest fact."""
        return self.facts[-1].sequence


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay that was asked for. `execution_id` is None for a message that is only handed in again."""

    job: str
    id: str
    number: int
    execution_id: str | None


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of a request to settle a dead letter; `changed`: this very request did."""

    job: str
    id: str
    changed: bool


async def find(
    log: EventLog,
    given: str,
    *,
    job: str | None = None,
    history: OpenHistory | None = None,
    stored: StoredLog | None = None,
) -> Letter:
    """The dead letter whose id is `given`, or begins with it where a history can be asked, and its replays.

    What the log holds no more is found in what was ever stored (`stored`).

    Raises:
        NotAnId: no id looks like this.
        NotFound: there is none.
        Ambiguous: there are several.
    """
    letter = await _find(log, given, job, history, stored)
    replays = [await _status(log, letter, n, stored) for n in range(len(letter.state.replays))]
    return replace(letter, replays=tuple(replays))


async def replay(  # noqa: PLR0913 - each is said once, by its name
    log: EventLog,
    given: str,
    *,
    input: Input | None = None,  # noqa: A002 - the field is called so
    by: Actor | None = None,
    reason: str | None = None,
    again: bool = False,
    request: str | None = None,
    history: OpenHistory | None = None,
    stored: StoredLog | None = None,
) -> Replay:
    """Have done what failed, once more.

    Args:
        log: where its facts are.
        given: the dead letter's id, or where a history can be asked the beginning of it.
        input: keys that go over the input that there was.
        by: who asks.
        reason: why.
        again: even while a replay of it is open, and even though it is resolved.
        request: what the caller calls this very request: asked again, it is answered again and not done again.
        history: opens the history.
        stored: what was ever stored.

    Raises:
        NotFound: there is no such dead letter.
        OperationError: it cannot be replayed, or needs `again`.
        DefinitionError: the job does not take that input.
    """
    letter = await _find(log, given, None, history, stored)
    if letter.is_archived:
        raise OperationError(
            f"dead letter {letter.id} is resolved ({_how(letter)}) and was archived: nothing replays it any more"
        )
    ledger = await _check(log, letter, input)
    for _ in range(TRIES):
        if not again and dead_letter.find_replay(letter.state, request) is None:
            await _check_idle(log, letter, stored)
        facts = dead_letter.request_replay(
            letter.state, request=request, input=input, by=by, reason=reason, ledger=ledger
        )
        try:
            for fact in facts:
                sequence = await log.append(fact, expect=letter.sequence)
                letter = _with(letter, await read_back(log, Stream.LOG, sequence))
        except OutdatedState:
            letter = await _read(log, letter.job, letter.id) or letter
            continue
        made = dead_letter.find_replay(letter.state, request) or letter.state.replays[-1]
        is_run = isinstance(_asked(letter), DeadLettered | Trigger)
        return Replay(letter.job, letter.id, made.fact.number, made.execution_id if is_run else None)
    raise SequenceConflict(f"dead letter {letter.id} was changed by others {TRIES} times meanwhile: try again")


async def replay_all(
    log: EventLog,
    history: History,
    query: DeadLetterQuery,
    clock: Clock,
    *,
    rate: float = UNHURRIED,
    by: Actor | None = None,
    reason: str | None = None,
    stored: StoredLog | None = None,
) -> AsyncIterator[Replay | OperationError]:
    """Replay every unresolved dead letter that a query asks for, the oldest first, `rate` a second at most.

    One that cannot be replayed, or is being replayed, is told by its refusal and passed over: what is interrupted can be
    begun again.
    """
    begin, done = clock.monotonic(), 0
    async for row in every(history.dead_letters, replace(query, unresolved=True, sort="oldest", cursor=None)):
        if (early := begin + done / rate - clock.monotonic()) > 0:
            await clock.sleep(early)
        try:
            yield await replay(log, row.id, by=by, reason=reason, stored=stored)
            done += 1
        except OperationError as error:
            yield error
        except DefinitionError as error:
            yield OperationError(f"dead letter {row.id}: {error}")


async def resolve(
    log: EventLog,
    given: str,
    *,
    by: Actor | None = None,
    reason: str | None = None,
    history: OpenHistory | None = None,
    stored: StoredLog | None = None,
) -> Resolution:
    """Acknowledge a dead letter: nothing is left to be done about it. Nothing happens where it is resolved already.

    Raises:
        NotFound: there is no such dead letter.
    """
    letter = await _find(log, given, None, history, stored)
    for _ in range(TRIES):
        facts = dead_letter.resolve(letter.state, by=by, reason=reason)
        try:
            for fact in facts:
                await log.append(fact, expect=letter.sequence)
        except OutdatedState:
            letter = await _read(log, letter.job, letter.id) or letter
            continue
        return Resolution(letter.job, letter.id, bool(facts))
    raise SequenceConflict(f"dead letter {letter.id} was changed by others {TRIES} times meanwhile: try again")


# --- what holds a replay back ----------------------------------------------------------------------------------------


async def _check(log: EventLog, letter: Letter, over: Input | None) -> int | None:
    """Refuse what the planner would refuse: whoever asks is told at once.

    Returns the sequence of the job's ledger that this was decided on, and the planner decides on; None: it needs no ledger.
    """
    ledgers, job = LedgerReader(log), letter.job
    asked = _asked(letter)
    if not isinstance(asked, DeadLettered | Trigger):
        if over:
            raise OperationError(
                f"dead letter {letter.id} is a {getattr(asked, 'type', 'message')}: it takes no other input"
            )
        return None
    if isinstance(asked, DeadLettered) and await registered_nowhere(log, asked) is not None:
        return None
    state, sequence = await _newest(log, ledgers, job)
    if state.definition is None:
        raise OperationError(
            f"dead letter {letter.id}: {JobNotFound(job)}; a replay needs its definition, so apply it first"
        )
    before = asked.definition if isinstance(asked, DeadLettered) else 0
    replayed = dead_letter.request_replay(letter.state, input=over)[0]
    given = execution_plan.replay_input(asked, replayed, await ledgers.definition(before) if before else None)
    check_input(state.definition, execution_plan.input_of(given, state.definition), given.args)
    return sequence


async def _newest(log: EventLog, ledgers: LedgerReader, job: str) -> tuple[Ledger, int]:
    """A job's ledger, with all that was stored in it before this call."""
    upto = await log.tail(subjects.ledger(job))
    for _ in range(TRIES):
        state, sequence = await ledgers.load(job)
        if sequence >= upto:
            return state, sequence
    raise StaleRead(f"{job}: a replica that lags was read")


def _asked(letter: Letter) -> Message:
    """What is to be done again: an execution, or an input."""
    fact = letter.state.fact
    if isinstance(fact, DeadLettered):
        return fact
    try:
        return message_of(fact)
    except NotRerunnable as error:
        raise OperationError(f"dead letter {letter.id} cannot be replayed: {error}") from None


async def _check_idle(log: EventLog, letter: Letter, stored: StoredLog | None) -> None:
    if letter.state.replays:
        newest = letter.state.replays[-1]
        if await _status(log, letter, len(letter.state.replays) - 1, stored) not in execution.TERMINAL_STATUSES:
            named = f"replay {newest.fact.number} of dead letter {letter.id}, execution {newest.execution_id}"
            raise OperationError(f"{named}, is still open: --again replays it all the same")
    if letter.state.resolved is not None:
        raise OperationError(f"dead letter {letter.id} is resolved ({_how(letter)}): --again replays it all the same")


def _how(letter: Letter) -> str:
    """What resolved it."""
    resolved = letter.state.resolved
    by, reason = (resolved.message.execution_id, resolved.message.reason) if resolved else (None, None)
    return f"by execution {by}" if by else reason or "without a reason"


async def _status(log: EventLog, letter: Letter, index: int, stored: StoredLog | None) -> Status:
    """Where a replay's execution is. One that was never to be, or was only handed in, is told as if it were one."""
    made = letter.state.replays[index]
    scope = subjects.execution(letter.job, made.execution_id)
    if facts := await wherever(log, stored, scope):
        return execution.fold(facts).status
    refused = PoisonMessage.id_of(subjects.REPLAYS, made.sequence)
    if await _read(log, letter.job, refused, stored) is not None:
        return Status.FAILED
    resolved = letter.state.resolved
    return Status.COMPLETED if resolved and resolved.sequence > made.sequence else Status.UNKNOWN


# --- reading ---------------------------------------------------------------------------------------------------------


async def _find(
    log: EventLog, given: str, job: str | None, history: OpenHistory | None, stored: StoredLog | None
) -> Letter:
    if not given or not all(c.isalnum() or c in "-_" for c in given):
        raise NotAnId(f"{given!r} is no dead letter's id: letters, digits and hyphens")
    if letter := await _read(log, job or subjects.ANY, given, stored):
        return letter
    if history is not None and LEAST <= len(given) < COMPLETE:
        async with history() as rows:
            meant = (await rows.dead_letters(DeadLetterQuery(id_prefix=given, job=job, limit=SHOWN))).rows
        if len(meant) > 1:
            raise Ambiguous(given, "dead letters", tuple(row.id for row in meant))
        if meant and (letter := await _read(log, meant[0].job_name, meant[0].id, stored)):
            return letter
    raise NotFound(
        f"no dead letter has the id {given!r}" + ("" if len(given) >= COMPLETE else ", or one that begins so")
    )


async def _read(
    log: EventLog,
    job: str,
    id: str,  # noqa: A002 - the field is called so
    stored: StoredLog | None = None,
) -> Letter | None:
    scope = subjects.dead_letter(job, id)
    for _ in range(TRIES):
        facts = await log.load(scope)
        if (facts[-1].sequence if facts else 0) == await log.tail(scope):
            break  # else a replica that lags answered
    else:
        raise StaleRead(f"dead letter {id}: a replica that lags was read")
    if is_archived := not facts and stored is not None:
        facts = await archived(stored, scope)
    state = dead_letter.fold(facts)
    return Letter(state.fact.job, state.fact.id, state, tuple(facts), is_archived) if state.kept else None


def _with(letter: Letter, stored: Recorded[Message]) -> Letter:
    return replace(letter, state=dead_letter.evolve(letter.state, stored), facts=(*letter.facts, stored))
