"""Filters of a list of jobs."""

from dataclasses import dataclass

from ...domain.definition import JobDefinition
from ...domain.identity import typed
from .job import Job, JobStatus


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

    def includes(self, job: Job) -> bool:
        """Return whether a job meets all conditions. Cheap conditions are tested first."""
        definition = job.definition
        return (
            (self.tag is None or self.tag in definition.tags)
            and (self.owner is None or job.is_owned_by({typed(self.owner)}))
            and (self.queue is None or _uses(definition, self.queue))
            and (self.search is None or _mentions(definition, self.search.casefold()))
            and (self.state is None or job.status == self.state)
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
