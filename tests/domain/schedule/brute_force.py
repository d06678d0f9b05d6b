"""The instants of an expression by the audit's enumerator, which shares no code with the calendar."""

from datetime import datetime
from functools import cache
from importlib.resources import files
from zoneinfo import ZoneInfo

from tocsin.domain.definition import JobDefinition
from tocsin.services.audit.enumerator import instants


@cache
def zone(name: str) -> ZoneInfo:
    """The zone of the tzdata package: the machine may have an older release."""
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as data:
        return ZoneInfo.from_file(data, key=name)


def found(schedule: str, timezone: str, after: datetime, until: datetime) -> list[datetime]:
    """The instants in (after, until] that fire."""
    rule = JobDefinition.model_validate({"name": "job", "function": "f", "schedule": schedule, "timezone": timezone})
    return [at for (at, is_skipped), _ in instants(rule, after, until, after) if not is_skipped]
