"""Check whether jobs wait for each other, or for jobs that are hidden from them."""

from typing import Final

from ....domain.definition import upstream_jobs
from ....domain.dependency import may_follow
from ....domain.namespaces import referenced_jobs
from ....domain.text import counted
from ...jobs.dependencies import find_circle, path_of
from ..findings import MAX_EXAMPLES, CheckContext, Finding, bad, ok, warn

CODE: Final = "dependency-cycle"
HIDDEN: Final = "dependency-hidden"
MAX_LISTED: Final = 100
"""Jobs in the details of the finding."""


async def circles(context: CheckContext) -> Finding:
    """Report jobs that wait for each other in a circle (`dependency-cycle`).

    A registration refuses such a circle, but two at the same moment may close one.
    """
    definitions = (registration.definition for registration in await context.registrations())
    graph = {job.name: upstream_jobs(job.depends_on) for job in definitions if job.depends_on}
    paths, jobs = list[str](), list[str]()
    while len(paths) < MAX_EXAMPLES and (walk := find_circle(graph)):
        paths.append(path_of(walk))
        jobs += walk[1:]
        graph = {name: upstream for name, upstream in graph.items() if name not in walk}
    if not paths:
        return ok(CODE, "no jobs wait for each other in a circle")
    return bad(
        CODE,
        f"{counted(len(jobs), 'job')} wait for each other in a circle: {'; '.join(paths)}",
        means="each execution waits until its `dependency_timeout`, and is skipped as `dependency_missing`",
        do="remove a dependency of one of them from `depends_on`, and run `tocsin jobs apply`",
        jobs=[*jobs[:MAX_LISTED]],
    )


async def hidden(context: CheckContext) -> Finding:
    """Report jobs that follow a job which the viewers in force hide from them (`dependency-hidden`)."""
    jobs = {registration.definition.name: registration for registration in await context.registrations()}
    pairs = [
        (name, followed)
        for name, job in jobs.items()
        for _, followed in referenced_jobs(job.definition)
        if followed in jobs and not may_follow(job, jobs[followed])
    ]
    if not pairs:
        return ok(HIDDEN, "no job depends on a job that is hidden from it, or is started by its ends")
    names = sorted({name for name, _ in pairs})
    examples = ", ".join(f"{name} ({followed})" for name, followed in pairs[:MAX_EXAMPLES])
    return warn(
        HIDDEN,
        f"{counted(len(names), 'job')} follow a job whose `viewers` lack their creator or owner: {examples}",
        means="an execution that depends on it is skipped as `dependency_missing` at its `dependency_timeout`, and its ends start none",
        do="add the creator and the owner to its `viewers`, or remove the dependency or the trigger, and run `tocsin jobs apply`",
        jobs=[*names[:MAX_LISTED]],
    )
