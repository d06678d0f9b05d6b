"""Checks of the triggers of definitions against the other jobs and the settings."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ... import subjects
from ...domain.definition import DefinitionError, DefinitionProblem, EventTrigger, JobDefinition
from ...domain.definition.webhook_fields import opens, secret_name
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


def absent_sources(
    definitions: Iterable[JobDefinition], opened: Mapping[str, Sequence[str]], absent: Collection[str]
) -> Iterator[str]:
    """Yield a warning for each trigger whose stream or bucket does not exist.

    `opened`: as for `stream_of`. `absent`: the streams that do not exist.
    """
    for definition in definitions:
        for trigger in definition.triggers:
            stream = outside_stream(trigger, opened)
            if stream not in absent:
                continue
            kind, name = ("stream", stream) if trigger.nats is not None else ("bucket", trigger.bucket[0])
            yield (
                f"the {kind} `{name}` of `{trigger.source_text}` does not exist (job {definition.name}); create it, or "
                "its events start nothing"
            )


def work_queue_sources(
    definitions: Iterable[JobDefinition], opened: Mapping[str, Sequence[str]], work_queues: Collection[str]
) -> Iterator[str]:
    """Yield a warning for each trigger whose stream is a work queue.

    `opened`: as for `stream_of`. `work_queues`: the streams with the retention `workqueue`.
    """
    for definition in definitions:
        for trigger in definition.triggers:
            stream = stream_of(trigger, opened)
            if stream in work_queues:
                yield (
                    f"the stream `{stream}` of `{trigger.nats}` is a work queue, whose messages are for one reader (job {definition.name}); let it "
                    "republish its messages on other subjects and add these to `triggers.subjects`, or its events start nothing"
                )


@dataclass(frozen=True, slots=True)
class OpenedPaths:
    """The paths of webhooks that the settings open with one secret."""

    paths: Sequence[str]
    """The paths; `/FOLDER/*` opens each path directly in a folder."""
    secret: str | None = None
    """The name of the secret; None: it is not shown here."""


def _opens_webhook(opened: Iterable[OpenedPaths], path: str, secret: str | None) -> bool:
    """Return whether the settings open a webhook, as far as secrets are named."""
    found = [each.secret for each in opened if any(opens(pattern, path) for pattern in each.paths)]
    return len(found) == 1 if secret is None else any(name in {None, secret_name(secret)} for name in found)


def unopened_sources(
    definitions: Iterable[JobDefinition],
    streams: Mapping[str, Sequence[str]],
    buckets: Mapping[str, Sequence[str]],
    webhooks: Sequence[OpenedPaths],
) -> Iterator[str]:
    """Yield a warning for each source of a trigger that the settings do not open.

    `streams`, `buckets`: the opened subjects by stream.
    """
    for definition in definitions:
        for trigger in definition.triggers:
            if trigger.nats is not None and stream_of(trigger, streams) is None:
                where = f"in the stream `{trigger.stream}`" if trigger.stream else "in exactly one stream"
                yield (
                    f"the settings do not open `{trigger.nats}` {where} (job {definition.name}); add it to "
                    "`triggers.streams` or `triggers.subjects`, or its events start nothing"
                )
            place = bucket_place(trigger)
            if place is not None and not any(subjects.covers(each, place[1]) for each in buckets.get(place[0], ())):
                setting = "kv" if trigger.kv is not None else "objects"
                yield (
                    f"the settings do not open `{trigger.kv or trigger.object}` (job {definition.name}); add it to `triggers.{setting}`, or "
                    "its events start nothing"
                )
            path = trigger.webhook
            if path is not None and not _opens_webhook(webhooks, path, trigger.secret):
                where = f"for the secret `{trigger.secret}`" if trigger.secret else "for exactly one secret"
                yield (
                    f"the settings do not open `{path}` {where} (job {definition.name}); add it to `triggers.webhooks`, or the API "
                    "refuses its requests"
                )


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
