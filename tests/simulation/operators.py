"""Operators pause, resume and purge queues, and disable, enable, grant and drain agents."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal, TypeAlias

from tocsin.ports import EventLog, LogUnavailable, OutdatedState, Projections
from tocsin.services.agents import AgentRegistry, change_grants
from tocsin.services.operations.errors import OperationError
from tocsin.services.queue_decisions import QueueDecisions

from .process import Process
from .workload import ASSIGNED, OUTSIDE, QUEUES

DecisionVerb: TypeAlias = Literal["pause", "resume", "purge", "disable", "enable", "drain", "allow", "revoke"]

MATCHED: Final = (*QUEUES, ASSIGNED, OUTSIDE)
WORKERS: Final = ("worker-1", "worker-2")
EVERY: Final = "*"


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a queue or the agents of a name, at some second."""

    at: float
    verb: DecisionVerb
    name: str
    queue: str = EVERY
    """The queue of a grant."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A decision that was answered, with the loop's time at its request and its answer."""

    decision: Decision
    requested: float
    answered: float


@dataclass(slots=True)
class Decided:
    """The answers to all operators, for the judgement."""

    answers: list[Answered] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)
    """Names of workers whose processes are to be replaced, because they take no more tasks."""


def decisions(chance: Random, until: float) -> list[Decision]:
    """Return pairs of decisions that contradict each other, some within moments, and purges and drains."""
    return sorted((*_about_queues(chance, until), *_about_agents(chance, until)), key=lambda decision: decision.at)


def drains(chance: Random, until: float) -> list[Decision]:
    """Return drains of workers, some of them twice, and while other agents of the name start."""
    names = [name for name in WORKERS for _ in range(chance.choice((0, 1, 1, 2)))]
    return sorted(
        (Decision(chance.uniform(1.5, until), "drain", name) for name in names), key=lambda decision: decision.at
    )


def at_the_end() -> list[Decision]:
    """Return the decisions after which every task may run."""
    return [
        *(Decision(0.0, "resume", queue) for queue in MATCHED),
        *(Decision(0.0, verb, name) for name in WORKERS for verb in _OPENING),
    ]


_OPENING: Final[tuple[DecisionVerb, ...]] = ("enable", "allow")


def _about_queues(chance: Random, until: float) -> Iterator[Decision]:
    for queue in MATCHED:
        for _ in range(chance.choice((0, 1, 2))):
            at = chance.uniform(0.5, until)
            yield Decision(at, "pause", queue)
            if chance.random() < _ENDED:
                at += chance.choice((0.05, 1.0, 6.0))
                yield Decision(at, "resume", queue)
            if chance.random() < _AGAIN:
                yield Decision(at + 0.05, "pause", queue)
        for _ in range(chance.choice((0, 0, 1, 2))):
            yield Decision(chance.uniform(1.5, until), "purge", queue)


def _about_agents(chance: Random, until: float) -> Iterator[Decision]:
    for name in WORKERS:
        at = chance.uniform(1.5, until)
        if chance.random() < _DECIDED:
            yield Decision(at, "disable", name)
            if chance.random() < _ENDED:
                yield Decision(at + chance.choice((0.05, 1.0, 6.0)), "enable", name)
        at = chance.uniform(1.5, until)
        if chance.random() < _DECIDED:
            yield Decision(at, "allow", name, chance.choice(MATCHED))
            if chance.random() < _DECIDED:
                yield Decision(at + chance.choice((0.05, 1.0, 6.0)), "revoke", name)
        if chance.random() < _DRAINED:
            yield Decision(chance.uniform(1.5, until), "drain", name)


_ENDED: Final = 0.7
_AGAIN: Final = 0.3
_DECIDED: Final = 0.5
_DRAINED: Final = 0.3


class Operator:
    """An operator who repeats each decision until it is answered."""

    def __init__(self, decided: Decided, log: EventLog, projections: Projections, process: Process) -> None:
        """With the services that the command line uses."""
        self._decided = decided
        self._log = log
        self._queues = QueueDecisions(log)
        self._agents = AgentRegistry(log, projections)
        self._process = process

    async def act(self, decision: Decision) -> None:
        """Decide, however often it takes."""
        while True:
            requested = self._process.loop.time()
            try:
                await self._act(decision)
            except (LogUnavailable, OutdatedState):
                await self._process.wait(0.3)
            except OperationError:
                return  # no agent of this name was registered yet
            else:
                self._decided.answers.append(Answered(decision, requested, self._process.loop.time()))
                return

    async def _act(self, decision: Decision) -> None:
        match decision.verb:
            case "pause" | "resume":
                await self._queues.switch(decision.name, paused=decision.verb == "pause")
            case "purge":
                await self._queues.purge(decision.name)
            case "disable" | "enable":
                await self._agents.switch(decision.name, enabled=decision.verb == "enable")
            case "drain":
                self._decided.drained.add(decision.name)
                await self._agents.drain(decision.name)
            case "allow" | "revoke":
                queues = (decision.queue,) if decision.verb == "allow" else ()
                await change_grants(self._log, decision.verb, decision.name, queues, ())
