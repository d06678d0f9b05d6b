"""The definitions of a job along its time, and the times without a leader."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from ... import subjects
from ...domain.definition import JobDefinition
from ...domain.definition_changes import changed_fields
from ...domain.events import Defined, DefinitionFact, Due, Passed, Recorded
from ...domain.ledger import PUNCTUALITY
from ...domain.log_events import LeaderChange
from ...domain.schedule import Schedule
from ...ports import EventLog
from ..explain.evidence import Evidence, Regime, gaps, last_instant, regimes_of
from ..explain.judgement import INSTANT, anchor, began
from ..explain.reader import read_evidence
from ..operations.errors import NotFound
from .model import Decision, JobRevision, Span, TimelineVersion, Window


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time [start, end) of a single definition, whose instants have the same decision."""

    start: datetime
    end: datetime
    decision: Decision | None
    """None: the instants fired, or passed without a pause: each has its own decision."""
    schedule: Schedule
    anchor: datetime
    reason: str | None = None


class Ledger:
    """The definitions of a job, as far as the caller may see them."""

    def __init__(self, evidence: Evidence, seen: Collection[int]) -> None:
        """`seen`: the sequences of the definitions that the caller sees.

        Raises:
            JobNotFound: no event mentions the job.
        """
        self.evidence = evidence
        self.all = regimes_of(evidence)
        self.seen = frozenset(seen)
        self._shown = set[int]()
        """The sequences of the events that the caller sees."""
        is_shown = False
        for regime in self.all:
            is_shown = is_shown if regime.definition is None else regime.sequence in self.seen
            if is_shown:
                self._shown.add(regime.fact.sequence)
        self.decided_until = max((last_instant(decision.message) for decision in evidence.decisions), default=None)

    @property
    def timezone(self) -> str:
        """Return the zone of the newest definition that the caller sees."""
        zones = (
            regime.definition.timezone for regime in reversed(self.all) if regime.definition and self.is_seen(regime)
        )
        return next(zones, "UTC")

    def is_seen(self, regime: Regime) -> bool:
        """Return whether the caller sees a definition, or the deletion of one that it sees."""
        return regime.fact.sequence in self._shown

    def has_seen(self, definition: int | None) -> bool:
        """Return whether the caller sees the executions of a definition (0: not registered; None: unknown)."""
        if definition is None:
            return all(regime.sequence in self.seen for regime in self.all if regime.definition is not None)
        return definition == 0 or definition in self.seen

    def definition(self, sequence: int) -> JobDefinition | None:
        """Return the definition of an event; None: the caller sees no such definition."""
        regimes = (regime for regime in self.all if regime.fact.sequence == sequence == regime.sequence)
        return next((regime.definition for regime in regimes if self.is_seen(regime)), None)

    def versions(self, window: Window) -> list[TimelineVersion]:
        """Return the changes to the definition in a window, and the last before it."""
        seen = [regime for regime in self.all if self.is_seen(regime) and regime.fact.time < window.until]
        first = next((n for n, regime in enumerate(seen) if regime.until is None or regime.until > window.since), 0)
        return [version_of(regime.fact) for regime in seen[first:]]

    def regime_at(self, at: datetime, decision: Recorded[Due | Passed]) -> Regime | None:
        """Return the definition in force at an instant when it was decided."""
        for regime in reversed(self.all):
            if regime.fact.time < at and regime.fact.sequence < decision.sequence:
                return regime
        return None

    def anchor(self, regime: Regime, schedule: Schedule, at: datetime) -> datetime:
        return regime.anchor if schedule.interval is None else anchor(self.evidence, regime, at)

    def stretches(self, window: Window) -> Iterator[Stretch]:
        """Yield the times in which the caller sees a definition with a schedule, oldest first."""
        now = self.evidence.now
        for regime in self.all:
            schedule = regime.schedule
            if schedule is None or not self.is_seen(regime):
                continue
            # An instant at the very time of an event belongs to the definition before it.
            begin = max(window.since, regime.fact.time + INSTANT)
            end = window.until if regime.until is None else min(window.until, regime.until + INSTANT)
            decided = (self.decided_until or regime.fact.time) + INSTANT
            for start, stop, decision in (
                (begin, min(end, decided), self._past(regime)),
                (max(begin, decided), min(end, now + INSTANT), "undecided"),
                (max(begin, decided, now + INSTANT), end, self._future(regime)),
            ):
                if start < stop:
                    origin = self.anchor(regime, schedule, start)
                    yield Stretch(start, stop, decision, schedule, origin, self.reason_of(regime))

    def _past(self, regime: Regime) -> Decision | None:
        if not regime.is_silent:
            return None
        return "paused" if regime.paused else "disabled"

    def _future(self, regime: Regime) -> Decision:
        if not regime.is_silent:
            return "future"
        return "future-paused" if regime.paused else "future-disabled"

    def reason_of(self, regime: Regime) -> str | None:
        return began(self.all, regime).fact.message.reason if regime.is_silent else None


def version_of(fact: Recorded[DefinitionFact]) -> TimelineVersion:
    message = fact.message
    kind = message.type  # type: ignore[attr-defined] # each kind of them has it
    by = None if message.by is None else message.by.full_name
    return TimelineVersion(fact.sequence, fact.time, by, message.reason, kind)


def gaps_of(leadership: Iterable[LeaderChange], window: Window, now: datetime) -> list[Span]:
    """Return the times without a leader in a window, oldest first.

    Those that are too short to make an instant late are left out.
    """
    ended = ((gap.start, gap.end or now) for gap in gaps(leadership) if gap.start is not None)
    clipped = ((max(start, window.since), min(end, window.until)) for start, end in ended if end - start > PUNCTUALITY)
    return [Span(start, end) for start, end in clipped if start < end]


def seen_everything(definitions: Sequence[Recorded[DefinitionFact]]) -> frozenset[int]:
    """Return the sequences of all definitions: what a caller without limits sees."""
    return frozenset(recorded.sequence for recorded in definitions)


async def read_revisions(log: EventLog, job: str) -> list[JobRevision]:
    """Return all revisions of a job, newest first.

    Raises:
        JobNotFound: no event mentions the job.
    """
    evidence = await read_evidence(log, job)
    return revisions_of(Ledger(evidence, seen_everything(evidence.definitions)))


async def read_definition(log: EventLog, job: str, revision: int) -> JobDefinition:
    """Return the definition of a revision.

    Raises:
        NotFound: the revision defines nothing.
    """
    recorded = await log.get(subjects.ledger(job), revision)
    fact = None if recorded is None else recorded.message
    if not isinstance(fact, Defined) or fact.job != job:
        raise no_definition(job, revision)
    return fact.definition


def no_definition(job: str, revision: int) -> NotFound:
    """Return the error of a revision without a definition."""
    return NotFound(f"job {job!r} has no definition {revision}. `tocsin jobs history {job}` lists its revisions")


def revisions_of(ledger: Ledger, *, before: int | None = None, limit: int | None = None) -> list[JobRevision]:
    """Return the revisions that the caller sees before a sequence, newest first."""
    current = ledger.all[-1].sequence
    revisions = list[JobRevision]()
    last: JobDefinition | None = None
    for regime in ledger.all:
        if not ledger.is_seen(regime):
            last = None
            continue
        version, after = version_of(regime.fact), regime.definition
        is_edit = version.kind == "defined" and last is not None and after is not None
        changed = tuple(diff.field for diff in changed_fields(last, after)) if is_edit and last and after else ()
        is_current = version.sequence == current
        revisions.append(JobRevision(**asdict(version), changed=changed, is_current=is_current))
        last = after
    shown = [revision for revision in reversed(revisions) if before is None or revision.sequence < before]
    return shown[:limit]
