"""Waits for other jobs: their ends, judged by the runs that they name (I6)."""

from collections.abc import Iterator, Sequence

from ...domain.definition import JobDependency
from ...domain.events import DependenciesSettled
from .execution_reports import Wrong


def wrong_waits(fact: DependenciesSettled, depends_on: Sequence[JobDependency]) -> Iterator[Wrong]:
    """Yield the rules that the end of a wait breaks.

    `depends_on`: the dependencies of the plan.
    """
    if fact.outcome == "queue_full":
        if fact.runs:
            yield Wrong("I6", "it names runs although too many executions waited")
        return
    if [run.job for run in fact.runs] != [dependency.job for dependency in depends_on]:
        yield Wrong("I6", "it names other jobs than those on which the execution depends")
        return
    for dependency, run in zip(depends_on, fact.runs, strict=True):
        accepted = {"completed"} if dependency.on == "completed" else {"completed", "failed", "cancelled"}
        if fact.outcome == "met" and run.ended not in accepted:
            yield Wrong("I6", f"the last run of {run.job} had not {dependency.on}")
    if fact.outcome == "dependency_failed" and not any(run.ended in {"failed", "cancelled"} for run in fact.runs):
        yield Wrong("I6", "no run of a job on which it depends had failed")
