"""The graph of dependencies between jobs, as a registration would make it (scratchbird, Job Dependencies)."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain, groupby
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
        return f"job `{self.job}` depends on job `{self.depends_on}`, which is not registered: its executions wait until it is and has run"


async def all_visible(_: str) -> bool:
    return True


async def check_dependencies(
    definitions: Mapping[str, JobDefinition],
    load: Callable[[Sequence[str]], Awaitable[Sequence[Ledger]]],
    may_see: MaySee = all_visible,
) -> tuple[UnknownDependency, ...]:
    """Refuse definitions that close a circle of dependencies; return unknown dependencies.

    `load` returns the ledgers of jobs, and `may_see` whether the caller may know of a job. Two registrations at the same moment may
    still make a circle together; then its executions end as `dependency_missing`, and `circle_of` finds it.

    Raises:
        DefinitionError: a dependency fans out; or there is a circle, and the error names its jobs, except those that the caller may
            not see.
    """
    graph = {name: _upstream(definition) for name, definition in definitions.items() if definition.depends_on}
    known = await follow(graph, definitions, load, _upstream)
    await _refuse_fan_outs(definitions, known, may_see)
    await refuse_circle(graph, definitions, may_see, "depends_on", "jobs would wait for each other in a circle")
    edges = ((name, job) for name in definitions for job in graph.get(name, ()))
    return tuple(UnknownDependency(name, job) for name, job in edges if known[job] is None)


async def follow(
    graph: dict[str, Sequence[str]],
    definitions: Mapping[str, JobDefinition],
    load: Callable[[Sequence[str]], Awaitable[Sequence[Ledger]]],
    upstream: Callable[[JobDefinition], Sequence[str]],
) -> Mapping[str, JobDefinition | None]:
    """Add to a graph all jobs to which it leads, and return their definitions.

    None: a job is not registered. `upstream`: the jobs to which a definition leads. Only jobs without a definition in `definitions` are loaded.
    """
    known: dict[str, JobDefinition | None] = dict(definitions)
    while wanted := [job for job in dict.fromkeys(chain.from_iterable(graph.values())) if job not in graph]:
        outside = [job for job in wanted if job not in known]
        ledgers = await load(outside) if outside else ()
        known |= {job: state.definition for job, state in zip(outside, ledgers, strict=True)}
        graph |= {job: () if (found := known[job]) is None else upstream(found) for job in wanted}
    return known


async def refuse_circle(
    graph: Mapping[str, Sequence[str]], definitions: Mapping[str, JobDefinition], may_see: MaySee, field: str, what: str
) -> None:
    """Refuse definitions whose graph has a circle, at one of its jobs.

    Raises:
        DefinitionError: names the jobs of the circle, except those that the caller may not see.
    """
    if walk := find_circle(graph):
        reason = f"{what}: {path_of([await shown(name, definitions, may_see) for name in walk])}"
        name = next((name for name in walk if name in definitions), next(iter(definitions)))
        raise DefinitionError(DefinitionProblem(reason, job=f"job `{name}`", field=field, code="dependency-cycle"))


async def shown(job: str, definitions: Collection[str], may_see: MaySee) -> str:
    """Return the name of a job in an error, unless it is hidden."""
    return f"`{job}`" if job in definitions or await may_see(job) else HIDDEN


async def circle_of(
    job: str,
    depends_on: Sequence[str],
    load: Callable[[Sequence[str]], Awaitable[Sequence[Ledger]]],
    may_see: MaySee = all_visible,
) -> str | None:
    """Return the circle to which the dependencies of a job lead, in words.

    None: they lead to none. `depends_on`: the jobs for which it waits; `load` and `may_see`: as for `check_dependencies`.
    """
    graph = {job: depends_on}
    await follow(graph, {}, load, _upstream)
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


def _upstream(definition: JobDefinition) -> Sequence[str]:
    return upstream_jobs(definition.depends_on)


async def _refuse_fan_outs(
    definitions: Mapping[str, JobDefinition], known: Mapping[str, JobDefinition | None], may_see: MaySee
) -> None:
    """Refuse definitions that depend on a job with several executions for an instant."""
    for name, definition in definitions.items():
        for job in filter(lambda each: fans_out(known[each]), _upstream(definition)):
            named = await shown(job, definitions, may_see)
            reason = f"{named} runs on several shards, and a dependency is the last run of a job: depend on a job with one run"
            problem = DefinitionProblem(reason, job=f"job `{name}`", field="depends_on", code="not-supported")
            raise DefinitionError(problem)
