"""Queues and functions of changed jobs that no worker serves, for answers of the API."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Final

from pydantic import BaseModel

from ....domain.access import Principal
from ....domain.agent import AgentRecord
from ....domain.definition import JobDefinition
from ....ports import LogUnavailable
from ....services.agents import AgentRegistry
from ....services.unserved import unserved
from ..auth.visibility import narrowed
from .dependencies import Components

MAX_UNSERVED: Final = 100
"""Queues and functions without a worker that an answer lists."""
_MAX_JOBS: Final = 20
"""Jobs of each that an answer lists."""


class UnservedTasks(BaseModel, use_attribute_docstrings=True):
    """A queue or a function of jobs that no worker serves."""

    queue: str
    jobs: list[str]
    function: str | None
    """null: no worker reads the queue."""
    nearest: str | None
    """The most similar function of the queue's workers, or the most similar queue that a worker reads."""
    elsewhere: str | None
    """A queue whose workers have the function."""
    message: str


async def known_workers(here: Components, caller: Principal) -> Sequence[AgentRecord] | None:
    """Return the agents of which a caller may know.

    None: the log does not answer, although the jobs are changed.
    """
    with suppress(LogUnavailable):
        return narrowed(caller, await AgentRegistry(here.log, here.projections).agents())
    return None


def unserved_tasks(
    definitions: Sequence[JobDefinition], workers: Sequence[AgentRecord] | None, here: Components
) -> list[UnservedTasks]:
    """Return what jobs need and no worker serves; nothing if the workers are not known."""
    missing = [] if workers is None else unserved(definitions, workers, outside=here.settings.bridged_queues)
    return [
        UnservedTasks.model_validate(asdict(each) | {"jobs": each.jobs[:_MAX_JOBS], "message": str(each)})
        for each in missing[:MAX_UNSERVED]
    ]
