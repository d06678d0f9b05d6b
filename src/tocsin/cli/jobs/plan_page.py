"""A plan of changes to jobs, as lines and as JSON."""

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ...domain import duration
from ...domain.definition import shorten, show, upstream_jobs
from ...domain.definition_changes import DefinitionDiff, ScheduleEffects
from ...domain.schedule import Schedule, next_instants, parse, warnings_at
from ...domain.text import added_and_removed, counted
from ...services.jobs import Change, Plan, Verb
from ..output.format import local

AHEAD: Final = timedelta(days=7)
"""How far ahead a plan lists occurrences."""
_SIGNS: Final[dict[Verb, tuple[str, str]]] = {
    "create": ("+", "green"),
    "update": ("~", "yellow"),
    "delete": ("-", "red"),
    "unchanged": ("=", "dim"),
}
_DURATIONS: Final = frozenset({"timeout", "initial_delay", "max_delay"})


def as_json(plan: Plan) -> dict[str, object]:
    return {
        "changes": [
            {
                "job": change.job,
                "action": change.verb,
                "differences": [asdict(difference) for difference in change.differences],
                "depends_on": upstream_jobs(change.definition.depends_on),
                **_reading_as_json(change),
                **_effects_as_json(change),
            }
            for change in plan.changes
        ],
        "summary": {verb: len(plan.of(verb)) for verb in _SIGNS},
    }


def _reading_as_json(change: Change) -> dict[str, object]:
    """Describe a new or changed schedule: cron expressions, next occurrences and warnings."""
    schedule = _schedule(change)
    if schedule is None:
        return {}
    now = datetime.now(UTC)
    return {
        "expressions": schedule.expressions,
        "next": next_instants(schedule, now, 5, anchor=now),
        "warnings": warnings_at(schedule, now),
    }


def _effects_as_json(change: Change) -> dict[str, object]:
    effects = _effects(change)
    if effects is None:
        return {}
    return {
        "until": effects.until,
        "instants_added": len(effects.added),
        "instants_removed": len(effects.removed),
        "clock_changes": [asdict(clock_change) for clock_change in effects.clock_changes],
        "fires_at_once": effects.fires_at_once,
    }


def _effects(change: Change) -> ScheduleEffects | None:
    return None if change.verb == "unchanged" else change.effects(datetime.now(UTC), AHEAD)


def _schedule(change: Change) -> Schedule | None:
    definition = change.definition
    if definition.schedule is None or change.verb not in {"create", "update"}:
        return None
    return parse(definition.schedule, definition.timezone, dst=definition.dst, days=definition.day_rules)


def lines(plan: Plan) -> list[RenderableType]:
    """Return a plan as lines: each job, each changed field, and the totals."""
    rows: list[RenderableType] = []
    for change in plan.changes:
        rows += _lines(change)
    return [*rows, summary(plan)]


def summary(plan: Plan) -> Text:
    """Return the number of jobs for each kind of change."""
    counts = [f"{len(plan.of(verb))} to {verb}" for verb in ("create", "update", "delete") if plan.of(verb)]
    unchanged = len(plan.of("unchanged"))
    return Text(", ".join([*counts, f"{unchanged} unchanged"] if unchanged or not counts else counts), style="bold")


def _lines(change: Change) -> list[Text]:
    sign, style = _SIGNS[change.verb]
    schedule = change.definition.schedule or "on demand"
    first = Text.assemble((f"{sign} {change.verb:<10}", style), (f"{change.job:<28}", "bold"), (schedule, "dim"))
    return [
        first,
        *(
            Text.assemble("             ", (f"{difference.field}: ", "dim"), _change(difference))
            for difference in change.differences
        ),
        *_notes(change),
        *_effect(change),
    ]


def _effect(change: Change) -> list[Text]:
    """Describe the occurrences that an update adds, removes and fires immediately."""
    effects = _effects(change) if change.verb == "update" else None
    if effects is None or not (effects.added or effects.removed or effects.fires_at_once):
        return []
    counts = f"until {local(effects.until)}: {counted(len(effects.added), 'occurrence')} added, {len(effects.removed)} removed"
    clocks = [f"the clocks change at {local(shift.at)}: {shift.effect}" for shift in effects.clock_changes]
    immediate = ", ".join(local(at) for at in effects.fires_at_once) or "none"
    return [Text(f"             {line}", style="dim") for line in (counts, *clocks, f"fires immediately: {immediate}")]


def _notes(change: Change) -> list[Text]:
    schedule, definition = _schedule(change), change.definition
    waits: list[str] = []
    if definition.depends_on and change.verb == "create":  # an update names the changed field
        waits.append(f"waits for {', '.join(upstream_jobs(definition.depends_on))}")
    if change.is_done:
        waits.append("ran for the last time, and was deleted: on_completion is drop")
    if schedule is None:
        return [Text(f"             {line}", style="dim") for line in waits]
    reading = [] if schedule.expressions == (definition.schedule,) else [f"is {' and '.join(schedule.expressions)}"]
    return [
        *(Text(f"             {line}", style="dim") for line in (*reading, *waits)),
        *(Text(f"             {warning}", style="yellow") for warning in warnings_at(schedule, datetime.now(UTC))),
    ]


def _change(difference: DefinitionDiff) -> str:
    """Describe a changed field; of a list, the changed elements."""
    before, after = difference.before, difference.after
    if isinstance(before, list | None) and isinstance(after, list | None):
        old, new = (
            [shorten(json.dumps(element, ensure_ascii=False, sort_keys=True)) for element in value or []]
            for value in (before, after)
        )
        return added_and_removed(old, new) or f"[{', '.join(old)}] → [{', '.join(new)}]"
    return f"{_value(difference.field, before)} → {_value(difference.field, after)}"


def _value(field: str, value: object) -> str:
    if isinstance(value, float) and field.rpartition(".")[2] in _DURATIONS:
        return duration.short(value)
    return "none" if value is None else show(value)
