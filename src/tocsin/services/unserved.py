"""Queues of jobs that no worker reads, and functions that none has.

Nothing is refused because of them: a worker may come later. Executors of hip-62's queue do not say what they can do.
"""

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..domain.agent import AgentRecord, AgentState
from ..domain.definition import JobDefinition
from ..domain.definition.builtin_work import PREFIX, is_builtin
from ..domain.text import counted

MAX_HINTS: Final = 100
"""The number of findings with hints: a search for similar names is slow."""
SHOWN_JOBS: Final = 3
"""Jobs in the text of a finding."""


@dataclass(frozen=True, slots=True)
class Unserved:
    """A queue or a function of jobs that no worker serves."""

    queue: str
    jobs: tuple[str, ...]
    """The jobs that name it; empty: only tasks that wait need it, of jobs that are not registered."""
    function: str | None = None
    """The function; None: no worker reads the queue."""
    nearest: str | None = None
    """The most similar function that a worker of the queue has, or the most similar queue that a worker reads."""
    elsewhere: str | None = None
    """Another queue with workers for the function."""
    ungranted: str | None = None
    """The name of an agent that has the function and may not get its tasks."""
    inactive: tuple[str, ...] = ()
    """The names of agents that would serve it, but are disabled or draining."""

    def __str__(self) -> str:
        of_jobs = f"({self._needed_by()})"
        if self.ungranted is not None:
            allow = f"tocsin agents allow {self.ungranted} --queue {self.queue} --function '{self.function}'"
            return f"no live agent of queue `{self.queue}` may get `{self.function}` {of_jobs}; run `{allow}`"
        what = (
            f"no worker reads queue `{self.queue}`"
            if self.function is None
            else f"no live agent of queue `{self.queue}` has `{self.function}`"
        )
        return f"{what} {of_jobs}{self._hint()}"

    def _needed_by(self) -> str:
        if not self.jobs:
            return "tasks wait"
        more = len(self.jobs) - SHOWN_JOBS
        names = ", ".join(self.jobs[:SHOWN_JOBS])
        return f"{'job' if len(self.jobs) == 1 else 'jobs'} {names}{f' and {more:,} more' if more > 0 else ''}"

    def _hint(self) -> str:
        if self.inactive:
            return f"; disabled or draining: {', '.join(self.inactive[:SHOWN_JOBS])}"
        if self.function is not None and is_builtin(self.function):
            return f"; start one: `tocsin worker --builtin {self.function.removeprefix(PREFIX)} --queue {self.queue}`"
        if self.elsewhere is not None:
            return f"; the workers of queue `{self.elsewhere}` have {'it' if self.function else 'its functions'}"
        if self.nearest is not None:
            return f"; did you mean `{self.nearest}`?"
        return f"; start one: `Worker(queues=[{self.queue!r}])`" if self.function is None else ""


def unserved(
    definitions: Iterable[JobDefinition],
    workers: Iterable[AgentRecord],
    *,
    outside: Iterable[str] = (),
    waiting: Mapping[str, Iterable[str]] | None = None,
) -> list[Unserved]:
    """Return what enabled jobs need and no worker serves, except in the queues `outside`.

    `waiting`: the functions of tasks that wait, by queue. They count where workers read the queue: a job may be gone,
    or was never registered, as one of the Open Job Spec.
    """
    skipped = set(outside)
    needed: dict[str, dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    for definition in definitions:
        for step in definition.steps() if definition.enabled else ():
            if (queue := step.queue or definition.queue) not in skipped:
                needed[queue][step.function][definition.name] = None
    search = WorkerSearch(workers)
    for queue, functions in (waiting or {}).items():
        if queue not in skipped and search.reads(queue):
            needed[queue] |= {function: needed[queue][function] for function in functions}
    return search.findings(needed)


class WorkerSearch:
    """Compares what jobs need with the workers that are not lost.

    All findings of a search together have at most `MAX_HINTS` hints.
    """

    def __init__(self, workers: Iterable[AgentRecord]) -> None:
        self._readers: dict[str, list[AgentRecord]] = defaultdict(list)
        self._inactive: dict[str, list[AgentRecord]] = defaultdict(list)
        for worker in workers:
            if worker.state is AgentState.LOST:
                continue
            by_queue = self._readers if worker.state is AgentState.ENABLED else self._inactive
            for queue in worker.queues:
                by_queue[queue].append(worker)
        self._served: dict[str, set[str]] = {}
        """The functions that agents of a queue have and may get."""
        self._hints = MAX_HINTS

    def reads(self, queue: str) -> bool:
        return bool(self._readers[queue])

    def findings(self, needed: Mapping[str, Mapping[str, Mapping[str, None]]]) -> list[Unserved]:
        """Return the findings by queue; `needed`: the jobs by queue and function."""
        found: list[Unserved] = []
        for queue, functions in needed.items():
            if self._readers[queue]:
                found += [
                    self._function(queue, function, tuple(jobs))
                    for function, jobs in functions.items()
                    if not self._is_served(queue, function)
                ]
            else:
                found.append(self._queue(queue, functions))
        return found

    def lacks(self, job: str, queue: str, function: str) -> Unserved | None:
        """Return what a task lacks; None: a worker has its function."""
        return next(iter(self.findings({queue: {function: {job: None}}})), None)

    def _is_served(self, queue: str, function: str) -> bool:
        readers = self._readers[queue]
        if queue not in self._served:
            agents = [worker for worker in readers if worker.kind == "agent"]
            self._served[queue] = {f for agent in agents for f in agent.functions if agent.may_get(queue, f)}
        if function in self._served[queue]:
            return True
        # Only agents get the specification of a built-in function.
        return not is_builtin(function) and any(worker.has(function) for worker in readers if worker.kind != "agent")

    def _queue(self, queue: str, functions: Mapping[str, Mapping[str, None]]) -> Unserved:
        jobs = tuple(dict.fromkeys(job for of_function in functions.values() for job in of_function))
        inactive = _names(self._inactive[queue])
        is_hinted = not inactive and self._takes_hint()
        return Unserved(
            queue,
            jobs,
            nearest=_nearest(queue, self._read_queues()) if is_hinted else None,
            elsewhere=self._elsewhere(functions) if is_hinted else None,
            inactive=inactive,
        )

    def _function(self, queue: str, function: str, jobs: tuple[str, ...]) -> Unserved:
        ungranted = next((worker.name for worker in self._readers[queue] if worker.has(function)), None)
        inactive = _names(worker for worker in self._inactive[queue] if worker.has(function))
        is_hinted = ungranted is None and not inactive and self._takes_hint()
        known = sorted(self._served[queue]) if is_hinted else ()
        return Unserved(
            queue,
            jobs,
            function,
            nearest=_nearest(function, known) if is_hinted else None,
            elsewhere=self._elsewhere((function,)) if is_hinted else None,
            ungranted=ungranted,
            inactive=inactive,
        )

    def _takes_hint(self) -> bool:
        self._hints -= 1
        return self._hints >= 0

    def _read_queues(self) -> list[str]:
        return sorted(queue for queue, readers in self._readers.items() if readers)

    def _elsewhere(self, functions: Iterable[str]) -> str | None:
        """Return the first queue whose registered agents have all functions."""
        wanted = list(functions)
        for queue in self._read_queues():
            known = {f for worker in self._readers[queue] if worker.kind == "agent" for f in worker.functions}
            if known.issuperset(wanted):
                return queue
        return None


def _names(workers: Iterable[AgentRecord]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(worker.name for worker in workers))


def _nearest(name: str, known: Sequence[str]) -> str | None:
    nearest = difflib.get_close_matches(name, known, n=1)
    return nearest[0] if nearest else None


def in_short(missing: Iterable[Unserved]) -> dict[str, int | None]:
    """Count the functions without a worker by queue; None: no worker reads it."""
    short: dict[str, int | None] = {}
    for each in missing:
        number = short.get(each.queue) or 0
        short[each.queue] = None if each.function is None else number + 1
    return short


def line_of(queue: str, functions: int | None) -> str:
    """Return a line for people on what a queue lacks."""
    if functions is None:
        return f"no worker reads queue `{queue}`, which jobs name"
    return f"no worker of queue `{queue}` has {counted(functions, 'function')} of jobs"
