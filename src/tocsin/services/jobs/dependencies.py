"""The graph of dependencies between jobs, as a registration would make it (scratchbird, Job Dependencies)."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from ...domain.definition import DefinitionError, DefinitionProblem, JobDefinition, fans_out, upstream_jobs
from ...domain.ledger import Ledger

MaySee: TypeAlias = Callable[[str], Awaitable[bool]]
HIDDEN: Final = "a hidden job"


class UnknownDependency(NamedTuple):
    """A job, and a job on which it depends that is not registered."""

    job: str
    depends_on: str

    def __str__(self) -> str:
        """Return a warning."""
        return f"job `{self.job}` depends on job `{self.depends_on}`, which is not registered: its executions wait until it is and has run"


async def all_visible(_: str) -> bool:
    """Show every job."""
    return True


async def check_dependencies(
    definitions: Mapping[str, JobDefinition],
    load: Callable[[Sequence[str]], Awaitable[Sequence[Ledger]]],
    may_see: MaySee = all_visible,
) -> tuple[UnknownDependency, ...]:
    """Refuse definitions that close a circle of dependencies; return unknown dependencies.

    `load` returns the ledgers of jobs, and `may_see` whether the caller may know of a job. Only the jobs that the definitions lead to are read. Two registrations at the same moment may
    still make a circle together; then its executions end as `dependency_missing`, and `circle_of` finds it.

    Raises:
        DefinitionError: a dependency fans out; or there is a circle, and the error names its jobs, except those that the caller may
            not see.
    """
    graph: dict[str, tuple[str, ...]] = {}
    known: dict[str, JobDefinition] = dict(definitions)
    unknown: list[UnknownDependency] = []
    found = {name: definition for name, definition in definitions.items() if definition.depends_on}
    while found:
        graph |= {name: upstream_jobs(definition.depends_on) for name, definition in found.items()}
        wanted = dict.fromkeys(job for name in found for job in graph[name] if job not in graph)
        outside = [job for job in wanted if job not in definitions]
        ledgers = dict(zip(outside, await load(outside), strict=True)) if outside else {}
        stored = {job: state.definition for job, state in ledgers.items()}
        unknown += [
            UnknownDependency(name, job)
            for name in found
            if name in definitions
            for job in graph[name]
            if job in stored and stored[job] is None
        ]
        known |= {job: definition for job, definition in stored.items() if definition is not None}
        found = {
            job: definition for job in wanted if (definition := definitions.get(job) or stored.get(job)) is not None
        }
    await _refuse_fan_outs(definitions, known, may_see)
    if walk := find_circle(graph):
        shown = [f"`{name}`" if name in definitions or await may_see(name) else HIDDEN for name in walk]
        name = next((name for name in walk if name in definitions), next(iter(definitions)))
        reason = f"jobs would wait for each other in a circle: {path_of(shown)}"
        problem = DefinitionProblem(reason, job=f"job `{name}`", field="depends_on", code="dependency-cycle")
        raise DefinitionError(problem)
    return tuple(unknown)


async def circle_of(
    job: str,
    depends_on: Sequence[str],
    load: Callable[[Sequence[str]], Awaitable[Sequence[Ledger]]],
    may_see: MaySee = all_visible,
) -> str | None:
    """Return the circle to which the dependencies of a job lead, in words.

    None: they lead to none. `depends_on`: the jobs for which it waits; `load` and `may_see`: as for `check_dependencies`.
    """
    graph, wanted = {job: tuple(depends_on)}, [*dict.fromkeys(depends_on)]
    while wanted := [name for name in wanted if name not in graph]:
        for name, state in zip(wanted, await load(wanted), strict=True):
            graph[name] = () if state.definition is None else upstream_jobs(state.definition.depends_on)
        wanted = list(dict.fromkeys(upstream for name in wanted for upstream in graph[name]))
    walk = find_circle(graph)
    return path_of([name if await may_see(name) else HIDDEN for name in walk]) if walk else None


def find_circle(graph: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the jobs of a circle, each before a job that depends on it.

    The first is also at the end. Empty: there is no circle. `graph`: the jobs on which each job depends, or by which it is started.
    """
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        walk: list[str] = error.args[1]
        return walk
    return []


def path_of(names: Iterable[str]) -> str:
    """Return the jobs of a circle in words, hidden jobs in a row as one."""
    return " → ".join(name for name, _ in groupby(names))


async def _refuse_fan_outs(
    definitions: Mapping[str, JobDefinition], known: Mapping[str, JobDefinition], may_see: MaySee
) -> None:
    """Refuse definitions that depend on a job with several executions for an instant."""
    for name, definition in definitions.items():
        for job in upstream_jobs(definition.depends_on):
            if not fans_out(known.get(job)):
                continue
            shown = f"`{job}`" if job in definitions or await may_see(job) else HIDDEN
            reason = f"{shown} runs on several shards, and a dependency is the last run of a job: depend on a job with one run"
            problem = DefinitionProblem(reason, job=f"job `{name}`", field="depends_on", code="not-supported")
            raise DefinitionError(problem)
