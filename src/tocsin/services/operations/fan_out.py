"""The state of an occurrence that fans out: the executions on its shards, together."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain

from ... import subjects
from ...domain import history
from ...domain.events import FannedOut, Recorded, newest_of
from ...domain.execution_record import ExecutionRecord, Status
from ...domain.fan_out import execution_ids
from ...ports import EventLog
from .lookup import ExecutionMatch


@dataclass(frozen=True, slots=True)
class ShardRun:
    """The execution on a shard."""

    shard: str
    execution_id: str
    status: Status = "pending"
    worker: str | None = None
    attempt: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FanOut:
    """The executions of an occurrence or trigger, by shard."""

    map: int
    """The version of the shard map."""
    runs: tuple[ShardRun, ...]
    counts: dict[Status, int] = field(default_factory=dict)
    """The number of executions of each status that occurs."""

    @property
    def status(self) -> Status:
        """The state of all together.

        It is an end only after the last of them ended, and `completed` only if all completed.
        """
        kinds = self.counts.keys()
        if kinds & {"pending", "running"}:
            return "pending" if kinds == {"pending"} else "running"
        for status in ("failed", "cancelled", "skipped"):
            if status in kinds:
                return status
        return "completed"

    @property
    def summary(self) -> str:
        """The state in words: `14 of 16 completed, 1 failed, 1 running`."""
        others = [f"{number:,} {status}" for status, number in self.counts.items() if status != "completed"]
        return ", ".join((f"{self.counts.get('completed', 0):,} of {len(self.runs):,} completed", *others))


def fanned_out(match: ExecutionMatch) -> Recorded[FannedOut] | None:
    """Return the event by which an id stands for several executions.

    None: it is an execution.
    """
    return newest_of(match.facts, FannedOut)


async def read_fan_out(log: EventLog, match: ExecutionMatch) -> FanOut | None:
    """Return the executions of an occurrence.

    None: `match` is an execution of its own.
    """
    fanned = fanned_out(match)
    if fanned is None:
        return None
    fact = fanned.message
    names = execution_ids(fact)
    reads = await log.load_each(*(subjects.execution(fact.job, name) for name in names.values()))
    records = history.fold({}, chain.from_iterable(reads.facts))
    runs = tuple(_run(shard, name, records.get(name)) for shard, name in names.items())
    return FanOut(fact.map, runs, dict(Counter(run.status for run in runs)))


def _run(shard: str, execution_id: str, run: ExecutionRecord | None) -> ShardRun:
    if run is None:
        return ShardRun(shard, execution_id)  # it is about to begin
    return ShardRun(shard, execution_id, run.status, run.worker, run.attempt, run.error)
