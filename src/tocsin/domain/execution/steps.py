"""The steps of a graph, with counts for decisions; a change copies few steps."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from math import isqrt
from typing import Final, Generic, Self, TypeVar

import msgspec
from pydantic import JsonValue
from typing_extensions import override

from ..events import ExhaustedReason, Failure, PlannedStep

V = TypeVar("V")

_LEAST: Final = 16
"""The number of changes that are always kept beside the rest of a mapping."""


class Phase(StrEnum):
    """The phase of a step."""

    WAITING = "waiting"
    DISPATCHED = "dispatched"
    LOST = "lost"
    STARTED = "started"
    RETRYING = "retrying"
    COMPLETED = "completed"
    EXHAUSTED = "exhausted"

    __hash__ = str.__hash__  # that of an enumeration is slow

    @property
    def is_end(self) -> bool:
        return self in {Phase.COMPLETED, Phase.EXHAUSTED}


RUNNING: Final = frozenset({Phase.DISPATCHED, Phase.STARTED})
"""Phases in which a worker may hold the attempt."""
IN_FLIGHT: Final = RUNNING | {Phase.RETRYING, Phase.LOST}
"""Phases of a step that was dispatched and has not ended."""


class Step(msgspec.Struct, frozen=True):
    """One step.

    `delivery` belongs to the current claim; 0: the attempt is not claimed. `task` is the sequence of the newest
    `dispatched` event (0: none); older tasks are lost and do not run. `claims` counts the claims of this attempt. A
    claim of a worker over HTTP is `leased_until` a time (UTC), no matter what its queue delivers. `claim` is the sequence of the
    current claim, also after the end of the attempt (0: none). `claimed_at` is its time (UTC), as long as it stands.
    """

    phase: Phase = Phase.WAITING
    attempt: int = 0
    delivery: int = 0
    next_attempt_at: datetime | None = None
    result: JsonValue = None
    error: Failure | None = None
    reason: ExhaustedReason | None = None
    task: int = 0
    claims: int = 0
    leased_until: datetime | None = None
    claim: int = 0
    claimed_at: datetime | None = None


class PersistentDict(Mapping[str, V], Generic[V]):
    """An immutable mapping, in the order of a dict.

    The newest changes are kept beside the rest, so that a change copies about as many entries as the square root of all.
    """

    __slots__ = ("_changes", "_rest")

    def __init__(self, rest: dict[str, V], changes: dict[str, V] | None = None) -> None:
        """Take over both dicts; the caller must not change them."""
        self._rest = rest
        self._changes: dict[str, V] = changes or {}

    def __getitem__(self, key: str) -> V:
        return self._changes[key] if key in self._changes else self._rest[key]

    def __iter__(self) -> Iterator[str]:
        """Yield the keys in the order in which they were added."""
        yield from self._rest
        yield from (key for key in self._changes if key not in self._rest)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def updated(self, values: Mapping[str, V]) -> "PersistentDict[V]":
        changes = {**self._changes, **values}
        if len(changes) > _LEAST and len(changes) > isqrt(len(self._rest)):
            return PersistentDict({**self._rest, **changes})
        return PersistentDict(self._rest, changes)


class StepStates(Mapping[str, Step]):
    """The steps of an execution by name, in the order of its plan.

    Attributes:
        planned: the steps of the plan by name.
        in_flight: the number of steps that were dispatched and have not ended.
    """

    __slots__ = ("_steps", "in_flight", "planned")

    planned: Mapping[str, PlannedStep]
    in_flight: int
    _steps: PersistentDict[Step]

    def __getitem__(self, name: str) -> Step:
        return self._steps[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names, first those of the plan."""
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def __repr__(self) -> str:
        return repr(self._steps)

    @property
    @abstractmethod
    def is_completed(self) -> bool:
        """Return whether all is done that must be done."""

    @abstractmethod
    def with_step(self, name: str, step: Step) -> Self:
        """Return the steps with one replaced."""

    @abstractmethod
    def ready_steps(self, last: str | None) -> tuple[PlannedStep, ...]:
        """Return the steps that are ready.

        `last` is the step that completed last, if that is known.
        """


class Steps(StepStates):
    """The steps of a graph.

    Attributes:
        uncompleted: the number of steps that are not completed.
        ready: the number of planned steps that wait and whose dependencies are all completed.
    """

    __slots__ = ("_dependents", "_missing", "ready", "uncompleted")

    def __init__(self, plan: tuple[PlannedStep, ...], steps: dict[str, Step]) -> None:
        """Start with a state of each step of a plan, none of them completed."""
        dependents: dict[str, list[str]] = {}
        for step in plan:
            for name in dict.fromkeys(step.depends_on):
                dependents.setdefault(name, []).append(step.name)
        self.planned = {step.name: step for step in plan}
        self._dependents = dependents
        self._missing = PersistentDict({step.name: len(set(step.depends_on)) for step in plan})
        """The number of dependencies that are not completed, by step."""
        self._steps = PersistentDict(steps)
        self.in_flight = sum(step.phase in IN_FLIGHT for step in steps.values())
        self.uncompleted = len(steps)
        self.ready = sum(self._is_ready(name) for name in self.planned)

    @property
    @override
    def is_completed(self) -> bool:
        return not self.uncompleted

    @override
    def with_step(self, name: str, step: Step) -> Self:
        old, new = self._steps.get(name), object.__new__(type(self))
        new.planned, new._dependents, new._missing = self.planned, self._dependents, self._missing
        new._steps = self._steps.updated({name: step})
        was_completed, is_completed = old is not None and old.phase is Phase.COMPLETED, step.phase is Phase.COMPLETED
        new.in_flight = self.in_flight + (step.phase in IN_FLIGHT) - (old is not None and old.phase in IN_FLIGHT)
        new.uncompleted = self.uncompleted + (not is_completed) - (old is not None and not was_completed)
        new.ready = self.ready + new._is_ready(name) - self._is_ready(name)
        if was_completed is not is_completed:
            dependents = self._dependents.get(name, ())
            new.ready -= sum(map(new._is_ready, dependents))
            change = -1 if is_completed else 1
            new._missing = self._missing.updated({other: self._missing[other] + change for other in dependents})
            new.ready += sum(map(new._is_ready, dependents))
        return new

    @override
    def ready_steps(self, last: str | None) -> tuple[PlannedStep, ...]:
        """Return the steps that are ready, in the order of the plan.

        Usually only steps that depend on the step that completed last are ready.
        """
        if not self.ready:
            return ()
        near = [name for name in self._dependents.get(last or "", ()) if self._is_ready(name)]
        if len(near) != self.ready:
            near = [name for name in self.planned if self._is_ready(name)]
        return tuple(self.planned[name] for name in near)

    def _is_ready(self, name: str) -> bool:
        if name not in self.planned or self._missing[name]:
            return False
        return self._steps[name].phase is Phase.WAITING
