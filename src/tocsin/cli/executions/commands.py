"""`tocsin executions show` and `cancel`."""

from typing import Annotated

import typer
from rich.text import Text

from ...services.operations.cancellation import Cancellation
from ...services.operator import Operator
from ..output.format import state
from ..runtime.batch import on_each
from ..runtime.event_loop import run
from ..runtime.session import session_of


def show(
    context: typer.Context,
    execution_id: Annotated[
        str, typer.Argument(metavar="EXECUTION", help="The execution's id or its first characters.")
    ],
) -> None:
    """Show the current state of an execution: steps, attempts and events.

    Reads the log, not the history.

    Example: `tocsin executions show 0193a5b0`
    """
    from .page import ExecutionDetails, as_json, page  # noqa: PLC0415 - `cancel` needs none of these

    session = session_of(context)

    async def read() -> ExecutionDetails:
        async with session.operator() as operator:
            return ExecutionDetails.of(await operator.execution(execution_id))

    details = run(read())
    session.output.answer(as_json(details), lambda: page(details))


def cancel(
    context: typer.Context,
    executions: Annotated[
        list[str], typer.Argument(metavar="EXECUTION", help="The ids of the executions or their first characters.")
    ],
    reason: Annotated[str | None, typer.Option(help="Reason, recorded in the event.")] = None,
    job: Annotated[str | None, typer.Option(help="The job of the executions, if known.")] = None,
) -> None:
    """Cancel planned, pending and running executions; leave finished executions unchanged.

    Pending steps never start, workers stop the running handlers, and the next execution in line gets the lock.

    Example: `tocsin executions cancel 0193a5b0 --reason "wrong day"`
    """
    session = session_of(context)

    async def cancel_execution(operator: Operator, execution: str) -> Cancellation:
        return await operator.cancel(execution, reason=reason, job=job)

    on_each(session, executions, cancel_execution, _line)


def _line(cancellation: Cancellation) -> Text:
    result = (state("cancelled"), " ") if cancellation.changed else ("", f"was already {cancellation.status}: ")
    return Text.assemble(*result, cancellation.execution_id, (f" of {cancellation.job}", "dim"))
