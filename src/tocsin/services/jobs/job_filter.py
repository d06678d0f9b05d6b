"""Filters of a list of jobs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from ...domain.definition import JobDefinition
from ...domain.identity import typed
from ..calculations import Effort
from .job import Job, JobStatus
from .next_instants import NextInstants
from .search_keys import SearchKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """The conditions of a list of jobs. A field that is None filters nothing."""

    search: str | None = None
    """Text in the name, the description or a tag, in any case."""
    state: JobStatus | None = None
    queue: str | None = None
    """The queue of at least one step."""
    tag: str | None = None
    owner: str | None = None

    def candidates(
        self, jobs: Sequence[Job], keys: SearchKeys, instants: NextInstants, effort: Effort
    ) -> Sequence[Job]:
        """Return the jobs that may meet the conditions, from what is kept of them.

        `jobs` and the result are sorted by name.
        """
        texts = [text.casefold() for text in (self.search, self.tag) if text is not None]
        if texts or self.queue is not None or self.owner is not None:
            owner = None if self.owner is None else typed(self.owner)
            with keys.following(jobs, effort) as is_complete:
                if is_complete:
                    return keys.candidates(texts, self.queue, owner)
        elif self.state is not None:
            with instants.following(jobs, effort) as is_complete:
                if is_complete:
                    return sorted(instants.in_state(self.state), key=attrgetter("name"))
        return jobs

    def includes(self, job: Job, status_of: Callable[[Job], JobStatus]) -> bool:
        """Return whether a job meets all conditions. Cheap conditions are tested first."""
        definition = job.definition
        return (
            (self.tag is None or self.tag in definition.tags)
            and (self.owner is None or job.owner == typed(self.owner))
            and (self.queue is None or _uses(definition, self.queue))
            and (self.search is None or _mentions(definition, self.search.casefold()))
            and (self.state is None or status_of(job) == self.state)
        )


def _uses(definition: JobDefinition, queue: str) -> bool:
    if definition.function is not None:
        return definition.queue == queue
    return any((step.queue or definition.queue) == queue for step in definition.dag)


def _mentions(definition: JobDefinition, text: str) -> bool:
    return (
        text in definition.name
        or (definition.description is not None and text in definition.description.casefold())
        or any(text in tag.casefold() for tag in definition.tags)
    )
