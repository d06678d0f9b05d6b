"""The page and the JSON document of an occurrence that fanned out."""

from dataclasses import asdict, dataclass

from rich.console import RenderableType
from rich.text import Text

from ...services.operations.fan_out import FanOut, ShardRun, fanned_out
from ...services.operations.lookup import ExecutionMatch
from ..output import event_lines
from ..output.event_lines import FactPage
from ..output.format import local, state
from ..output.tables import table, unique_beginnings


@dataclass(frozen=True, slots=True)
class FanOutDetails:
    """The executions on the shards of an occurrence."""

    match: ExecutionMatch
    fan_out: FanOut

    def as_json(self) -> dict[str, object]:
        """Return the JSON document."""
        return {
            "execution_id": self.match.execution_id,
            "job": self.match.job,
            "status": self.fan_out.status,
            "fan_out": asdict(self.fan_out),
            "facts": [event_lines.as_json(recorded) for recorded in self.match.events],
        }

    def page(self) -> list[RenderableType]:
        """Return the terminal page."""
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
    error = (run.error or "").partition("\n")[0]
    return (
        Text(run.shard, style="bold"),
        run.execution_id,
        state(run.status),
        run.worker or "",
        run.attempt or "",
        error,
    )
