"""The effects of a changed definition: changed fields, and instants added or removed."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, takewhile
from typing import Final

from pydantic import JsonValue

from . import ledger
from .definition import JobDefinition
from .events import Defined, Deleted, Due, Recorded
from .ledger import Ledger, Timetable
from .schedule import ClockChange, clock_changes
from .text import same_text


@dataclass(frozen=True, slots=True)
class DefinitionDiff:
    """A field that an update changes.

    `field` is dotted if nested, `dag.<step>.<field>` for steps. None means absent.
    """

    field: str
    before: JsonValue
    after: JsonValue


def changed_fields(before: JobDefinition, after: JobDefinition) -> Iterator[DefinitionDiff]:
    """Yield the fields in which two definitions of a job differ."""
    yield from _differing("", _comparable(before), _comparable(after))


def _comparable(definition: JobDefinition) -> JsonValue:
    """Return nested mappings, with steps by name, so that an inserted step changes no other."""
    dumped = definition.model_dump(mode="json", exclude_none=True)
    return {**dumped, "dag": {step.name: step.model_dump(mode="json", exclude_none=True) for step in definition.dag}}


def _differing(field: str, before: JsonValue, after: JsonValue) -> Iterator[DefinitionDiff]:
    if isinstance(before, dict) and isinstance(after, dict):
        if _adds_null(before, after) or _adds_null(after, before):
            yield DefinitionDiff(field, before, after)  # of the name alone, null and absence would look the same
            return
        for name in dict.fromkeys((*before, *after)):
            yield from _differing(f"{field}.{name}" if field else name, before.get(name), after.get(name))
    elif same_text(before) != same_text(after):
        yield DefinitionDiff(field, before, after)


def _adds_null(before: dict[str, JsonValue], after: dict[str, JsonValue]) -> bool:
    return any(after[name] is None for name in after.keys() - before.keys())


MAX_INSTANTS: Final = 10_000
"""Instants that are compared; an hour of a job that runs every second has 3,600."""


@dataclass(frozen=True, slots=True)
class ScheduleEffects:
    """Instants (UTC) up to `until` that a change adds and removes, oldest first.

    `clock_changes` affect the new schedule in that time. `fires_at_once` holds the instants that become due by the
    change itself.
    """

    until: datetime
    added: tuple[datetime, ...]
    removed: tuple[datetime, ...]
    clock_changes: tuple[ClockChange, ...]
    fires_at_once: tuple[datetime, ...]


def schedule_effects(
    state: Ledger, after: JobDefinition | None, now: datetime, until: datetime, *, most: int = MAX_INSTANTS
) -> ScheduleEffects:
    """Return the effects of another definition from `now` on (None: the job is deleted).

    At most `most` instants of each definition are compared; `until` in the result says up to which time these are.
    """
    changed = _changed(state, after, now)
    until, old, new = _compared(state, changed, now, until, most)
    schedule = None if after is None or after.schedule is None else ledger.schedule_of(Timetable.of(after))
    return ScheduleEffects(
        until=until,
        added=tuple(sorted(new - old)),
        removed=tuple(sorted(old - new)),
        clock_changes=tuple(clock_changes(schedule, now, until)) if schedule else (),
        fires_at_once=tuple(sorted(_due(changed, now) - _due(state, now))),
    )


def _changed(state: Ledger, after: JobDefinition | None, now: datetime) -> Ledger:
    fact: Defined | Deleted
    if after is None:
        fact = Deleted(job=state.job, previous=state.newest)
    elif facts := ledger.define(state, after):
        fact = facts[0]
    else:
        return state
    return ledger.evolve(state, Recorded(fact, "", state.newest + 1, now))


def _compared(
    before: Ledger, after: Ledger, now: datetime, until: datetime, most: int
) -> tuple[datetime, set[datetime], set[datetime]]:
    old, new = (list(islice(takewhile(until.__ge__, ledger.fire_times(state, now)), most)) for state in (before, after))
    for times in (old, new):
        if len(times) == most:
            until = min(until, times[-1])
    return until, {at for at in old if at <= until}, {at for at in new if at <= until}


def _due(state: Ledger, now: datetime) -> set[datetime]:
    decisions = ledger.decide_instants(state, now) if state.regimes else ()
    return {fact.scheduled_time for fact in decisions if isinstance(fact, Due)}
