"""Visibility of executions, dead letters and events to the callers of the API.

An execution is visible under the definition that it ran under. A later definition can hide it from more callers, if it belongs
to the same registration, but cannot show it to more: a new author of a deleted job's name sees nothing of the executions
before. Other events are judged by the definition that was in force when they were stored.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar, cast

from .... import subjects
from ....domain import events
from ....domain.access import Permission, Principal
from ....domain.agent import AgentRecord
from ....domain.definition import JobDefinition, is_name
from ....domain.events import Message, Recorded, unfold
from ....domain.namespaces import referenced_jobs
from ....ports import Clock, DeadLetterRow, EventLog, ExecutionRow
from ....services.jobs import Job, MaySee
from ....services.operations.dead_letters import Letter
from ....services.operations.lookup import ExecutionMatch
from .security import forbidden, outside_namespaces, refusal

VIEWERS_TTL_S: Final = 2.0
"""How long the newest definition of a job stays cached while a list of events or rows is filtered."""
MAX_BACK: Final = 1_000
"""Definition events that are read to find the definition in force at an earlier time."""
_CAPACITY: Final = 10_000

K = TypeVar("K")
V = TypeVar("V")

UNREADABLE: Final = -1
"""The definition of a run whose beginning cannot be read: administrators alone see it."""


@dataclass(frozen=True, slots=True)
class Run:
    """An execution or a dead letter, as far as its visibility is concerned.

    `definition` is the sequence of the definition that it ran under (0: it was not registered). None: nothing ran, and the
    definition that was in force at `at` decides.
    """

    job: str
    definition: int | None
    at: datetime

    @classmethod
    def of(cls, of: "ExecutionMatch | ExecutionRow | DeadLetterRow | Letter") -> "Run":
        match of:
            case ExecutionRow():
                is_refused = of.definition is None and of.status == "skipped"
                definition = of.definition if is_refused or of.definition is not None else UNREADABLE
                return cls(of.job_name, definition, of.completed_at or of.scheduled_time)
            case DeadLetterRow():
                return cls(of.job_name, of.definition, of.first_attempt)
            case _:
                return cls.of_facts(of.job, of.facts)

    @classmethod
    def of_facts(cls, job: str, facts: Sequence[Recorded[Message]]) -> "Run":
        """Return the run of the events of an execution or of a dead letter."""
        for recorded in unfold(facts):
            match recorded.message:
                case events.Requested() as fact:
                    return cls(job, fact.plan.definition, recorded.time)
                case events.Skipped() as fact:
                    return cls(job, fact.definition if fact.refusal is None else None, recorded.time)
                case events.FannedOut() as fact:
                    return cls(job, fact.definition, recorded.time)
                case events.DeadLettered() as fact:
                    return cls(job, fact.definition or None, fact.first_attempt)
                case events.PoisonMessage():
                    return cls(job, None, recorded.time)
                case _:
                    pass
        return cls(job, UNREADABLE, datetime.max.replace(tzinfo=UTC))


class KnownDefinition:
    """The owner and the viewers in a `defined` event. Implements `access.Owned`."""

    def __init__(self, recorded: Recorded[events.Defined]) -> None:
        self.stored_at, fact = recorded.time, recorded.message
        self.previous = fact.previous
        self.definition: JobDefinition = fact.definition
        self.created_by = fact.creator
        self.registered_at = fact.created_at or events.in_force_since(recorded)

    @classmethod
    def of(cls, recorded: Recorded[Message] | Recorded[events.DefinitionFact]) -> "KnownDefinition | None":
        """Return the definition in an event; None: the event is of another type."""
        return cls(cast("Recorded[events.Defined]", recorded)) if isinstance(recorded.message, events.Defined) else None


class Visibility:
    """Decide which callers may see or change the executions of a job."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._newest: OrderedDict[str, tuple[float, KnownDefinition | None]] = OrderedDict()
        self._facts: OrderedDict[tuple[str, int], Recorded[Message]] = OrderedDict()
        """Definition events by job and sequence, which never change."""
        self._runs: OrderedDict[str, Run] = OrderedDict()
        """The runs of executions and dead letters, by their scope."""

    async def may_see(self, caller: Principal, job: str) -> bool:
        """Check that a caller may see a job; every reader sees an undefined job."""
        if caller.may(Permission.ADMINISTER):
            return True
        return caller.reaches(job) and _sees(caller, await self._newest_of(job))

    def of(self, caller: Principal) -> MaySee:
        """Return what decides whether a caller may know of a job."""
        return partial(self.may_see, caller)

    async def require_name(self, caller: Principal, job: str) -> None:
        """Check that a caller may register a job under a name.

        The name of a deleted job that named viewers stays with its creator, its owner and administrators.
        """
        if not caller.reaches(job):
            raise outside_namespaces(caller, "job", job)
        last = await self._read_newest(job)  # not remembered: the name of a hidden job would be visible until then
        if last is None or not last.definition.viewers or caller.may_with(Permission.REGISTER, last):
            return
        raise refusal(
            f"the name {job!r} belongs to a job of another owner that names its viewers, or belonged to one that was "
            "deleted. Choose another name, or ask an administrator",
        )

    async def require_dependencies(self, caller: Principal, definition: JobDefinition) -> None:
        """Check that a caller may see the jobs on which a job depends.

        These are also the jobs whose ends start it. Its executions would show when these jobs run, and whether they fail.
        """
        require_reached_dependencies(caller, definition)
        for field, job in referenced_jobs(definition):
            if not await self.may_see(caller, job):
                raise refusal(
                    f"job {definition.name!r} cannot depend on {job!r}, which names its viewers, and you are not one "
                    f"of them. Leave it out of `{field}`, or ask its owner",
                )

    def seen_definitions(
        self, caller: Principal, definitions: Sequence[Recorded[events.DefinitionFact]]
    ) -> frozenset[int]:
        """Return the sequences of the definitions that a caller sees, as `may_see_run` does."""
        known = {
            recorded.sequence: definition
            for recorded in definitions
            if (definition := KnownDefinition.of(recorded)) is not None
        }
        if caller.may(Permission.ADMINISTER) or not known:
            return frozenset(known)
        newest = known[max(known)]
        return frozenset(
            sequence
            for sequence, definition in known.items()
            if _sees(caller, definition) and (definition.registered_at != newest.registered_at or _sees(caller, newest))
        )

    async def require(self, caller: Principal, permission: Permission, run: Run) -> None:
        """Check that a caller has a permission for an execution or a dead letter."""
        if not await self.may_see_run(caller, run, permission):
            raise forbidden(caller, permission)

    async def may_see_run(self, caller: Principal, run: Run, permission: Permission | None = None) -> bool:
        """Check that a caller may see a run, and has a permission for it."""
        if caller.may(Permission.ADMINISTER):
            return True
        if not caller.reaches(run.job):
            return False
        definitions = await self._definitions_of(run)
        is_seen = all(_sees(caller, definition) for definition in definitions)
        return is_seen and (permission is None or _may(caller, permission, definitions[-1]))

    async def permits_replay(self, caller: Principal, run: Run) -> bool:
        """Check that a caller may replay a dead letter, also by the newest definition."""
        if not await self.may_see_run(caller, run, Permission.REPLAY):
            return False
        newest = None if caller.may(Permission.ADMINISTER) else await self._newest_of(run.job)
        return _may(caller, Permission.REPLAY, newest)

    async def may_see_event(self, caller: Principal, recorded: Recorded[Message]) -> bool:
        """Check that a caller may see an event of the ledger or the log."""
        if caller.may(Permission.ADMINISTER):
            return True
        return await self.may_see_run(caller, await self._run_of(recorded))

    async def _run_of(self, recorded: Recorded[Message]) -> Run:
        match recorded.message:
            case events.ExecutionFact() as fact:
                scope = subjects.execution(fact.job, fact.execution_id)
            case events.DeadLetterFact() as fact:
                scope = subjects.dead_letter(fact.job, fact.id)
            case _:
                return Run(subjects.job_of(recorded.subject), None, recorded.time)
        run = self._runs.get(scope)
        if run is None:
            run = Run.of_facts(fact.job, [recorded])
            if run.definition == UNREADABLE:  # another event of the scope names its definition
                run = Run.of_facts(fact.job, await self._log.load(scope))
            if run.definition != UNREADABLE:  # a lagging replica may have answered
                _remember(self._runs, scope, run)
        return run

    async def _definitions_of(self, run: Run) -> "Sequence[KnownDefinition | _Unknown | None]":
        """Return the definitions that all decide on a run; the last decides on changes."""
        if run.definition == 0:
            return (None,)
        if run.definition == UNREADABLE:
            return (_UNKNOWN,)
        if run.definition is None:
            ran = await self._in_force(run.job, run.at)
        else:
            recorded = await self._fact(run.job, run.definition)
            ran = _UNKNOWN if recorded is None else KnownDefinition.of(recorded) or _UNKNOWN
        newest = await self._newest_of(run.job)
        if newest is None or not isinstance(ran, KnownDefinition) or newest.registered_at != ran.registered_at:
            return (ran,)
        return ran, newest

    async def _in_force(self, job: str, at: datetime) -> "KnownDefinition | _Unknown | None":
        """Return the last definition that was stored until a time; None: there was none."""
        newest = await self._newest_of(job)
        if newest is None or newest.stored_at <= at:
            return newest
        sequence = newest.previous
        for _ in range(MAX_BACK):
            if not sequence:
                return None
            recorded = await self._fact(job, sequence)
            if recorded is None or not isinstance(recorded.message, events.DefinitionFact):
                return _UNKNOWN
            if recorded.time <= at and (before := KnownDefinition.of(recorded)) is not None:
                return before
            sequence = recorded.message.previous
        return _UNKNOWN

    async def _fact(self, job: str, sequence: int) -> Recorded[Message] | None:
        recorded = self._facts.get((job, sequence))
        if recorded is None:
            recorded = await self._log.get(subjects.ledger(job), sequence)
            if recorded is None or subjects.job_of(recorded.subject) != job:
                return None
            _remember(self._facts, (job, sequence), recorded)
        return recorded

    async def _newest_of(self, job: str) -> KnownDefinition | None:
        now = self._clock.monotonic()
        read_at, last = self._newest.get(job, (-VIEWERS_TTL_S, None))
        if now - read_at < VIEWERS_TTL_S:
            return last
        last = await self._read_newest(job)
        _remember(self._newest, job, (now, last))
        return last

    async def _read_newest(self, job: str) -> KnownDefinition | None:
        if not is_name(job):
            return None  # a message that names no job
        recorded = await self._log.last(subjects.definition(job))
        return None if recorded is None else KnownDefinition.of(recorded)


def require_reached_dependencies(caller: Principal, definition: JobDefinition) -> None:
    """Check that a job depends on jobs in the namespaces of a caller alone."""
    for field, job in referenced_jobs(definition):
        if not caller.reaches(job):
            raise refusal(
                f"job {definition.name!r} cannot depend on {job!r}, which is outside the namespaces of this token: "
                f"{', '.join(sorted(caller.namespaces or ())) or 'none'}. Leave it out of `{field}`",
            )


class _Unknown:
    """A definition that cannot be read: administrators alone see what ran under it."""


_UNKNOWN: Final = _Unknown()


def _sees(caller: Principal, definition: KnownDefinition | _Unknown | None) -> bool:
    if isinstance(definition, _Unknown):
        return False
    return caller.may(Permission.READ) if definition is None else caller.may_see(definition)


def _may(caller: Principal, permission: Permission, definition: KnownDefinition | _Unknown | None) -> bool:
    if isinstance(definition, _Unknown):
        return False
    return caller.may(permission) if definition is None else caller.may_with(permission, definition)


def _remember(known: "OrderedDict[K, V]", key: K, value: V) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > _CAPACITY:
        known.popitem(last=False)


def sees_agent(caller: Principal, agent: AgentRecord) -> bool:
    """Return whether a caller may see an agent: it reaches all its queues."""
    return not caller.is_bound or (bool(agent.queues) and all(map(caller.reaches, agent.queues)))


def seen_agents(caller: Principal, agents: Iterable[AgentRecord]) -> list[AgentRecord]:
    return [_as_seen(caller, agent) for agent in agents if sees_agent(caller, agent)]


def narrowed(caller: Principal, agents: Sequence[AgentRecord]) -> Sequence[AgentRecord]:
    """Return the agents of the queues that a caller reaches, without their other queues."""
    if not caller.is_bound:
        return agents
    reached = ((agent, [*filter(caller.reaches, agent.queues)]) for agent in agents)
    return [agent.model_copy(update={"queues": queues}) for agent, queues in reached if queues]


def _as_seen(caller: Principal, agent: AgentRecord) -> AgentRecord:
    """Return an agent without grants of queues that the caller does not reach."""
    if not caller.is_bound or agent.grants is None:
        return agent
    return agent.model_copy(update={"grants": [grant for grant in agent.grants if caller.reaches(grant.queue)]})


MAX_LOOKUPS: Final = 200
"""Definitions that a request reads. Executions under other definitions are left out for callers who are not administrators."""


class VisibleRuns:
    """Decides which executions a caller may see.

    Nearly all ran under the definition in force, and its job decides without a read.
    """

    def __init__(self, visibility: Visibility, caller: Principal, registered: Callable[[str], Job | None]) -> None:
        """`registered`: returns a registered job."""
        self._visibility = visibility
        self._caller = caller
        self.all = caller.may(Permission.ADMINISTER)
        """Whether the caller sees all executions."""
        self._registered = registered
        self._decided: dict[Run, bool] = {}

    async def __call__(self, job: str, definition: int | None, status: str, at: datetime) -> bool:
        if definition is None and status != "skipped":  # only a refused trigger has no definition
            definition = UNREADABLE
        return self.all or await self.includes(Run(job, definition, at))

    async def includes(self, run: Run) -> bool:
        """Check that the caller may see an execution or a dead letter."""
        if self.all:
            return True
        if not self._caller.reaches(run.job):
            return False
        if run.definition == 0:  # the job was not registered
            return self._caller.may(Permission.READ)
        registered = self._registered(run.job)
        if registered is not None and registered.ledger.regimes[-1].definition == run.definition:
            return self._caller.may_see(registered)
        if run.definition is not None:  # the time decides nothing
            run = Run(run.job, run.definition, datetime.max.replace(tzinfo=UTC))
        if run not in self._decided:
            has_lookup = len(self._decided) < MAX_LOOKUPS
            self._decided[run] = has_lookup and await self._visibility.may_see_run(self._caller, run)
        return self._decided[run]
