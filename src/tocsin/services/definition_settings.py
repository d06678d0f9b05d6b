"""Names that definitions refer to in the settings, and warnings about the others."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from ..domain.definition import JobDefinition
from ..domain.formats.document import nearest
from ..settings import Settings
from .jobs.event_triggers import OpenedPaths, absent_sources, unopened_sources, work_queue_sources


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
        yield from unopened_sources(definitions, self.streams, self.buckets, self.webhooks)
        yield from absent_sources(definitions, self.streams, self.absent)
        yield from work_queue_sources(definitions, self.streams, self.work_queues)


def needs_settings(definitions: Iterable[JobDefinition]) -> bool:
    """Return whether definitions name channels or sources of triggers."""
    return any(definition.notify is not None or definition.triggers for definition in definitions)
