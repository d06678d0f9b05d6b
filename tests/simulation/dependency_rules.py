"""Rules about jobs that wait for other jobs, judged by the whole log."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tests.stored_events import StoredEvents
from tocsin.domain.events import (
    Admitted,
    Cancelled,
    Completed,
    DependenciesSettled,
    Failed,
    Planned,
    Recorded,
    Skipped,
    Terminal,
)

LATEST: Final = timedelta(seconds=40)
"""How long after its timeout a wait may end, with every pause and change of leaders."""


class _Run(NamedTuple):
    scheduled_time: datetime
    opened: int
    execution_id: str
    named: int | None
    """The number of the definition with its schedule; None: a request began it."""

    def is_named_before(self, number: int) -> bool:
        """Return whether its definition comes before an event. A late definition may name an earlier time."""
        return self.named is not None and self.named < number


def broken_waits(everything: StoredEvents) -> Iterator[str]:
    """Return each wait that ended too early, too late, or for another run than the last."""
    runs: dict[str, list[_Run]] = defaultdict(list)
    ends: dict[str, Recorded[Terminal] | Recorded[Skipped]] = {}
    planned: dict[str, Recorded[Planned]] = {}
    for execution_id, facts in everything.executions.items():
        for recorded in facts:
            fact = recorded.message
            if isinstance(fact, Planned) and fact.plan.depends_on:
                planned[execution_id] = recorded  # type: ignore[assignment]
            if isinstance(fact, Terminal | Skipped):
                ends[execution_id] = recorded  # type: ignore[assignment]
        first = facts[0].message
        if isinstance(first, Planned | Admitted | Terminal):
            named = getattr(getattr(first, "plan", None), "definition", 0) if first.trigger == "cron" else None
            runs[first.job].append(_Run(first.scheduled_time, facts[0].sequence, execution_id, named))
    for settled in everything.facts(DependenciesSettled):
        wait = planned.get(settled.message.execution_id)
        if wait is None:
            yield f"a wait ended that never began: {settled.message.execution_id}"
            continue
        yield from _judge(wait, settled, runs, ends)


def _judge(
    wait: Recorded[Planned],
    settled: Recorded[DependenciesSettled],
    runs: Mapping[str, Sequence[_Run]],
    ends: Mapping[str, Recorded[Terminal] | Recorded[Skipped]],
) -> Iterator[str]:
    plan, at, fact = wait.message.plan, wait.message.scheduled_time, settled.message
    limit = timedelta(seconds=plan.dependency_timeout or 0.0)
    if fact.outcome != "met" and settled.time - wait.time < limit:
        yield f"{fact.execution_id} was given up before its time"
    if settled.time - wait.time > limit + LATEST:
        yield f"{fact.execution_id} waited {settled.time - wait.time}, and {limit} was allowed"
    for dependency, told in zip(plan.depends_on, fact.runs, strict=True):
        in_window = sorted(run for run in runs[dependency.job] if told.since < run.scheduled_time <= at)
        counted = [run for run in in_window if not isinstance(_end(ends, run), Skipped)]
        if fact.outcome != "met":
            named = [place for place, run in enumerate(in_window) if run.execution_id == told.execution_id]
            later = in_window[named[0] + 1 :] if named else in_window
            unknown = [run for run in later if run.opened > settled.sequence and run.is_named_before(settled.sequence)]
            if unknown:
                yield f"{fact.execution_id} was given up before {unknown[0].execution_id} of {dependency.job} was planned"
            continue
        # A run that was requested after the end of the wait does not count, unless an earlier schedule named the run.
        known = [run for run in counted if run.opened < settled.sequence or run.is_named_before(settled.sequence)]
        if not known or known[-1].execution_id != told.execution_id:
            yield f"{fact.execution_id} rests on {told.execution_id} of {dependency.job}, whose last run is {known[-1:]}"
            continue
        end = ends.get(known[-1].execution_id)
        if end is None or end.sequence > settled.sequence:
            yield f"{fact.execution_id} did not wait for the end of {told.execution_id}"
        elif dependency.on == "completed" and not isinstance(end.message, Completed):
            yield f"{fact.execution_id} rests on {told.execution_id}, which failed"
        elif not isinstance(end.message, Completed | Failed | Cancelled):
            yield f"{fact.execution_id} rests on {told.execution_id}, which did not run"


def _end(ends: Mapping[str, Recorded[Terminal] | Recorded[Skipped]], run: _Run) -> object:
    end = ends.get(run.execution_id)
    return None if end is None else end.message
