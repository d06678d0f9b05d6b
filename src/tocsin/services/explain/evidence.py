"""The events that a judgement rests on, and the definitions that they put in force."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from ...domain.definition import JobDefinition
from ...domain.events import Defined, DefinitionFact, Deleted, Due, Message, Passed, Paused, Recorded
from ...domain.ledger import JobNotFound
from ...domain.schedule import Schedule, parse


@dataclass(frozen=True, slots=True)
class Evidence:
    """The events of a job, each kind oldest first.

    Attributes:
        job: its name.
        definitions: all events on its definition.
        decisions: the decisions on its time, at least from a while before the instant until after it.
        leadership: the leaders, as far as recorded.
        now: the time up to which all of this is known (UTC).
    """

    job: str
    definitions: Sequence[Recorded[DefinitionFact]]
    decisions: Sequence[Recorded[Due | Passed]]
    leadership: Sequence[Recorded[Message]]
    now: datetime


@dataclass(frozen=True, slots=True)
class Regime:
    """The definition in force from one event to the next (`until`: None: still in force)."""

    fact: Recorded[DefinitionFact]
    until: datetime | None
    definition: JobDefinition | None
    sequence: int
    defined_at: datetime
    paused: bool

    @property
    def is_silent(self) -> bool:
        """Whether the job was paused or disabled."""
        return self.paused or (self.definition is not None and not self.definition.enabled)

    @property
    def schedule(self) -> Schedule | None:
        """The schedule, or None."""
        rule = self.definition
        if rule is None or rule.schedule is None:
            return None
        return parse(rule.schedule, rule.timezone, dst=rule.dst)


def regimes_of(evidence: Evidence) -> list[Regime]:
    """Return the definitions in force, oldest first.

    Raises:
        JobNotFound: no event mentions the job.
    """
    if not evidence.definitions:
        raise JobNotFound(evidence.job)
    known = {r.sequence: (r.time, r.message.definition) for r in evidence.definitions if isinstance(r.message, Defined)}
    ends = [*(later.time for _, later in pairwise(evidence.definitions)), None]
    return [_regime(fact, until, known) for fact, until in zip(evidence.definitions, ends, strict=True)]


def _regime(
    fact: Recorded[DefinitionFact], until: datetime | None, known: dict[int, tuple[datetime, JobDefinition]]
) -> Regime:
    match fact.message:
        case Defined() as it:
            return Regime(fact, until, it.definition, fact.sequence, fact.time, it.paused)
        case Deleted():
            return Regime(fact, until, None, 0, fact.time, paused=False)
        case it:
            sequence: int = getattr(it, "definition", 0)
            defined_at, definition = known.get(sequence, (fact.time, None))
            return Regime(fact, until, definition, sequence, defined_at, isinstance(it, Paused))
