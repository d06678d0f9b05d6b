"""`tocsin executions cancel`: ends runs before their time."""

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from ..operations.cancellation import Cancellation
from ..operations.cancellation import cancel as cancel_one
from ..operations.refusals import NotFound
from .failures import Refused, failure_of
from .output import state
from .running import run
from .session import actor, session_of


def cancel(
    context: typer.Context,
    executions: Annotated[
        list[str], typer.Argument(metavar="EXECUTION", help="Their ids, or the first characters of each.")
    ],
    reason: Annotated[str | None, typer.Option(help="Why; it is recorded.")] = None,
    job: Annotated[str | None, typer.Option(help="The job that they are of, if that is known.")] = None,
) -> None:
    """End executions before their time, whether they are planned, wait or run; what is over stays as it is.

    Steps that wait never start, a running handler is stopped by its worker, and the lock goes to the next that waits.
    """
    session = session_of(context)

    async def ask() -> tuple[list[Cancellation], list[NotFound]]:
        done: list[Cancellation] = []
        missing: list[NotFound] = []
        async with session.installation() as installation:
            for given in executions:
                try:
                    found = await cancel_one(
                        installation.log,
                        given,
                        by=actor(),
                        reason=reason,
                        job=job,
                        history=partial(session.history, installation),
                    )
                except NotFound as error:  # those behind it are cancelled all the same
                    missing.append(error)
                else:
                    done.append(found)
        return done, missing

    done, missing = run(ask())
    if done:
        session.output.answer([asdict(one) for one in done], lambda: [_line(one) for one in done])
    if missing:
        raise Refused("; ".join(map(str, missing)), failure_of(missing[0]).code)


def _line(one: Cancellation) -> Text:
    said = (state("cancelled"), " ") if one.changed else ("", f"was already {one.status}: ")
    return Text.assemble(*said, one.execution_id, (f" of {one.job}", "dim"))
