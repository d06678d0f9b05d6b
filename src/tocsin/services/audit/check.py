"""The interface of a check, and the report of an audit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from sys import intern
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from typing_extensions import override

from ...domain.events import Message, Recorded
from ...domain.text import counted
from ...subjects import Stream, stream_of

INVARIANTS: Final[Mapping[str, str]] = {
    "I1": "at most one execution of a job for one scheduled time",
    "I2": "each instant that a definition in force names is in one `due` or `passed`; each `due` becomes an execution",
    "I3": "nothing is admitted without a request, dispatched without admission, or completed without a report",
    "I4": "no fact is there twice, however often its input was delivered",
    "I5": "a lock has one holder at a time, and what runs under it carries its token",
    "I6": "a step is dispatched when all that it depends on completed; an execution has one end, and nothing behind it",
    "I7": "attempts and delays are as the retry policy says; a failure that is to be kept has one dead letter",
    "I8": "the history and the KV projections say what the facts say",
    "I9": "each decision is in a commit of a stage, names its cause, and is in the log or its archive",
}
"""The promises that a log is judged by, each in one sentence."""

PUBLIC: Final[Mapping[str, str]] = {
    "CRON-29": "each firing is announced once, and counted",
    "CRON-30": "each skip is announced once, with its reason",
    "MISSED": "each span that passed unexpectedly without firing is announced once",
    "ANSWER": "each trigger that waits for its lock or is skipped has an answer",
}
"""The promises about public events (ojs-cron §9), judged beside the invariants."""

Key: TypeAlias = tuple[str, str]
"""An execution: its job and its id. A caller may bring the id that an execution of another job has or will have."""

PATIENCE: Final = timedelta(minutes=10)
"""The time for which a stage may be late without a violation."""

CLOCK_SKEW: Final = timedelta(seconds=10)
"""The most by which the clocks of the streams' leaders may differ."""

Debtor: TypeAlias = Literal["stages", "executors", "clocks"]
"""Stages must act, executors may take any time, and clocks may show a cause after its effect."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The position of an event."""

    stream: Stream
    sequence: int
    subject: str
    time: datetime

    @classmethod
    def of(cls, recorded: Recorded[Message]) -> "Proof":
        return cls(stream_of(recorded.subject), recorded.sequence, recorded.subject, recorded.time)

    @override
    def __str__(self) -> str:
        return f"{self.stream} {self.sequence} {self.subject} {self.time.isoformat()}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant: the subject, the reason, and the events that prove it."""

    invariant: str
    entity: str
    reason: str
    facts: tuple[Proof, ...] = ()

    @override
    def __str__(self) -> str:
        return "\n    ".join((f"{self.invariant}: {self.entity}: {self.reason}", *map(str, self.facts)))


@dataclass(frozen=True, slots=True)
class Debt:
    """A message that is still to come, and the parts that owe it."""

    invariant: str
    entity: str
    reason: str
    since: datetime
    by: Debtor = "stages"
    facts: tuple[Proof, ...] = ()

    def is_overdue(self, until: datetime, patience: timedelta) -> bool:
        """Return whether stages are late by `patience`, or the message cannot come any more."""
        if self.by == "clocks":
            return until - self.since >= min(patience, CLOCK_SKEW)
        return self.by == "stages" and until - self.since >= patience


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences of read models from the events."""

    violations: tuple[Violation, ...]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of an audit.

    `violations` holds the first violations, and `total` counts all of them. `debts` is the open work at `until`. `invariants` names the
    judged invariants, and `remarks` lists what could not be judged.
    """

    facts: int
    jobs: int
    executions: int
    until: datetime | None
    violations: tuple[Violation, ...]
    total: int
    debts: tuple[Debt, ...]
    invariants: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    voided: tuple[str, ...] = ()
    """Unreadable events that operators set aside."""

    @property
    def is_clean(self) -> bool:
        return self.total == 0

    @property
    def summary(self) -> str:
        verdict = "clean" if self.is_clean else counted(self.total, "violation")
        facts, executions = counted(self.facts, "event"), counted(self.executions, "execution")
        return f"{facts}, {executions}, {counted(len(self.invariants), 'invariant')}: {verdict}"

    def as_json(self) -> dict[str, Any]:
        return {
            "clean": self.is_clean,
            "facts": self.facts,
            "jobs": self.jobs,
            "executions": self.executions,
            "until": self.until,
            "invariants": {name: INVARIANTS[name] for name in self.invariants},
            "violations": list(map(asdict, self.violations)),
            "violations_total": self.total,
            "under_way": list(map(asdict, self.debts)),
            "remarks": list(self.remarks),
            "voided": list(self.voided),
        }


Taken: TypeAlias = Iterator[Violation]
Handler: TypeAlias = Callable[[Recorded[Any]], Taken | None]
H = TypeVar("H", bound=Callable[..., Any])


def on(*kinds: type[Message]) -> Callable[[H], H]:
    """Mark a method that takes the events of these exact types."""

    def marked(method: H) -> H:
        method.__dict__["kinds"] = kinds
        return method

    return marked


class Check:
    """One check of the log. It remembers open work, and as little else as possible."""

    def __init__(self, since: datetime | None = None) -> None:
        """Judge a log from `since` (UTC) on; None: it is read from its beginning."""
        self._since = since
        self._is_whole = since is None

    def handlers(self) -> Mapping[type[Message], Handler]:
        """Return the methods that take events, by the type of the event."""
        marked = [(name, method.kinds) for name, method in vars(type(self)).items() if hasattr(method, "kinds")]
        return {kind: getattr(self, name) for name, kinds in marked for kind in kinds}

    def debts(self) -> Iterator[Debt]:
        return iter(())


def violation(invariant: str, entity: str, reason: str, *facts: Recorded[Any]) -> Violation:
    return Violation(invariant, entity, reason, tuple(Proof.of(fact) for fact in facts))


def job(name: str) -> str:
    return f"job {name}"


class _OfExecution(Protocol):
    @property
    def job(self) -> str: ...
    @property
    def execution_id(self) -> str: ...


def key_of(fact: _OfExecution) -> Key:
    """Return the execution that an event or a report is about."""
    return intern(fact.job), fact.execution_id


def execution(job: str, execution_id: str) -> str:
    return f"execution {execution_id} of {job}"


def entity(fact: _OfExecution) -> str:
    """Return the name of the execution of an event in a finding."""
    return execution(fact.job, fact.execution_id)
