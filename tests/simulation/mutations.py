"""Bugs that one could write, each of which some schedule must catch: what proves that the simulation proves anything.

A mutation replaces a few words in the source of a function, which must be found in it exactly once, and gives the function
the code of what results, for as long as it is wanted. Where the product changes so that the words are gone, the mutation
says so and has to be rewritten: a table whose bugs can no longer be made would prove nothing.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import CodeType, FunctionType
from typing import Any, Final, cast

from tocsin import ledgers
from tocsin.domain import dead_letter, execution, ids, ledger, lock, retry
from tocsin.operations import leasing
from tocsin.outcomes import Outcomes
from tocsin.stages import announcements, dead_letter_sink, lock_keeper, locks, registrar, replays, retrier, ticker
from tocsin.stages.beginnings import Beginnings
from tocsin.stages.credible_time import CredibleTime
from tocsin.stages.entities import Entities
from tocsin.stages.leadership import Leadership
from tocsin.stages.planner import Planner
from tocsin.stages.recorder import Recorder
from tocsin.worker import claiming

from .simulation import play


@dataclass(frozen=True, slots=True)
class Edit:
    """Other words in the source of a function. `names`: what the new ones need besides what its module has."""

    function: Callable[..., Any]
    old: str
    new: str
    names: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A bug, in a few words."""

    name: str
    edits: tuple[Edit, ...]


def _bug(name: str, function: Callable[..., Any], old: str, new: str, **names: object) -> Mutation:
    return Mutation(name, (Edit(function, old, new, names),))


MUTATIONS: Final[tuple[Mutation, ...]] = (
    # --- the log and its guards --------------------------------------------------------------------------------------
    _bug(
        "append behind whatever is last",
        Entities.append,
        "expect=sequence",
        "expect=await self._log.tail(scope)",
    ),
    _bug(
        "acknowledge before the facts are stored",
        Outcomes._one,
        "await self._handle(subscription, delivery)",
        "await delivery.ack(); delivery._is_answered = False; await self._handle(subscription, delivery)",
    ),
    _bug(
        "believe a replica that there is nothing to do",
        Entities.is_newest,
        "await self._log.tail(scope) == sequence",
        "True",
    ),
    # --- time --------------------------------------------------------------------------------------------------------
    _bug(
        "forget the watermark when the clock is behind it",
        ledger._undecided,
        "if state.watermark else regime.since",
        "if state.watermark and state.watermark <= now else regime.since",
    ),
    _bug(
        "fire what was named while the job was paused",
        ledger._refusal,
        "regime.paused or",
        "state.is_paused or",
    ),
    _bug(
        "fire the past of an edit",
        ledger._undecided,
        "start = max(state.watermark, regime.since) if state.watermark else regime.since",
        "start = state.watermark or regime.since",
    ),
    _bug(
        "decide by the newest definition alone",
        ledger._undecided,
        "zip(state.regimes, ends, strict=True)",
        "((state.regimes[-1], now),)",
    ),
    _bug("believe any clock", CredibleTime.is_credible, "if ahead > AHEAD:", "if False:"),
    Mutation(
        "lead for ever, and append behind whatever is last",
        (
            Edit(
                cast("property", Leadership.is_leading).fget or print, "self._clock.monotonic() < self._until", "True"
            ),
            Edit(
                ticker.Ticker._append,
                "expect=sequence",
                "expect=await self._log.tail(ledgers.subjects.ledger(job))",
                {"ledgers": ledgers},
            ),
        ),
    ),
    _bug(
        "look no more at what was named before a definition was replaced",
        ledger.next_instant,
        "current.since > after",
        "False",
    ),
    # --- identity ----------------------------------------------------------------------------------------------------
    _bug(
        "make an id of the moment",
        ids.occurrence_id,
        '"occurrence", job,',
        '"occurrence", job, str(next(moments)),',
        moments=count(),
    ),
    _bug(
        "make one id of two triggers",
        ids.trigger_id,
        '_uuid7(at, "trigger", job, message_id, shard)',
        '_uuid7(at.replace(second=0, microsecond=0), "trigger", job)',
    ),
    _bug(
        "decide a trigger by what holds when it is handled",
        Planner.on_trigger,
        "at=recorded.sequence",
        "at=None",
    ),
    # --- what the public is told -------------------------------------------------------------------------------------
    _bug("announce without a look", announcements.Announcements._once, "sequence > after", "False"),
    _bug(
        "announce nothing where it was planned before",
        Beginnings.plan,
        "decided, sequence = before[0].message, before[0].sequence",
        "return",
    ),
    _bug(
        "announce nobody who is over",
        lock_keeper.LockKeeper.on_end,
        "await self._locks.see_through(end, held)",
        "pass",
    ),
    # --- locks -------------------------------------------------------------------------------------------------------
    _bug(
        "expire a lock without proof",
        locks.Locks.is_over,
        "return state.is_over or state.status is Status.UNKNOWN",
        "return True",
    ),
    _bug(
        "release the lock when a step ends",
        locks.Locks.is_over,
        "return state.is_over or",
        'return state.is_over or any(s.phase == "completed" for s in state.steps.values()) or',
    ),
    _bug("let in the newest instead of the earliest", lock.queue, "key=_order", "key=_order, reverse=True"),
    _bug("guess the fencing token", locks.Locks.admit, "fence=held.fence", "fence=held.fence + 1"),
    _bug(
        "queue, and look no more whether the holder is over",
        locks.Locks.ask,
        "await self._queue(wanted.job, me, known=(state, sequence))",
        "await self._queue(wanted.job, me, known=(state, sequence)); return (await self._locks.load(scope))[0]",
    ),
    _bug(
        # The next look lets it run all the same; but what the public is shown of its lock would end too early.
        "believe a replica that who has the lock was never planned",
        locks.Locks._planned,
        "known[0].status is Status.UNKNOWN and not await self._executions.is_newest(scope, known[1]):\n        known",
        "False:\n        known",
    ),
    _bug(
        "hand the lock on for no end by cancellation",
        lock_keeper.LockKeeper.on_end,
        "not isinstance(end, Terminal) or (end.fence is None and not _may_hold(end))",
        "not isinstance(end, Terminal) or isinstance(end, Cancelled)",
    ),
    # --- executions --------------------------------------------------------------------------------------------------
    _bug("dispatch again what was dispatched", execution._is_ready, "steps[step.name].phase is Phase.WAITING and", ""),
    _bug(
        "dispatch a step with one dependency missing",
        execution._is_ready,
        "for d in step.depends_on)",
        "for d in step.depends_on[1:])",
    ),
    _bug(
        "let the timer be the decision",
        execution.dispatch_again,
        "step.phase is not Phase.RETRYING or timer.attempt != step.attempt + 1",
        "timer.attempt < step.attempt",
    ),
    _bug("let two claim one delivery", execution.claim, "delivery <= current.delivery", "False"),
    _bug("work though the claim was refused", claiming.claim, "return granted", "return Claimed(expect, expect)"),
    _bug(
        # Whoever names its claim, as every worker does, is found out by either look: one of them gone shows in nothing.
        "count the failure of an old delivery",
        execution.fail,
        "or report.delivery not in {None, step.delivery}:\n        return []\n    if report.claim not in {None, step.claim}:",
        ":",
    ),
    _bug("let an end be followed by another", execution._reported, "state.status is Status.ADMITTED and", ""),
    _bug("cancel what is over", execution.cancel, "state.status not in {Status.PLANNED, Status.ADMITTED}", "False"),
    _bug(
        "be done when the first step is",
        execution.succeed,
        "all(s.phase is Phase.COMPLETED for s in after.steps.values())",
        "any(s.phase is Phase.COMPLETED for s in after.steps.values())",
    ),
    _bug("cancel no step behind a failure", execution._never_ran, "step.phase is Phase.WAITING", "False"),
    # --- leases ------------------------------------------------------------------------------------------------------
    _bug(
        "let a redelivery take over what is leased",
        execution.claim,
        "delivery <= current.delivery or current.leased",
        "delivery <= current.delivery",
    ),
    _bug(
        "put off no lease for a sign of life",
        leasing.extend,
        "min(clock.now() + _span(seconds), held.deadline)",
        "min(held.claim.time + _span(seconds), held.deadline)",
    ),
    _bug(
        "release whatever has the timer's number",
        execution.release,
        "(step.attempt, step.delivery, step.task) != (timer.attempt, timer.delivery, timer.task)",
        "(step.attempt, step.delivery) != (timer.attempt, timer.delivery)",
    ),
    _bug(
        "let expire what was started",
        execution.expire,
        "or any(step.phase is Phase.STARTED for step in state.steps.values())",
        "",
    ),
    # --- failure -----------------------------------------------------------------------------------------------------
    _bug("try once more than allowed", execution.fail, "step.attempt < policy", "step.attempt <= policy"),
    _bug("draw jitter twice as wide", retry.delay, "policy.jitter * draw", "2.0 * policy.jitter * draw"),
    _bug(
        "store the delay only with its fact",
        retrier.retrier,
        "await executions.decide(scope, partial(execution.fail, report=report, at=recorded.time))",
        "if not await executions.decide(scope, partial(execution.fail, report=report, at=recorded.time)):\n"
        "            return",
    ),
    Mutation(
        "keep a dead letter each time",
        (
            Edit(
                dead_letter_sink.dead_letter_sink,
                "dead_letter.of(failed, facts), expect=0",
                "dead_letter.of(failed, facts), expect=await log.tail(subjects.dead_letter(failed.job, failed.execution_id))",
            ),
        ),
    ),
    _bug(
        "keep half the attempts of a dead letter",
        dead_letter.attempts_of,
        "return tuple(attempts.values())",
        "return ()",
    ),
    _bug("take a request to replay twice", dead_letter.ask_to_replay, "replay_of(state, request) is not None", "False"),
    _bug(
        "settle a dead letter in the name of what failed",
        replays.resolve_replayed,
        "execution_id=execution_id, reason=",
        "execution_id=letter, reason=",
    ),
    # --- read models -------------------------------------------------------------------------------------------------
    _bug("move the recorder's place without the rows", Recorder.recorded, "batch.messages", "batch.messages[:3]"),
    _bug("record from a place of one's own", Recorder.recorded, "upto=batch.upto", "upto=place"),
    _bug(
        "show a definition whatever is shown",
        registrar.registrar,
        "registration.encode(), expect=revision",
        "registration.encode()",
    ),
    _bug(
        "show a definition by what a replica says",
        registrar.registrar,
        "if await log.tail(subjects.ledger(job)) != sequence:",
        "if False:",
    ),
)


@contextmanager
def made(mutation: Mutation) -> Iterator[None]:
    """Have the bug, for as long as the block lasts.

    Raises:
        LookupError: the words that it replaces are not in the source, or more than once.
    """
    with ExitStack() as stack:
        for edit in mutation.edits:
            function = cast("FunctionType", edit.function)
            code, names = _mutated(function, edit), function.__globals__
            stack.callback(setattr, function, "__code__", function.__code__)
            stack.callback(names.update, {name: names[name] for name in edit.names if name in names})
            for name in edit.names:
                stack.callback(names.pop, name, None)
            names.update(edit.names)
            function.__code__ = code
        yield


def _mutated(function: FunctionType, edit: Edit) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(edit.old) != 1:
        raise LookupError(f"{function.__qualname__} has {source.count(edit.old)} times {edit.old!r}")
    tree = ast.parse(source.replace(edit.old, edit.new))
    defined = tree.body[0]
    assert isinstance(defined, ast.FunctionDef | ast.AsyncFunctionDef)
    defined.decorator_list.clear()
    scope = {**function.__globals__}
    exec(compile(tree, function.__code__.co_filename, "exec"), scope)  # noqa: S102 - the source is the product's
    return cast("FunctionType", scope[function.__name__]).__code__


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a bug cost until it was caught. `violation`: the first that showed; None: it was not caught."""

    name: str
    schedules: int
    seed: int | None = None
    violation: str | None = None


def judged(name: str, seeds: Sequence[int]) -> Verdict:
    """Play schedules with the bug of that name until one does not hold."""
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == name)
    with made(mutation):
        for played, seed in enumerate(seeds, start=1):
            result = play(seed)
            if result.violations:
                return Verdict(name, played, seed, result.violations[0].partition("\n")[0])
    return Verdict(name, len(seeds))
