"""Check whether triggers on events take every event."""

from datetime import timedelta
from itertools import islice
from typing import Final

from ....domain.text import counted
from ...ignored_events import read_ignored, shown
from ..findings import CheckContext, Finding, ok, warn

RECENT: Final = timedelta(minutes=5)
"""The event listener records events that wait for room once a minute."""
MAX_JOBS: Final = 500
"""Jobs with debounced triggers whose records are read."""
MAX_LISTED: Final = 10
"""Jobs that a finding names."""


async def keys(context: CheckContext) -> Finding:
    """Report triggers whose events wait because of too many keys (`trigger-keys`)."""
    definitions = (registration.definition for registration in await context.registrations())
    debounced = (job.name for job in definitions if any(trigger.debounce is not None for trigger in job.triggers))
    full = [job for job in islice(debounced, MAX_JOBS) if await _is_full(context, job)]
    if not full:
        return ok("trigger-keys", "no trigger has too many keys that wait")
    more = ", …" if len(full) > MAX_LISTED else ""
    return warn(
        "trigger-keys",
        f"{counted(len(full), 'job')} with a debounced trigger that has too many keys: {', '.join(full[:MAX_LISTED])}{more}",
        means="events of further keys wait in their stream, which may drop them when it is full",
        do="choose a `key` with fewer values, or a shorter `debounce`; or raise `triggers.max_keys`",
        jobs=[*full[:MAX_LISTED]],
    )


async def _is_full(context: CheckContext, job: str) -> bool:
    records = map(shown, await read_ignored(context.target.log, job))
    return any(each.reason == "too_many_keys" and context.age(each.recorded_at) < RECENT for each in records)
