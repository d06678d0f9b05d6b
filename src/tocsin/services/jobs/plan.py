"""What it takes to make the registered jobs those of some definitions."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from ...domain import ledger
from ...domain.definition import JobDefinition
from ...domain.definition_changes import DefinitionDiff, ScheduleEffects, changed_fields, schedule_effects
from ...domain.ledger import Ledger
from .job import Job

Verb: TypeAlias = Literal["create", "update", "unchanged", "delete"]


@dataclass(frozen=True, slots=True)
class Change:
    """What a plan does with one job. `definition` is what it will have, or for `delete` what it had."""

    verb: Verb
    definition: JobDefinition
    differences: tuple[DefinitionDiff, ...] = ()
    before: Ledger = ledger.initial
    """The job's ledger that this was planned on."""

    def effects(self, now: datetime, ahead: timedelta) -> ScheduleEffects:
        """What it does to the job's time in the days to come."""
        after = None if self.verb == "delete" else self.definition
        return schedule_effects(self.before, after, now, now + ahead)

    @property
    def job(self) -> str:
        """The job's name."""
        return self.definition.name


@dataclass(frozen=True, slots=True)
class Plan:
    """What it takes to make the registered jobs those of some definitions."""

    changes: tuple[Change, ...]

    def of(self, *verbs: Verb) -> tuple[Change, ...]:
        """The changes of some kinds."""
        return tuple(change for change in self.changes if change.verb in verbs)

    @property
    def has_differences(self) -> bool:
        """Something is to be done."""
        return any(change.verb != "unchanged" for change in self.changes)


def change_to(definition: JobDefinition, state: Ledger) -> Change:
    """What it takes to give a job a definition."""
    if state.definition is None:
        return Change("create", definition, before=state)
    differences = tuple(changed_fields(state.definition, definition))
    return Change("update" if differences else "unchanged", definition, differences, state)


def plan_of(
    definitions: Mapping[str, JobDefinition],
    ledgers: Iterable[Ledger],
    jobs: Iterable[Job],
    prune: Collection[str],
) -> Plan:
    """Plan how to register `definitions`, by job, given each one's ledger. Of `jobs`, those that `prune` owns are deleted."""
    changes = [change_to(definition, state) for definition, state in zip(definitions.values(), ledgers, strict=True)]
    changes += [
        Change("delete", job.definition, before=job.ledger)
        for job in jobs
        if job.name not in definitions and job.definition.owner in prune
    ]
    return Plan(tuple(changes))
