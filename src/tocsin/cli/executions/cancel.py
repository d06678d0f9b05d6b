"""`tocsin executions cancel`: ends runs before their time."""

from typing import Annotated

import typer
from rich.text import Text

from ...services.operations.cancellation import Cancellation
from ...services.operator import Operator
from ..output.format import state
from ..runtime.batch import on_each
from ..runtime.session import session_of


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

    async def end(operator: Operator, given: str) -> Cancellation:
        return await operator.cancel(given, reason=reason, job=job)

    on_each(session, executions, end, _line)


def _line(one: Cancellation) -> Text:
    said = (state("cancelled"), " ") if one.changed else ("", f"was already {one.status}: ")
    return Text.assemble(*said, one.execution_id, (f" of {one.job}", "dim"))
