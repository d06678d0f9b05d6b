"""`tocsin jobs apply`, `apply` and `jobs diff`: plans from definitions to registered jobs."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Final, TypeAlias

import typer

from ...adapters.files import load
from ...domain.definition import JobDefinition
from ...domain.identity import NO_OWNER
from ...domain.text import counted, printable_lines
from ...ports import LogUnavailable, NotPermitted
from ...services.apply import owners_of, with_defaults, with_owner
from ...services.definition_settings import needs_settings
from ...services.jobs import Plan
from ...services.operations.errors import NotFound
from ...services.operator import Operator
from ...services.unserved import Unserved, unserved
from ...settings import Settings
from ..input.objects import load_app
from ..input.values import confirm
from ..runtime.errors import Exit, UsageError
from ..runtime.session import Session
from .plan_page import as_json, lines

MAX_WARNINGS: Final = 20
"""Warnings that are printed about queues and functions."""
MAX_LISTED: Final = 100
"""The same, in the JSON document."""
OWNER: Final = NO_OWNER
"""Owner of definitions that name none."""

File = Annotated[
    list[str] | None,
    typer.Option("--file", "-f", metavar="FILE|FOLDER|-", help="Definition files; default: the setting `jobs_file`."),
]
Owner = Annotated[str, typer.Option(help="Owner of definitions that name none.")]
Prune = Annotated[bool, typer.Option("--prune", help="Delete jobs of the same owners that are missing from the files.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan without changing anything.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")]


MakePlan: TypeAlias = Callable[[Operator], Awaitable[Plan]]


def apply(
    session: Session,
    file: File = None,
    owner: Owner = OWNER,
    prune: Prune = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Create, update and delete jobs so that they match the definition files.

    Makes a plan, carries it out and prints it; a plan that deletes jobs is printed before a question. A second call changes nothing.

    Example: `tocsin jobs apply -f jobs.yaml --prune`
    """
    definitions = read(session.settings(), file or [], owner)
    plan = partial(_plan, settings=session.settings(), definitions=definitions, owner=owner, prune=prune)
    carry_out_plan(session, definitions, plan, dry_run=dry_run, yes=yes)


async def _plan(
    operator: Operator, settings: Settings, definitions: Sequence[JobDefinition], owner: str, *, prune: bool
) -> Plan:
    complete = await with_defaults(operator, definitions, settings)
    return await operator.plan(complete, prune=owners_of(definitions, owner) if prune else ())


def apply_app(
    session: Session,
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:ATTRIBUTE", help="The application object: in a module or in FILE.py."),
    ],
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete jobs of the application that its code no longer has.")
    ] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Also replace jobs that belong to another owner.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Create, update and delete jobs so that they match an application's code.

    Imports the module, makes a plan, carries it out and prints it. A second call changes nothing. Workers are not started. The settings in
    the application's code come before the environment, and options before both. With settings in the code, --config is refused.

    Example: `tocsin apply billing/app.py:app --prune`
    """
    from ...app.application import given_settings  # noqa: PLC0415 - the help needs no application
    from ...app.registration import plan_registration  # noqa: PLC0415

    app = load_app(target)
    session = session.with_given(given_settings(app), target)
    definitions, settings = app.definitions, session.settings()
    plan = partial(
        plan_registration,
        definitions=definitions,
        owner=app.owner,
        settings=settings,
        prune=prune,
        take_over=take_over,
    )
    carry_out_plan(session, definitions, plan, dry_run=dry_run, yes=yes)


def diff(
    session: Session,
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
    if job is not None:
        _diff_revisions(session, job, first, second)
        return
    definitions = read(session.settings(), file or [], owner)
    settings = session.settings()
    plan = session.ask(lambda operator: _plan(operator, settings, definitions, owner, prune=prune))
    session.output.answer(as_json(plan), lambda: lines(plan))
    if plan.has_differences:
        raise typer.Exit(Exit.NO)


def _diff_revisions(session: Session, job: str, first: int | None, second: int | None) -> None:
    from .history import lines as diff_lines  # noqa: PLC0415 - `apply` needs neither
    from .history import read_difference  # noqa: PLC0415

    text = session.ask(lambda operator: read_difference(operator, job, first, second))
    session.output.answer({"job": job, "diff": text, "changed": bool(text)}, lambda: diff_lines(text))
    if text:
        raise typer.Exit(Exit.NO)


def carry_out_plan(
    session: Session, definitions: Sequence[JobDefinition], make_plan: MakePlan, *, dry_run: bool, yes: bool
) -> None:
    """Make a plan, confirm its deletions, carry it out, and print it."""

    async def carry_out(operator: Operator) -> tuple[Plan, list[Unserved], Sequence[str]]:
        plan = await make_plan(operator)
        deletions = 0 if dry_run else len(plan.of("delete"))
        needs_answer = bool(deletions) and not yes
        if needs_answer:
            session.output.print(lines(plan))
            confirm(f"delete {counted(deletions, 'job')}?", yes=yes, otherwise="nothing was changed")
        if not dry_run:
            await operator.carry_out(plan)
        if not needs_answer:  # after the changes, because a refused plan would look as if it was carried out
            session.output.print(lines(plan))
        return plan, await unserved_by(session, operator, definitions), await _unsettled(operator, definitions)

    plan, missing, unsettled = session.ask(carry_out)
    warn([*plan.unknown, *missing, *unsettled])
    session.output.answer({**as_json(plan), "dry_run": dry_run, "unserved": unserved_json(missing)}, list)


async def _unsettled(operator: Operator, definitions: Sequence[JobDefinition]) -> Sequence[str]:
    """Return warnings about channels and sources of triggers that the settings lack."""
    if not needs_settings(definitions):
        return ()
    try:
        return tuple((await operator.definition_settings()).warnings(definitions))
    except (LogUnavailable, NotFound, NotPermitted):
        return ()  # as for agents


def warn(warnings: Sequence[object]) -> None:
    """Print warnings, at most `MAX_WARNINGS`."""
    for each in warnings[:MAX_WARNINGS]:
        typer.echo(f"warning: {printable_lines(str(each))}", err=True)
    if len(warnings) > MAX_WARNINGS:
        typer.echo(f"warning: {len(warnings) - MAX_WARNINGS:,} more; run `tocsin doctor`", err=True)


def unserved_json(missing: Sequence[Unserved]) -> list[dict[str, object]]:
    """Return queues and functions without a worker for a JSON document."""
    return [asdict(each) for each in missing[:MAX_LISTED]]


async def unserved_by(session: Session, operator: Operator, definitions: Collection[JobDefinition]) -> list[Unserved]:
    """Return the queues that no worker reads, and the functions that no worker has."""
    try:
        agents = await operator.agents()
    except (LogUnavailable, NotFound, NotPermitted):
        return []  # an older API, or a caller that may not see agents: the jobs are applied
    return unserved(definitions, agents, outside=session.settings().bridged_queues)


def read(settings: Settings, files: Collection[str], owner: str) -> tuple[JobDefinition, ...]:
    """Read definitions; a definition that names no owner gets `owner`."""
    sources = list(files) or ([str(settings.jobs_file)] if settings.jobs_file else [])
    if not sources:
        raise UsageError(
            "Cannot read definitions: no file is named. Name a file or a folder with -f, or set `jobs_file` in the settings.",
            code="definitions-required",
        )
    return tuple(
        with_owner(definition, owner) for definition in load(*sources, connection=settings.execution.default_connection)
    )
