"""The jobs with which a simulation starts, and the subjects that they open."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

from ..adapters.files import load
from ..domain.definition import JobDefinition
from ..settings.triggers import Triggers

Definitions: TypeAlias = Iterable[JobDefinition | str | Path]
"""Definitions, and files of them."""
STREAM: Final = "EVENTS"
"""The stream of messages for triggers that name no stream."""


def opened_by(definitions: Iterable[JobDefinition], given: Triggers) -> Triggers:
    """Return the settings of triggers, which open the subjects of jobs if they open none."""
    if given.streams or given.subjects:
        return given
    streams: dict[str, tuple[str, ...]] = {}
    for definition in definitions:
        for trigger in definition.triggers:
            if trigger.nats is not None:
                stream = trigger.stream or STREAM
                streams[stream] = (*streams.get(stream, ()), trigger.nats)
    return given.model_copy(update={"streams": streams})


def read(definitions: Definitions) -> tuple[JobDefinition, ...]:
    """Return definitions, of which some are files.

    Raises:
        DefinitionError: a file is invalid.
    """
    found: list[JobDefinition] = []
    for each in definitions:
        found += [each] if isinstance(each, JobDefinition) else load(each)
    return tuple(found)
