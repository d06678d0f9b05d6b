"""Triggers whose events no stream can bring."""

from collections.abc import Iterable

from ...domain.definition import EventTrigger
from ...domain.job_record import Registration
from ...ports.server_inspection import ServerInspection
from ...settings import Settings
from ..definition_settings import DefinitionSettings
from ..jobs.event_triggers import bucket_place, stream_of


async def unheard_triggers(
    settings: Settings, inspection: ServerInspection, registrations: Iterable[Registration]
) -> tuple[str, ...]:
    """Return the triggers in force whose source is not opened or does not exist.

    Each is the job and the source, such as `invoice (orders.>)`.
    """
    opened = DefinitionSettings.of(settings)
    exists: dict[str, bool] = {}
    unheard: list[str] = []
    for registration in sorted(registrations, key=lambda each: each.definition.name):
        definition = registration.definition
        if registration.paused or not definition.enabled:
            continue
        for trigger in definition.triggers:
            one = definition.model_copy(update={"triggers": (trigger,), "notify": None})
            place = bucket_place(trigger)
            stream = stream_of(trigger, opened.streams) if place is None else place[0]
            is_heard = not any(opened.warnings([one]))
            if is_heard and stream is not None:
                if stream not in exists:
                    exists[stream] = await inspection.triggers(stream) is not None
                is_heard = exists[stream]
            if not is_heard:
                unheard.append(f"{definition.name} ({trigger_source(trigger)})")
    return tuple(unheard)


def trigger_source(trigger: EventTrigger) -> str:
    """Return the source of a trigger as its definition writes it."""
    return trigger.nats or trigger.webhook or trigger.kv or trigger.object or f"{trigger.job} {trigger.on}"
