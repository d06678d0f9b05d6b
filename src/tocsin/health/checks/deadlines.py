"""Everything whose time is over and that nobody has done."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ... import subjects
from ...domain import execution, lock
from ...domain.events import Acquired, Dispatched, Due, Message, Recorded, Requested, Started
from ...domain.execution import Execution, Phase, Status
from ...domain.ids import occurrence_id
from ...subjects import Stream
from ..context import CheckContext, told
from ..finding import Finding, bad, ok, warn

GRACE: Final = timedelta(seconds=60)
"""What may take a moment may take so long."""
TIMERS: Final = 10_000
OPEN: Final = 500
"""Open executions that are looked into, the oldest first."""
SHOWN: Final = 5
_OVER: Final = frozenset({"completed", "failed", "cancelled", "skipped"})


async def timers(look: CheckContext) -> list[Finding]:
    """`timer-overdue`: the log itself should have published it."""
    late = [subject for subject, at in await look.inspection.schedules(TIMERS) if look.now - at >= GRACE]
    if not late:
        return [ok("timer-overdue", "no timer of a retry is overdue")]
    return [
        bad(
            "timer-overdue",
            f"{len(late)} timers of retries are overdue: {_some(late)}",
            means="the server has not published what it should have: those attempts do not come",
            do="look at the servers' logs and load; a stream that was restored without its schedules has lost them",
            timers=told(late[:SHOWN]),
        )
    ]


async def occurrences(look: CheckContext) -> list[Finding]:
    """`due-unplanned`: the newest due instant of each job has an execution."""
    log, missing = look.installation.log, []
    for recorded in await log.load(subjects.filter_for("ledger.due")):
        due = recorded.message
        if not isinstance(due, Due) or look.age(recorded.time) < GRACE:
            continue
        planned = subjects.execution(due.job, occurrence_id(due.job, due.scheduled_time))
        # What is over may have been archived since; that is of days ago, and not of the newest instant.
        if await log.last(planned) is None:
            missing.append(f"{due.job} at {due.scheduled_time.isoformat()}")
    if not missing:
        return [ok("due-unplanned", "the newest due instant of every job has its execution")]
    return [
        bad(
            "due-unplanned",
            f"{len(missing)} due instants have no execution: {_some(missing)}",
            means="these runs have not begun",
            do="run `tocsin run planner`; if it runs, look at its log and at `tocsin dead-letters list`",
            occurrences=told(missing[:SHOWN]),
        )
    ]


async def executions(look: CheckContext) -> list[Finding]:
    """`undecided`, `unclaimed`, `overrun`: open executions that do not move."""
    found: dict[str, list[str]] = {"undecided": [], "undispatched": [], "unclaimed": [], "overrun": []}
    async for one in _open(look):
        for code in await _overdue(look, one):
            found[code].append(f"{one.job} {one.id}")
    findings = [_TELL[code](stuck) for code, stuck in found.items() if stuck]
    return findings or [ok("overrun", "every open execution moves")]


async def locks(look: CheckContext) -> list[Finding]:
    """`lock-overdue`: held beyond its time by an execution that is not over."""
    late = []
    for scope in sorted(
        {subject.rpartition(".")[0] for subject in await look.inspection.subjects(Stream.LOG, "lock.>")}
    ):
        facts = await look.installation.log.load(f"{scope}.*")
        held = next((r for r in reversed(facts) if isinstance(r.message, Acquired)), None)
        if held is None or not isinstance(held.message, Acquired):
            continue
        fact = held.message
        if look.age(held.time) <= timedelta(seconds=fact.ttl) + GRACE:
            continue
        of_holder = await look.installation.log.load(subjects.execution(fact.job, fact.execution_id))
        if of_holder and not execution.fold(of_holder).is_over:
            late.append(f"{fact.job} by {fact.execution_id}")
    if not late:
        return [ok("lock-overdue", "no lock is held beyond its time")]
    return [
        bad(
            "lock-overdue",
            f"{len(late)} locks are held beyond their time: {_some(late)}",
            means="later runs of these jobs are skipped, or wait",
            do="run `tocsin run recoverer`, or `tocsin executions cancel` what holds them",
            locks=told(late[:SHOWN]),
        )
    ]


@dataclass(frozen=True, slots=True)
class _Open:
    job: str
    id: str
    facts: list[Recorded[Message]]
    state: Execution

    def newest(self, kind: type[Dispatched | Started], step: str, attempt: int) -> datetime | None:
        return max(
            (
                r.time
                for r in self.facts
                if isinstance(r.message, kind) and (r.message.step, r.message.attempt) == (step, attempt)
            ),
            default=None,
        )


async def _open(look: CheckContext) -> AsyncIterator[_Open]:
    """The oldest open executions: their ids begin with their time."""
    stored = [subject.split(".") for subject in await look.inspection.subjects(Stream.LOG, "execution.*.*.*")]
    over = {tokens[2] for tokens in stored if tokens[3] in _OVER}
    still = sorted(
        {(tokens[2], tokens[1]) for tokens in stored}
        - {(tokens[2], tokens[1]) for tokens in stored if tokens[2] in over}
    )
    for execution_id, job in still[:OPEN]:
        facts = await look.installation.log.load(subjects.execution(subjects.name(job), execution_id))
        state = execution.fold(facts)
        if facts and state.requested is not None and not state.is_over:
            yield _Open(subjects.name(job), execution_id, facts, state)


async def _overdue(look: CheckContext, one: _Open) -> list[str]:
    asked = next((r.time for r in one.facts if isinstance(r.message, Requested)), look.now)
    if one.state.status is Status.PLANNED:
        waits = lock.fold(await look.installation.log.load(subjects.lock(one.job))).has_waiter(one.id)
        return ["undecided"] if look.age(asked) >= GRACE and not waits else []
    codes = []
    if all(step.phase is Phase.WAITING for step in one.state.steps.values()) and look.age(asked) >= GRACE:
        codes.append("undispatched")
    timeouts = {step.name: step.timeout for step in one.state.request.plan.steps}
    for name, step in one.state.steps.items():
        if step.phase is Phase.DISPATCHED:
            since = one.newest(Dispatched, name, step.attempt)
            codes += ["unclaimed"] if since is not None and look.age(since) >= GRACE else []
        if step.phase is Phase.STARTED:
            since = one.newest(Started, name, step.attempt)
            allowed = timedelta(seconds=timeouts[name]) + GRACE
            codes += ["overrun"] if since is not None and look.age(since) >= allowed else []
    return codes


def _undecided(stuck: list[str]) -> Finding:
    return bad(
        "undecided",
        f"{len(stuck)} planned executions were neither admitted nor skipped: {_some(stuck)}",
        means="they have not begun, and later runs of their jobs may wait behind them",
        do="run `tocsin run lock-keeper`; if it runs, look at its log",
        executions=told(stuck[:SHOWN]),
    )


def _undispatched(stuck: list[str]) -> Finding:
    return bad(
        "undispatched",
        f"{len(stuck)} admitted executions have no task: {_some(stuck)}",
        means="they have not begun",
        do="run `tocsin run dag-advancer`; if it runs, look at its log",
        executions=told(stuck[:SHOWN]),
    )


def _unclaimed(stuck: list[str]) -> Finding:
    return warn(
        "unclaimed",
        f"{len(stuck)} executions have tasks that no executor has claimed: {_some(stuck)}",
        means="the workers are busy, or none knows the queue or the function",
        do="look at `tocsin status` for the queue, and run more workers",
        executions=told(stuck[:SHOWN]),
    )


def _overrun(stuck: list[str]) -> Finding:
    return bad(
        "overrun",
        f"{len(stuck)} executions run beyond their timeout: {_some(stuck)}",
        means="their executors died or hang; nothing was reported",
        do="run `tocsin run recoverer`, or `tocsin executions cancel` them",
        executions=told(stuck[:SHOWN]),
    )


_TELL: Final = {
    "undecided": _undecided,
    "undispatched": _undispatched,
    "unclaimed": _unclaimed,
    "overrun": _overrun,
}


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
