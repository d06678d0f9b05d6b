"""Warnings about channels that jobs name and the settings do not have."""

from collections.abc import Collection, Iterable, Iterator

from ...domain.definition import JobDefinition
from ...domain.formats.document import nearest


def unknown_channels(definitions: Iterable[JobDefinition], known: Collection[str]) -> Iterator[str]:
    """Yield a warning for each job and channel that the settings do not have."""
    for definition in definitions:
        for channel in definition.channels:
            if channel not in known:
                suggestion = nearest(channel, known)
                hint = f"did you mean `{suggestion}`?" if suggestion else "add it, or no notification is delivered"
                yield f"the settings have no channel `{channel}` (job {definition.name}); {hint}"
