"""The page and the JSON document of an occurrence that fanned out."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from rich.console import RenderableType
from rich.text import Text

from ...services.operations.dead_letters import Resolution
from ...services.operations.errors import NotFound
from ...services.operations.execution_requests import Cancellation
from ...services.operations.lookup import ExecutionMatch, FanOut, ShardRun, fanned_out
from ...services.operator import Operator
from ..output import event_lines
from ..output.event_lines import FactPage
from ..output.format import local, state
from ..output.tables import table, unique_beginnings
from ..runtime.error_report import failure_of
from ..runtime.errors import UsageError
from ..runtime.session import Session

D = TypeVar("D", Cancellation, Resolution)


def on_each(
    session: Session, ids: Sequence[str], operate: Callable[[Operator, str], Awaitable[D]], line: Callable[[D], Text]
) -> None:
    """Run an operation on each id, and print a `line` for each result.

    Raises:
        UsageError: some ids do not exist. The other ids are processed and their results printed.
    """
    done: list[D] = []
    missing: list[NotFound] = []

    async def operate_all(operator: Operator) -> None:
        for id_ in ids:
            try:
                done.append(await operate(operator, id_))
            except NotFound as error:
                missing.append(error)

    session.ask(operate_all)
    if done:
        session.output.answer([asdict(result) for result in done], lambda: [line(result) for result in done])
    if missing:
        raise UsageError("; ".join(map(str, missing)), failure_of(missing[0]).code, code=missing[0].code)


@dataclass(frozen=True, slots=True)
class FanOutDetails:
    """The executions on the shards of an occurrence."""

    match: ExecutionMatch
    fan_out: FanOut

    def as_json(self) -> dict[str, object]:
        return {
            "execution_id": self.match.execution_id,
            "job": self.match.job,
            "status": self.fan_out.status,
            "fan_out": asdict(self.fan_out),
            "facts": [event_lines.as_json(recorded) for recorded in self.match.events],
        }

    def page(self) -> list[RenderableType]:
        heading = Text.assemble((self.match.job, "bold"), "  ", state(self.fan_out.status), f", {self.fan_out.summary}")
        fanned = fanned_out(self.match)
        origin = (
            "" if fanned is None else f"{fanned.message.trigger}, scheduled for {local(fanned.message.scheduled_time)}"
        )
        rows = table(
            ("SHARD", "EXECUTION", "STATUS", "WORKER", "ATTEMPT", "ERROR"),
            [_row(run) for run in self.fan_out.runs],
            empty="no shards",
            least=("WORKER", "ATTEMPT", "ERROR"),
            brief={"EXECUTION": unique_beginnings},
        )
        head = [heading, Text(self.match.execution_id, style="dim"), Text(origin, style="dim"), Text()]
        return [*head, rows, Text(), FactPage(self.match.events)]


def _row(run: ShardRun) -> tuple[object, ...]:
    name, error = Text(run.shard, style="bold"), (run.error or "").partition("\n")[0]
    return name, run.execution_id, state(run.status), run.worker, run.attempt or "", error
