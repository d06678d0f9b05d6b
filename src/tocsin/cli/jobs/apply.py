"""`tocsin jobs apply` and `jobs diff`: a plan from definition files to registered jobs."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ...adapters.files import load
from ...domain import duration
from ...domain.definition import JobDefinition, shorten, show, upstream_jobs
from ...domain.definition_changes import DefinitionDiff, ScheduleEffects
from ...domain.identity import NO_OWNER
from ...domain.schedule import Schedule, next_instants, parse, warnings_at
from ...domain.text import added_and_removed, counted, printable_lines
from ...ports import LogUnavailable
from ...services.apply import with_timeouts
from ...services.jobs import Change, Plan, Verb
from ...services.operations.errors import NotFound
from ...services.operator import NotPermitted, Operator
from ...settings import Settings
from ..input.values import confirm
from ..output.format import local
from ..runtime.errors import Exit, UsageError
from ..runtime.event_loop import run
from ..runtime.session import Session, session_of

AHEAD: Final = timedelta(days=7)
"""How far ahead a plan lists occurrences."""
MAX_WARNINGS: Final = 20
"""Warnings that are printed about queues and functions."""
MAX_LISTED: Final = 100
"""The same, in the JSON document."""
OWNER: Final = NO_OWNER
"""Owner of definitions that name none."""

if TYPE_CHECKING:
    from ...services.unserved import Unserved

File = Annotated[
    list[str] | None,
    typer.Option("--file", "-f", metavar="FILE|FOLDER|-", help="Definition files; default: the setting `jobs_file`."),
]
Owner = Annotated[str, typer.Option(help="Owner of definitions that name none.")]
Prune = Annotated[bool, typer.Option("--prune", help="Delete jobs of the same owners that are missing from the files.")]

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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan without changing anything.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")] = False,
) -> None:
    """Create, update and delete jobs so that they match the definition files.

    Prints the plan and carries it out. A second call changes nothing.

    Example: `tocsin jobs apply -f jobs.yaml --prune`
    """
    session = session_of(context)
    definitions = read(session.settings(), file or [], owner)
    plan, missing = run(
        _apply(session, definitions, owners(definitions, owner) if prune else (), dry_run=dry_run, yes=yes)
    )
    warn([*plan.unknown, *missing, *_without_channel(session, definitions)])
    if session.output.is_json:
        session.output.answer({**as_json(plan), "dry_run": dry_run, "unserved": unserved_json(missing)}, list)


def diff(
    context: typer.Context,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Compare revisions of this job.")] = None,
    first: Annotated[
        int | None, typer.Argument(metavar="A", min=1, help="A revision; default: the last but one.")
    ] = None,
    second: Annotated[
        int | None, typer.Argument(metavar="B", min=1, help="Another; default: the definition in force.")
    ] = None,
    file: File = None,
    owner: Owner = OWNER,
    prune: Prune = False,
) -> None:
    """Print the changes that `apply` would make, or those between two revisions of a job.

    Exits with 1 if there are any. `tocsin jobs history` lists the revisions.

    Example: `tocsin jobs diff -f jobs.yaml`
    """
    session = session_of(context)
    if job is not None:
        _diff_revisions(session, job, first, second)
        return
    definitions = read(session.settings(), file or [], owner)

    async def read_plan() -> Plan:
        async with session.operator() as operator:
            complete = await with_timeouts(operator, definitions, session.settings())
            return await operator.plan(complete, prune=owners(definitions, owner) if prune else ())

    plan = run(read_plan())
    session.output.answer(as_json(plan), lambda: lines(plan))
    if plan.has_differences:
        raise typer.Exit(Exit.NO)


def _diff_revisions(session: Session, job: str, first: int | None, second: int | None) -> None:
    from .history import lines as diff_lines  # noqa: PLC0415 - `apply` needs neither
    from .history import read_difference  # noqa: PLC0415

    async def read_revisions() -> str:
        async with session.operator() as operator:
            return await read_difference(operator, job, first, second)

    text = run(read_revisions())
    session.output.answer({"job": job, "diff": text, "changed": bool(text)}, lambda: diff_lines(text))
    if text:
        raise typer.Exit(Exit.NO)


async def _apply(
    session: Session, definitions: Collection[JobDefinition], prune: Collection[str], *, dry_run: bool, yes: bool
) -> "tuple[Plan, list[Unserved]]":
    async with session.operator() as operator:
        plan = await operator.plan(await with_timeouts(operator, definitions, session.settings()), prune=prune)
        if not session.output.is_json:
            session.output.answer(None, lambda: lines(plan))
        if dry_run:
            return plan, await unserved_by(session, operator, definitions)
        deletions = len(plan.of("delete"))
        if deletions:
            confirm(f"delete {counted(deletions, 'job')}?", yes=yes, otherwise="nothing was changed")
        await operator.carry_out(plan)
        return plan, await unserved_by(session, operator, definitions)


def _without_channel(session: Session, definitions: Collection[JobDefinition]) -> Iterable[str]:
    """Return warnings about channels that the settings lack.

    Over HTTP, the settings of the server are not known.
    """
    from ...services.jobs.channels import unknown_channels  # noqa: PLC0415 - likewise

    return () if session.server else unknown_channels(definitions, session.settings().notifications.channels)


def warn(warnings: Sequence[object]) -> None:
    """Print warnings, at most `MAX_WARNINGS`."""
    for each in warnings[:MAX_WARNINGS]:
        typer.echo(f"warning: {printable_lines(str(each))}", err=True)
    if len(warnings) > MAX_WARNINGS:
        typer.echo(f"warning: {len(warnings) - MAX_WARNINGS:,} more; run `tocsin doctor`", err=True)


def unserved_json(missing: "Sequence[Unserved]") -> list[dict[str, object]]:
    """Return queues and functions without a worker for a JSON document."""
    return [asdict(each) for each in missing[:MAX_LISTED]]


async def unserved_by(session: Session, operator: Operator, definitions: Collection[JobDefinition]) -> "list[Unserved]":
    """Return the queues that no worker reads, and the functions that no worker has."""
    from ...services.unserved import unserved  # noqa: PLC0415 - most commands need no agents

    try:
        agents = await operator.agents()
    except (LogUnavailable, NotFound, NotPermitted):
        return []  # an older API, or a caller that may not see agents: the jobs are applied
    return unserved(definitions, agents, outside=session.settings().bridged_queues)


def read(settings: Settings, files: Collection[str], owner: str) -> tuple[JobDefinition, ...]:
    """Read definitions; those that name no owner get `owner`.

    Raises:
        DefinitionError: a file cannot be read, or a definition is invalid.
        UsageError: neither the command line nor the settings name a file.
    """
    sources = list(files) or ([str(settings.jobs_file)] if settings.jobs_file else [])
    if not sources:
        raise UsageError(
            "Cannot read definitions: no file is named. Name a file or a folder with -f, or set `jobs_file` in the settings.",
            code="definitions-required",
        )
    return tuple(
        definition if "owner" in definition.model_fields_set else definition.model_copy(update={"owner": owner})
        for definition in load(*sources)
    )


def owners(definitions: Iterable[JobDefinition], owner: str) -> set[str]:
    """Return the owners whose jobs the definitions describe."""
    return {definition.owner for definition in definitions if definition.owner} or {owner}


# --- output ----------------------------------------------------------------------------------------------------------


def as_json(plan: Plan) -> dict[str, object]:
    """Return the JSON document of a plan."""
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
    """Describe the occurrences that a change adds and removes."""
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
    """Return the schedule of a job that is new or changed."""
    definition = change.definition
    if definition.schedule is None or change.verb not in {"create", "update"}:
        return None
    return parse(definition.schedule, definition.timezone, dst=definition.dst)


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
            Text.assemble(
                "             ",
                (f"{difference.field}: ", "dim"),
                _change(difference),
            )
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
        old, new = ([_element(element) for element in value or []] for value in (before, after))
        return added_and_removed(old, new) or f"[{', '.join(old)}] → [{', '.join(new)}]"
    return f"{_value(difference.field, before)} → {_value(difference.field, after)}"


def _element(value: object) -> str:
    return shorten(json.dumps(value, ensure_ascii=False, sort_keys=True))


def _value(field: str, value: object) -> str:
    if isinstance(value, float) and field.rpartition(".")[2] in _DURATIONS:
        return duration.short(value)
    return "none" if value is None else show(value)
