"""Check whether jobs wait for each other."""

from typing import Final

from ....domain.definition import upstream_jobs
from ....domain.text import counted
from ...jobs.dependencies import find_circle, path_of
from ..findings import MAX_EXAMPLES, CheckContext, Finding, bad, ok

CODE: Final = "dependency-cycle"
MAX_LISTED: Final = 100
"""Jobs in the details of the finding."""


async def circles(context: CheckContext) -> list[Finding]:
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
        return [ok(CODE, "no jobs wait for each other in a circle")]
    return [
        bad(
            CODE,
            f"{counted(len(jobs), 'job')} wait for each other in a circle: {'; '.join(paths)}",
            means="each execution waits until its `dependency_timeout`, and is skipped as `dependency_missing`",
            do="remove a dependency of one of them from `depends_on`, and run `tocsin jobs apply`",
            jobs=[*jobs[:MAX_LISTED]],
        )
    ]
