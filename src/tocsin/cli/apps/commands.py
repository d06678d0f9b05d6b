"""`tocsin apply`: the jobs of an application object."""

from functools import partial
from typing import Annotated

import typer

from ..input.objects import load_app
from ..jobs.apply import DryRun, Yes, answer, carry_out_plan
from ..runtime.event_loop import run
from ..runtime.session import session_of


def apply(
    context: typer.Context,
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
    session = session_of(context).with_given(given_settings(app), target)
    definitions, settings = app.definitions, session.settings()
    plan = partial(
        plan_registration,
        definitions=definitions,
        owner=app.owner,
        settings=settings,
        prune=prune,
        take_over=take_over,
    )
    answer(session, run(carry_out_plan(session, definitions, plan, dry_run=dry_run, yes=yes)), dry_run)
