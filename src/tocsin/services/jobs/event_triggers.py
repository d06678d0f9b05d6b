"""Checks of the triggers of definitions against the other jobs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from ...domain.definition import DefinitionError, DefinitionProblem, EventTrigger, JobDefinition
from ...domain.event_trigger import started_by, webhooks_of
from ...domain.ledger import Ledger
from ...settings.triggers import bucket_place, stream_of
from .dependencies import MaySee, follow, refuse_circle, shown
from .job import Job


async def check_trigger_circles(
    definitions: Mapping[str, JobDefinition],
    load: Callable[[Sequence[str]], Awaitable[Sequence[Ledger]]],
    may_see: MaySee,
) -> None:
    """Refuse definitions whose triggers would start each other in a circle.

    `load` and `may_see`: as for `check_dependencies`. The event listener starts nothing for a circle that two registrations at the same
    moment close.
    """
    graph: dict[str, Sequence[str]] = {
        name: started_by(definition) for name, definition in definitions.items() if definition.triggers
    }
    await follow(graph, definitions, load, started_by)
    what = "jobs would start each other in a circle, and never stop"
    await refuse_circle(graph, definitions, may_see, "triggers", what)


def outside_stream(trigger: EventTrigger, opened: Mapping[str, Sequence[str]]) -> str | None:
    """Return the stream of a program that a trigger hears.

    None: its source is a job or a webhook, or not exactly one stream is open for it. `opened`: as for `stream_of`.
    """
    place = bucket_place(trigger)
    return stream_of(trigger, opened) if place is None else place[0]


async def check_webhook_paths(
    definitions: Mapping[str, JobDefinition],
    list_jobs: Callable[[], Awaitable[Sequence[Job]]],
    may_see: MaySee,
) -> None:
    """Refuse webhooks with the path of another job, also of a paused or disabled job.

    The API refuses all requests to a path that two registrations at the same moment give to two jobs.

    Raises:
        DefinitionError: names the other job, unless the caller may not see it.
    """
    if not any(trigger.webhook for definition in definitions.values() for trigger in definition.triggers):
        return
    stored = [job.definition for job in await list_jobs() if job.name not in definitions]
    taken = {path: definition.name for definition in stored for path in webhooks_of(definition)}
    for name, definition in sorted(definitions.items()):
        for number, trigger in enumerate(definition.triggers):
            if trigger.webhook is None:
                continue
            other = taken.setdefault(trigger.webhook, name)
            if other != name:
                reason = f"{await shown(other, definitions, may_see)} has this path already: choose another path"
                problem = DefinitionProblem(
                    reason,
                    job=f"job `{name}`",
                    field=f"triggers[{number}].webhook",
                    value=f"`{trigger.webhook}`",
                    code="duplicate-trigger",
                )
                raise DefinitionError(problem)
