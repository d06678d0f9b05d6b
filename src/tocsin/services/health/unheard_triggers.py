"""Triggers whose events no stream can bring, and events that wait."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ...domain import ids
from ...domain.definition import EventTrigger, JobDefinition
from ...domain.job_record import Registration
from ...ports.server_inspection import ServerInspection, TriggerProgress
from ...settings import Settings
from ..definition_settings import DefinitionSettings, UnheardStreams
from ..jobs.registry import each
from ..jobs.transports import outside_stream

Progress: TypeAlias = dict[str, Mapping[str, TriggerProgress] | None]
"""The durables of triggers in each stream, by its name; None: it does not exist."""


async def unheard_streams(settings: Settings, inspection: ServerInspection) -> UnheardStreams:
    """Return the streams that the settings open to triggers, and that no trigger can hear."""
    opened = DefinitionSettings.of(settings)
    names = sorted({*opened.streams, *opened.buckets})
    states = await each(names, inspection.stream)  # not their consumers, which may be very many
    found = dict(zip(names, states, strict=True))
    return UnheardStreams(
        tuple(name for name, state in found.items() if state is None),
        tuple(name for name, state in found.items() if state is not None and state.is_work_queue),
    )


async def unheard_triggers(
    settings: Settings, inspection: ServerInspection, registrations: Iterable[Registration], progress: Progress
) -> tuple[str, ...]:
    """Return the triggers in force whose source is not opened or does not exist.

    Each is named as by `shown`. Streams that are examined are added to `progress`.
    """
    opened = DefinitionSettings.of(settings)
    unheard: list[str] = []
    for definition, trigger in in_force(registrations):
        is_heard = is_opened(opened, definition, trigger)
        stream = outside_stream(trigger, opened.streams)
        if is_heard and stream is not None:
            if stream not in progress:
                progress[stream] = await inspection.triggers(stream)
            is_heard = progress[stream] is not None
        if not is_heard:
            unheard.append(shown(definition, trigger))
    return tuple(unheard)


def waiting_events(settings: Settings, registrations: Iterable[Registration], progress: Progress) -> Mapping[str, int]:
    """Return the events that wait in streams of programs, by trigger.

    Triggers in force without such events are left out, as are streams that are not in `progress`.
    """
    opened, waiting = DefinitionSettings.of(settings), dict[str, int]()
    for definition, trigger in in_force(registrations):
        stream = outside_stream(trigger, opened.streams)
        of_stream = None if stream is None else progress.get(stream)
        state = (of_stream or {}).get(ids.event_durable(definition.name, trigger.source))
        if state is not None and state.waiting:
            name = shown(definition, trigger)  # without the stream, of which a job may name several
            waiting[name] = waiting.get(name, 0) + state.waiting
    return waiting


def in_force(registrations: Iterable[Registration]) -> Sequence[tuple[JobDefinition, EventTrigger]]:
    """Return the triggers of jobs that are neither paused nor disabled."""
    jobs = [each.definition for each in registrations if not each.paused and each.definition.enabled]
    return [(job, trigger) for job in sorted(jobs, key=lambda each: each.name) for trigger in job.triggers]


def shown(definition: JobDefinition, trigger: EventTrigger) -> str:
    """Return a job and the source of its trigger, such as `invoice (orders.>)`."""
    return f"{definition.name} ({trigger.source_text})"


def is_opened(opened: DefinitionSettings, definition: JobDefinition, trigger: EventTrigger) -> bool:
    alone = definition.model_copy(update={"triggers": (trigger,), "notify": None})
    return not any(opened.warnings([alone]))
