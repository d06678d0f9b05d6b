"""`tocsin jobs apply` and `jobs diff`: from files to registered jobs, by way of a plan."""

from collections.abc import Collection, Iterable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ...adapters.files import load
from ...domain import duration
from ...domain.definition import JobDefinition, show
from ...domain.definition_changes import ScheduleEffects
from ...domain.schedule import Schedule, next_instants, parse, warnings_at
from ...services.jobs import Change, Plan, Verb
from ...services.operator import Operator
from ...settings import Settings
from ..input.values import confirm
from ..output.format import local
from ..runtime.errors import Exit, UsageError
from ..runtime.event_loop import run
from ..runtime.session import Session, session_of

AHEAD: Final = timedelta(days=7)
"""How far ahead a plan tells instants."""
OWNER: Final = "cli"
"""The owner of what is applied without one."""

File = Annotated[
    list[str] | None,
    typer.Option("--file", "-f", metavar="FILE|FOLDER|-", help="Definitions; by default the settings' `jobs_file`."),
]
Owner = Annotated[str, typer.Option(help="Whose the definitions are that do not name an owner.")]
Prune = Annotated[
    bool, typer.Option("--prune", help="Delete the jobs that the same owners applied and that are not there any more.")
]

_SIGNS: Final[dict[Verb, tuple[str, str]]] = {
    "create": ("+", "green"),
    "update": ("~", "yellow"),
    "delete": ("-", "red"),
    "unchanged": ("=", "dim"),
}
_DURATIONS: Final = frozenset({"timeout", "initial_delay", "max_delay"})


def apply(
    context: typer.Context,
    file: File = None,
    owner: Owner = OWNER,
    prune: Prune = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the plan.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
) -> None:
    """Make the registered jobs those of the files; print the plan, and do it. Applying again changes nothing."""
    session = session_of(context)
    definitions = read(session.settings(), file or [], owner)
    done = run(_apply(session, definitions, owners(definitions, owner) if prune else (), dry_run=dry_run, yes=yes))
    if session.output.is_json:
        session.output.answer({**as_json(done), "dry_run": dry_run}, list)


def diff(context: typer.Context, file: File = None, owner: Owner = OWNER, prune: Prune = False) -> None:
    """Print what `apply` would change; exit with 1 if that is anything."""
    session = session_of(context)
    definitions = read(session.settings(), file or [], owner)

    async def read_plan() -> Plan:
        async with session.operator() as operator:
            return await operator.plan(definitions, prune=owners(definitions, owner) if prune else ())

    plan = run(read_plan())
    session.output.answer(as_json(plan), lambda: lines(plan))
    if plan.has_differences:
        raise typer.Exit(Exit.NO)


async def _apply(
    session: Session, definitions: Collection[JobDefinition], prune: Collection[str], *, dry_run: bool, yes: bool
) -> Plan:
    async with session.operator() as operator:
        plan = await operator.plan(definitions, prune=prune)
        if not session.output.is_json:
            session.output.answer(None, lambda: lines(plan))
        if dry_run:
            return plan
        deleted = len(plan.of("delete"))
        if deleted:
            confirm(f"delete {deleted} jobs?", yes=yes, otherwise="nothing was changed")
        await operator.carry_out(plan)
        return plan


async def apply_files(operator: Operator, settings: Settings, files: Collection[str]) -> Plan:
    """Apply files without asking, for whoever runs everything in one process."""
    plan = await operator.plan(read(settings, files, OWNER))
    await operator.carry_out(plan)
    return plan


def read(settings: Settings, files: Collection[str], owner: str) -> tuple[JobDefinition, ...]:
    """The definitions in files, with what the settings and the command line say where they are silent.

    Raises:
        DefinitionError: a file cannot be read, or something in it is wrong.
        UsageError: no file is named anywhere.
    """
    sources = list(files) or ([str(settings.jobs_file)] if settings.jobs_file else [])
    if not sources:
        raise UsageError("which definitions? Name a file or a folder with -f, or set `jobs_file`")
    usual = {"owner": owner, "timeout": settings.execution.default_timeout}
    return tuple(
        definition.model_copy(
            update={field: value for field, value in usual.items() if field not in definition.model_fields_set}
        )
        for definition in load(*sources)
    )


def owners(definitions: Iterable[JobDefinition], owner: str) -> set[str]:
    """Whose jobs a file speaks for."""
    return {definition.owner for definition in definitions if definition.owner} or {owner}


# --- what is shown ---------------------------------------------------------------------------------------------------


def as_json(plan: Plan) -> dict[str, object]:
    """A plan for programs."""
    return {
        "changes": [
            {
                "job": change.job,
                "action": change.verb,
                "differences": [asdict(one) for one in change.differences],
                **_reading_as_json(change),
                **_effects_as_json(change),
            }
            for change in plan.changes
        ],
        "summary": {verb: len(plan.of(verb)) for verb in _SIGNS},
    }


def _reading_as_json(change: Change) -> dict[str, object]:
    """What the schedule was read as, when it fires next, and what its author should know."""
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
    """What it does to the job's time in the days to come."""
    effects = _effects(change)
    if effects is None:
        return {}
    return {
        "until": effects.until,
        "instants_added": len(effects.added),
        "instants_removed": len(effects.removed),
        "clock_changes": [asdict(one) for one in effects.clock_changes],
        "fires_at_once": effects.fires_at_once,
    }


def _effects(change: Change) -> ScheduleEffects | None:
    return None if change.verb == "unchanged" else change.effects(datetime.now(UTC), AHEAD)


def _schedule(change: Change) -> Schedule | None:
    """The schedule of a job that is new or changed."""
    definition = change.definition
    if definition.schedule is None or change.verb not in {"create", "update"}:
        return None
    return parse(definition.schedule, definition.timezone, dst=definition.dst)


def lines(plan: Plan) -> list[RenderableType]:
    """A plan for people: one line a job, one a field that changes, and the sum."""
    shown: list[RenderableType] = []
    for change in plan.changes:
        shown += _lines(change)
    return [*shown, summary(plan)]


def summary(plan: Plan) -> Text:
    """How many jobs of each kind of change."""
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
            Text.assemble(
                "             ",
                (f"{one.field}: ", "dim"),
                f"{_value(one.field, one.before)} → {_value(one.field, one.after)}",
            )
            for one in change.differences
        ),
        *_notes(change),
        *_effect(change),
    ]


def _effect(change: Change) -> list[Text]:
    """The instants that an update adds and removes, and that it fires none."""
    effects = _effects(change) if change.verb == "update" else None
    if effects is None or not (effects.added or effects.removed or effects.fires_at_once):
        return []
    counts = f"until {local(effects.until)}: {len(effects.added)} instants more, {len(effects.removed)} less"
    clocks = [f"the clocks change at {local(one.at)}: {one.effect}" for one in effects.clock_changes]
    at_once = ", ".join(local(at) for at in effects.fires_at_once) or "none"
    return [Text(f"             {line}", style="dim") for line in (counts, *clocks, f"fires at once: {at_once}")]


def _notes(change: Change) -> list[Text]:
    schedule = _schedule(change)
    if schedule is None:
        return []
    read = [] if schedule.expressions == (change.definition.schedule,) else [f"is {' and '.join(schedule.expressions)}"]
    return [
        *(Text(f"             {line}", style="dim") for line in read),
        *(Text(f"             {warning}", style="yellow") for warning in warnings_at(schedule, datetime.now(UTC))),
    ]


def _value(field: str, value: object) -> str:
    if isinstance(value, float) and field.rpartition(".")[2] in _DURATIONS:
        return duration.short(value)
    return "nothing" if value is None else show(value)
