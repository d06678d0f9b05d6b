"""The fields of every job that a filter of a list compares."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from typing_extensions import override

from .job import Job
from .job_follower import JobFollower

MAX_TEXT: Final = 1_000
"""Characters that are kept of a job. A job with a longer text is always a candidate."""


class _Keys(NamedTuple):
    text: str | None
    """The name, the description and the tags, case-folded."""
    queues: tuple[str, ...]
    owner: str | None
    job: Job


class SearchKeys(JobFollower):
    """Keeps the fields of every job that filters compare."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[str, _Keys] = {}

    def candidates(self, texts: Sequence[str], queue: str | None, owner: str | None) -> list[Job]:
        """Return the jobs that may have some texts, a queue and an owner.

        They are in no order. The texts are case-folded. Call it within `following`.
        """
        return [
            job
            for text, queues, of_owner, job in self._keys.values()
            if (text is None or all(wanted in text for wanted in texts))
            and (queue is None or queue in queues)
            and (owner is None or owner == of_owner)
        ]

    @override
    def _add(self, job: Job) -> None:
        definition = job.definition
        text = "\n".join((definition.name, definition.description or "", *definition.tags)).casefold()
        queues = dict.fromkeys(step.queue or definition.queue for step in definition.dag) or (definition.queue,)
        self._keys[job.name] = _Keys(text if len(text) <= MAX_TEXT else None, tuple(queues), job.owner, job)

    @override
    def _remove(self, job: Job) -> None:
        del self._keys[job.name]

    @override
    def _clear(self) -> None:
        self._keys = {}
