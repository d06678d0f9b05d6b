"""The counters of jobs in `/v1/jobs`, as far as a caller may see executions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ....domain.access import Permission, Principal
from ....services.jobs import Job, RunCounters, with_result
from ..auth.visible_runs import VisibleRuns
from .dependencies import Components
from .problems import problem_of


async def runs_of(here: Components, caller: Principal, job: Job) -> RunCounters | None:
    """Return the counters of a job.

    None: the caller may see none, or the history cannot be read now.
    """
    try:
        counters = (await runs_of_jobs(here, caller, [job.name], lambda _: job)).get(job.name)
        return None if counters is None else await with_result(here.history, counters)
    except Exception as error:
        if problem_of(error).kind != "unavailable":
            raise
        return None


async def runs_of_jobs(
    here: Components, caller: Principal, jobs: Sequence[str], registered: Callable[[str], Job | None]
) -> Mapping[str, RunCounters]:
    """Return the counters of jobs; none without the right to read executions.

    `registered`: returns a registered job. A last run under a definition that the caller may not see is left out.
    """
    if not caller.may(Permission.HISTORY):
        return {}
    runs = await here.history.summaries.runs(jobs)
    if runs is None:
        return {}
    sees = VisibleRuns(here.visibility, caller, registered)
    counters: dict[str, RunCounters] = {}
    for job, of_job in runs.items():
        last = of_job.last
        is_visible = last is None or await sees(job, last.definition, last.status, last.ended_at)
        counters[job] = RunCounters.of(of_job if is_visible else replace(of_job, last=None))
    return counters
