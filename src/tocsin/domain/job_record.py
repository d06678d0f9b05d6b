"""Jobs as clients see them: registered jobs, and rows of the history (scratchbird §9.2).

Unlike `ledger.fold`, which serves decisions on undecided time, a record needs only the next event. A deleted job stays
as a row, so that its executions still belong to a job.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, cast

from . import ids, ledger
from .definition import JobDefinition
from .events import CheckedMessage, Defined, Deleted, Due, LedgerFact, Message, Passed, Paused, Recorded, Resumed
from .events.ledger import in_force_since
from .ledger import Ledger, Timetable

JobState: TypeAlias = Literal["ENABLED", "DISABLED", "PAUSED", "DELETED"]
"""The state of a job (scratchbird §3.1), and `DELETED`."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job.

    `changed_at` is the time from which the last definition event is in force; `decided_until` is the time up to which its instants are
    decided. A process that keeps many records may drop the `definition`, because time needs only the `timetable`.
    """

    job: str
    created_at: datetime
    changed_at: datetime
    definition: JobDefinition | None = None
    timetable: Timetable | None = None
    paused: bool = False
    deleted: bool = False
    created_by: str | None = None
    decided_until: datetime | None = None
    last_scheduled: datetime | None = None
    anchor: datetime | None = None
    """The time from which `@every` counts until the job fires; None: unknown, so from the last change."""

    def without_definition(self) -> "JobRecord":
        """Return the record without its definition."""
        return self if self.definition is None else replace(self, definition=None)

    @property
    def regime(self) -> tuple[object, ...]:
        """Return the fields that time events seldom change: only a single instant changes `state`."""
        return self.created_at, self.created_by, self.changed_at, self.state, self.paused, self.timetable, self.anchor

    @property
    def id(self) -> str:
        """Return a UUIDv7 of the name and the first registration."""
        return ids.job_id(self.job, self.created_at)

    @property
    def state(self) -> JobState:
        """Return whether the schedule fires, and if not, the reason.

        A job whose schedule ends is `DISABLED` after its last instant.
        """
        if self.deleted:
            return "DELETED"
        if self.paused:
            return "PAUSED"
        if self.timetable is None:
            return "ENABLED"
        is_over = ledger.is_over(self.timetable, self.changed_at, self.decided_until, self._anchor)
        return "ENABLED" if self.timetable.enabled and not is_over else "DISABLED"

    @property
    def _anchor(self) -> datetime:
        return ledger.fired_since(self.created_at, self.last_scheduled) or self.anchor or self.changed_at

    @property
    def schedule_type(self) -> str | None:
        """Return `ONE_TIME` or `RECURRING` (scratchbird §3.1); None: the job has no schedule."""
        return ledger.schedule_type(self.timetable)

    @property
    def next_run_time(self) -> datetime | None:
        """Return the next instant that fires if nothing changes (CRON-28)."""
        timetable = self.timetable
        if timetable is None or timetable.schedule is None or self.deleted or self.paused or not timetable.enabled:
            return None
        after = max(self.changed_at, self.decided_until or self.changed_at)
        return ledger.schedule_of(timetable).next_after(after, anchor=self._anchor)


def jobs_of(messages: Iterable[Recorded[Message]]) -> set[str]:
    return {cast("LedgerFact", recorded.message).job for recorded in messages if type(recorded.message) in _EVOLVE}


def fold(known: Mapping[str, JobRecord], messages: Iterable[Recorded[Message]]) -> dict[str, JobRecord]:
    """Return the records that `messages` (oldest first) change, by job; `known`: those before."""
    records: dict[str, JobRecord] = {}
    for recorded in messages:
        if (change := _EVOLVE.get(type(recorded.message))) is not None:
            fact = cast("LedgerFact", recorded.message)
            before = records.get(fact.job) or known.get(fact.job) or JobRecord(fact.job, recorded.time, recorded.time)
            records[fact.job] = change(before, recorded)
    return records


def _defined(record: JobRecord, recorded: Recorded[Defined]) -> JobRecord:
    fact, at = recorded.message, in_force_since(recorded)
    is_new = record.deleted or record.timetable is None
    created_at = (fact.created_at or at) if is_new else record.created_at
    return replace(
        record,
        definition=fact.definition,
        timetable=Timetable.of(fact.definition),
        paused=fact.paused,
        deleted=False,
        created_at=created_at,
        created_by=fact.creator if is_new else record.created_by,
        changed_at=at,
        last_scheduled=ledger.fired_since(created_at, record.last_scheduled),
        anchor=fact.anchor or at,
    )


def _due(record: JobRecord, recorded: Recorded[Due]) -> JobRecord:
    at = recorded.message.scheduled_time
    return replace(record, decided_until=max(record.decided_until or at, at), last_scheduled=at)


def _passed(record: JobRecord, recorded: Recorded[Passed]) -> JobRecord:
    until = recorded.message.until
    return replace(record, decided_until=max(record.decided_until or until, until))


_EVOLVE: Final[Mapping[type[Message], Callable[[JobRecord, Recorded[Any]], JobRecord]]] = {
    Defined: _defined,
    Paused: lambda record, change: replace(record, paused=True, changed_at=in_force_since(change)),
    Resumed: lambda record, change: replace(record, paused=False, changed_at=in_force_since(change)),
    Deleted: lambda record, change: replace(record, deleted=True, paused=False, changed_at=in_force_since(change)),
    Due: _due,
    Passed: _passed,
}
"""The effect of each event type. `isinstance` of a pydantic model takes ten times as long as a lookup by type."""


class Registration(CheckedMessage):
    """A registered job (KV `definitions`, `jobs list`, ojs-cron §8).

    `sequence` is that of its last definition event.
    """

    definition: JobDefinition
    paused: bool = False
    sequence: int
    defined_at: datetime
    created_at: datetime | None = None
    created_by: str | None = None

    @classmethod
    def of(cls, ledger: Ledger) -> "Registration | None":
        """Return the registration that a ledger holds; None: the job does not exist."""
        current = ledger.current
        known = ledger.definitions.get(current.definition) if current else None
        if current is None or known is None:
            return None
        return cls.model_construct(
            definition=known.definition,
            paused=current.paused,
            sequence=current.fact,
            defined_at=known.since,
            created_at=ledger.created_at,
            created_by=ledger.created_by,
        )
