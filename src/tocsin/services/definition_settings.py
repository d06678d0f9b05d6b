"""Names that definitions refer to in the settings, and warnings about the others."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from .. import subjects
from ..domain.definition import EventTrigger, JobDefinition
from ..domain.definition.webhook_fields import opens, secret_name
from ..domain.formats.document import nearest
from ..settings import Settings
from ..settings.triggers import bucket_place, stream_of
from .jobs.transports import outside_stream


def unknown_channels(definitions: Iterable[JobDefinition], known: Collection[str]) -> Iterator[str]:
    """Yield a warning for each job and channel that the settings do not have."""
    for definition in definitions:
        for channel in definition.channels:
            if channel not in known:
                suggestion = nearest(channel, known)
                hint = f"did you mean `{suggestion}`?" if suggestion else "add it, or no notification is delivered"
                yield f"the settings have no channel `{channel}` (job {definition.name}); {hint}"


class UnheardStreams(NamedTuple):
    """Streams that the settings open, and that no trigger can hear."""

    absent: Sequence[str] = ()
    """Those that do not exist."""
    work_queues: Sequence[str] = ()
    """Those with the retention `workqueue`."""


@dataclass(frozen=True, slots=True)
class OpenedPaths:
    """The paths of webhooks that the settings open with one secret."""

    paths: Sequence[str]
    """The paths; `/FOLDER/*` opens each path directly in a folder."""
    secret: str | None = None
    """The name of the secret; None: it is not shown here."""


@dataclass(frozen=True, slots=True)
class DefinitionSettings:
    """The channels and the sources of triggers that definitions may name."""

    channels: Sequence[str] = ()
    """The channels of notifications, sorted."""
    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The subjects of each stream that are open to triggers of jobs."""
    buckets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The same for the streams of KV buckets (`KV_NAME`) and object stores (`OBJ_NAME`)."""
    webhooks: Sequence[OpenedPaths] = ()
    """The paths of webhooks that are open, for each secret."""
    absent: Sequence[str] = ()
    """Streams that are open, and do not exist, also those of buckets; sorted."""
    work_queues: Sequence[str] = ()
    """Streams that are open, and have the retention `workqueue`, so that no trigger can hear them; sorted."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        opened = settings.triggers
        webhooks = [OpenedPaths(paths, secret) for secret, paths in opened.webhooks.items()]
        return cls(sorted(settings.notifications.channels), settings.opened_streams, opened.buckets, webhooks)

    def without(self, unheard: UnheardStreams) -> Self:
        """Return the same with the streams that no trigger can hear."""
        return replace(self, absent=unheard.absent, work_queues=unheard.work_queues)

    def shown_to(self, reaches: Callable[[str], bool]) -> Self:
        """Return the same with the channels that a caller reaches.

        It has no names of secrets, because some of them are paths of files.
        """
        shown = sorted((OpenedPaths(each.paths) for each in self.webhooks), key=lambda each: tuple(each.paths))
        return replace(self, channels=[*filter(reaches, self.channels)], webhooks=shown)

    def warnings(self, definitions: Sequence[JobDefinition]) -> Iterator[str]:
        """Yield a warning for each name that the settings or the server lack."""
        yield from unknown_channels(definitions, self.channels)
        triggers = [(definition.name, trigger) for definition in definitions for trigger in definition.triggers]
        for warnings in (self._unopened, self._absent, self._work_queue):
            yield from (warning for job, trigger in triggers if (warning := warnings(job, trigger)) is not None)

    def _unopened(self, job: str, trigger: EventTrigger) -> str | None:
        """Return a warning if the settings do not open the source of a trigger."""
        place = bucket_place(trigger)
        if trigger.nats is not None and stream_of(trigger, self.streams) is None:
            where = f"in the stream `{trigger.stream}`" if trigger.stream else "in exactly one stream"
            return (
                f"the settings do not open `{trigger.nats}` {where} (job {job}); add it to "
                "`triggers.streams` or `triggers.subjects`, or its events start nothing"
            )
        if place is not None and not any(subjects.covers(each, place[1]) for each in self.buckets.get(place[0], ())):
            setting = "kv" if trigger.kv is not None else "objects"
            return (
                f"the settings do not open `{trigger.kv or trigger.object}` (job {job}); add it to `triggers.{setting}`, or "
                "its events start nothing"
            )
        if trigger.webhook is not None and not self._opens(trigger.webhook, trigger.secret):
            where = f"for the secret `{trigger.secret}`" if trigger.secret else "for exactly one secret"
            return (
                f"the settings do not open `{trigger.webhook}` {where} (job {job}); add it to `triggers.webhooks`, or the API "
                "refuses its requests"
            )
        return None

    def _opens(self, path: str, secret: str | None) -> bool:
        """Return whether the settings open a webhook, as far as secrets are named."""
        found = [each.secret for each in self.webhooks if any(opens(pattern, path) for pattern in each.paths)]
        return len(found) == 1 if secret is None else any(name in {None, secret_name(secret)} for name in found)

    def _absent(self, job: str, trigger: EventTrigger) -> str | None:
        stream = outside_stream(trigger, self.streams)
        if stream not in self.absent:
            return None
        kind, name = ("stream", stream) if trigger.nats is not None else ("bucket", trigger.bucket[0])
        return (
            f"the {kind} `{name}` of `{trigger.source_text}` does not exist (job {job}); create it, or "
            "its events start nothing"
        )

    def _work_queue(self, job: str, trigger: EventTrigger) -> str | None:
        stream = stream_of(trigger, self.streams)
        if stream not in self.work_queues:
            return None
        return (
            f"the stream `{stream}` of `{trigger.nats}` is a work queue, whose messages are for one reader (job {job}); let it "
            "republish its messages on other subjects and add these to `triggers.subjects`, or its events start nothing"
        )


def needs_settings(definitions: Iterable[JobDefinition]) -> bool:
    """Return whether definitions name channels or sources of triggers."""
    return any(definition.notify is not None or definition.triggers for definition in definitions)
