"""A registered job, and the plan that registers definitions."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from ...domain import ids, ledger
from ...domain.definition import DefinitionError, DefinitionProblem, JobDefinition
from ...domain.definition_changes import MAX_INSTANTS, DefinitionDiff, ScheduleEffects, changed_fields, schedule_effects
from ...domain.identity import typed
from ...domain.job_record import Registration
from ...domain.ledger import Ledger, Timetable
from ...domain.schedule import Schedule, warnings_at
from ...ports import SequenceConflict
from .dependencies import UnknownDependency

JobStatus: TypeAlias = Literal["active", "paused", "disabled", "on demand"]
"""Whether the schedule of a job fires, and why not."""


@dataclass(frozen=True, slots=True)
class Job:
    """A registered job: its definition in force, and its ledger."""

    definition: JobDefinition
    defined_at: datetime
    sequence: int
    """Sequence of the last fact on its definition."""
    ledger: Ledger

    @classmethod
    def of(cls, state: Ledger) -> "Job | None":
        """Return the job of a ledger; None if it is not registered."""
        registration = Registration.of(state)
        if registration is None:
            return None
        return cls(registration.definition, registration.defined_at, registration.sequence, state)

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def job_uuid(self) -> str:
        """The id of its registration (scratchbird §3.1).

        A job that is deleted and registered again has another.
        """
        return ids.job_id(self.name, self.created_at)

    @property
    def created_at(self) -> datetime:
        """Time of the first registration (UTC)."""
        return self.ledger.created_at or self.defined_at

    @property
    def created_by(self) -> str | None:
        """Identity that registered the job first, if it is known."""
        return self.ledger.created_by

    @property
    def owner(self) -> str | None:
        return None if self.definition.owner is None else typed(self.definition.owner)

    @property
    def last_fire_time(self) -> datetime | None:
        """The last instant (UTC) that fired since the registration."""
        return ledger.fired_since(self.created_at, self.ledger.last_fired)

    @property
    def anchor(self) -> datetime:
        """The time (UTC) from which `@every` counts."""
        return ledger.anchor_of(self.ledger, self.ledger.regimes[-1])

    @property
    def status(self) -> JobStatus:
        """State of the job: whether its schedule fires, and why not."""
        if self.ledger.is_paused:
            return "paused"
        if not self.definition.enabled or self._is_over:
            return "disabled"
        return "active" if self.definition.schedule else "on demand"

    @property
    def _is_over(self) -> bool:
        timetable, current = self.ledger.timetable, self.ledger.current
        return (
            timetable is not None
            and current is not None
            and ledger.is_over(timetable, current.since, self.ledger.watermark, self.anchor)
        )

    @property
    def schedule(self) -> Schedule | None:
        """The schedule of the definition; None: the job runs on demand."""
        return None if self.definition.schedule is None else ledger.schedule_of(Timetable.of(self.definition))

    def warnings(self, now: datetime) -> tuple[str, ...]:
        """Return what the author of the schedule may not expect, one sentence each.

        `now`: the time (UTC) from which on it counts.
        """
        schedule = self.schedule
        return () if schedule is None else warnings_at(schedule, now)

    def fire_times(self, after: datetime) -> Iterator[datetime]:
        return ledger.fire_times(self.ledger, after)

    def next_fire_time(self, after: datetime) -> datetime | None:
        """Return the next instant at which the job fires (CRON-28)."""
        return next(self.fire_times(after), None)

    def next_undecided(self) -> datetime | None:
        """Return the first instant that is not decided yet and at which the job fires."""
        since, watermark = self.ledger.regimes[-1].since, self.ledger.watermark
        return self.next_fire_time(since if watermark is None else max(since, watermark))

    def count(self, after: datetime, until: datetime, most: int) -> int:
        """Count the instants in (after, until] at which the job fires, up to `most`."""
        return ledger.count_fire_times(self.ledger, after, until, most)

    def summary(self, now: datetime) -> dict[str, Any]:
        """Return the JSON of the job in a list, at `now` (UTC)."""
        definition = self.definition
        return {
            "name": self.name,
            "state": self.status,
            "schedule": definition.schedule,
            "timezone": definition.timezone,
            "next_fire_time": self.next_fire_time(now),
            "last_fire_time": self.last_fire_time,
            "function": definition.function,
            "steps": [step.name for step in definition.dag],
            "tags": list(definition.tags),
            "owner": definition.owner,
        }


Check: TypeAlias = Callable[[Job | None], None]
"""Raise an error if a change to this job (None: it does not exist) is not allowed.

Called on the state that the change is decided on.
"""


def anything(_: Job | None) -> None:
    """Allow any change."""


Verb: TypeAlias = Literal["create", "update", "unchanged", "delete"]


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one job to a definition; for `delete`, the deleted definition."""

    verb: Verb
    definition: JobDefinition
    differences: tuple[DefinitionDiff, ...] = ()
    before: Ledger = ledger.initial
    """Ledger of the job at the time of planning."""

    def effects(self, now: datetime, ahead: timedelta, *, most: int = MAX_INSTANTS) -> ScheduleEffects:
        """Return the instants that the change adds and removes in the next days.

        At most `most` instants of each definition are compared.
        """
        after = None if self.verb == "delete" or self.is_done else self.definition
        return schedule_effects(self.before, after, now, now + ahead, most=most)

    @property
    def job(self) -> str:
        return self.definition.name

    @property
    def is_done(self) -> bool:
        """The job ran for the last time and was deleted (`on_completion: drop`), and stays so."""
        return self.verb == "unchanged" and self.before.definition is None

    @property
    def sequence(self) -> int | None:
        """The sequence of the definition that it changes; None: the job did not exist."""
        job = Job.of(self.before)
        return None if job is None else job.sequence

    def is_made(self, job: Job | None) -> bool:
        """Return whether a job is as the change would make it."""
        if self.verb == "delete" or job is None:
            return self.verb == "delete" and job is None
        return change_to(self.definition, job.ledger).verb == "unchanged"

    def require_planned(self, job: Job | None) -> None:
        """Refuse to change another definition than that of the plan.

        Raises:
            SequenceConflict: another writer changed it since, and not to what this change would make it.
        """
        if not self.is_made(job) and self.sequence != (None if job is None else job.sequence):
            raise SequenceConflict(f"{self.job!r} was changed since this change was planned. Plan it again.")


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes that register some definitions."""

    changes: tuple[Change, ...]
    unknown: tuple[UnknownDependency, ...] = ()
    """Dependencies on jobs that are not registered."""
    is_guarded: bool = False
    """A change is made only if its job is as it was when it was planned."""

    def of(self, *verbs: Verb) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.verb in verbs)

    @property
    def has_differences(self) -> bool:
        return any(change.verb != "unchanged" for change in self.changes)


def change_to(definition: JobDefinition, state: Ledger) -> Change:
    """Return the change that gives a job a definition.

    A job that was dropped at the end of this definition stays so.
    """
    if state.definition is None:
        return Change("unchanged" if ledger.was_dropped(state, definition) else "create", definition, before=state)
    differences = tuple(changed_fields(state.definition, definition))
    return Change("update" if differences else "unchanged", definition, differences, state)


def plan_of(
    definitions: Mapping[str, JobDefinition],
    ledgers: Iterable[Ledger],
    jobs: Iterable[Job],
    prune: Collection[str],
    *,
    now: datetime,
) -> Plan:
    """Plan at `now` (UTC) how to register `definitions`, given their ledgers.

    Of the other `jobs`, those whose owner is in `prune` are deleted.

    Raises:
        DefinitionError: the only instants of some definitions are past.
    """
    ledgers, owners = tuple(ledgers), {typed(owner) for owner in prune}
    _refuse_past(zip(definitions.values(), ledgers, strict=True), now)
    changes = [change_to(definition, state) for definition, state in zip(definitions.values(), ledgers, strict=True)]
    changes += [
        Change("delete", job.definition, before=job.ledger)
        for job in jobs
        if job.name not in definitions and job.owner in owners
    ]
    return Plan(tuple(changes))


def _refuse_past(definitions: Iterable[tuple[JobDefinition, Ledger]], now: datetime) -> None:
    """Refuse all definitions whose only instant is past, before any change is made."""
    problems: list[DefinitionProblem] = []
    for definition, state in definitions:
        if ledger.was_dropped(state, definition):
            continue
        try:
            ledger.refuse_past(state, definition, now)
        except DefinitionError as error:
            problems += error.problems
    if problems:
        raise DefinitionError(*problems)
