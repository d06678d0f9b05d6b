"""Check whether the calendars of jobs are known for some time to come."""

from typing import Final

from ....domain.schedule import calendar_warnings
from ..findings import CheckContext, Finding, ok, warn

MAX_LISTED: Final = 10
"""Jobs that a finding names."""


async def ends(context: CheckContext) -> list[Finding]:
    """Report jobs with a calendar whose last known day is near or past (`calendar-ends`)."""
    today = context.now.date()
    found: dict[str, str] = {}
    for registration in await context.registrations():
        definition = registration.definition
        if definition.enabled and (warnings := calendar_warnings(definition.day_rules, today)):
            found[definition.name] = warnings[0]
    if not found:
        return [ok("calendar-ends", "the calendars of all jobs are known for the next weeks")]
    jobs = sorted(found)[:MAX_LISTED]
    others = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
    return [
        warn(
            "calendar-ends",
            f"calendars of {len(found)} jobs end: {'; '.join(f'`{job}`: {found[job]}' for job in jobs)}{others}",
            means="after its last known day a calendar has no days: `exclude` lets jobs fire, and `only` lets none fire",
            do="run `tocsin jobs apply` again, which looks calendars of countries and files up; add days to the others, or a later `until`",
            jobs=list(jobs),
        )
    ]
