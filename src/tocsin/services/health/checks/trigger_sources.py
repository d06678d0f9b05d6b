"""Check whether the events of each trigger are heard, have room, and start executions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import Final

from ....domain import ids
from ....domain.definition import EventTrigger
from ....domain.text import counted
from ....ports.queries import ExecutionQuery
from ....subjects import Bucket, ends_key
from ... import past_reader
from ...definition_settings import DefinitionSettings
from ...jobs.transports import outside_stream
from ..findings import CheckContext, Finding, OverdueKind, ok, warn
from ..unheard_triggers import in_force, is_opened, shown

LATE: Final = timedelta(minutes=5)
"""The time without an acknowledgement after which events that wait are late; and of a new durable to be made."""
MAX_WAITING: Final = 10_000
"""Events of a trigger that may wait."""
MAX_JOBS: Final = 200
"""Jobs with triggers whose newest executions are read."""
REFUSALS: Final = 5
"""The newest executions of a job by events, all of which are refused."""
RECENT: Final = timedelta(days=1)
"""The age up to which executions count."""

NOT_OPENED: Final = OverdueKind(
    "trigger-not-opened",
    "triggers that the settings do not open",
    means="their events start nothing; a captured subject that was removed is captured no more",
    do="add the source to `triggers` in the settings and run `tocsin init`, or remove the trigger from the job",
    details="triggers",
)
MISSING: Final = OverdueKind(
    "trigger-source-missing",
    "triggers with a stream or a bucket that does not exist",
    means="they hear no event",
    do="create it, or correct `triggers` in the settings",
    details="triggers",
)
UNHEARD: Final = OverdueKind(
    "trigger-unheard",
    "triggers without a durable",
    means="no event listener runs, or the server refused it the durable: events until then start nothing",
    do="run `tocsin run event-listener`; its log has `trigger hears nothing` if the server refuses the durable, as that of a stream with "
    "the retention `workqueue`, which `tocsin jobs apply` warns of",
    details="triggers",
)
WAITING: Final = OverdueKind(
    "trigger-late",
    "triggers whose events wait",
    means="executions start late, and a stream that drops its oldest messages may drop events",
    do="run `tocsin run event-listener`, or more copies, and read its log for `events not handled`. If it has `many executions wait`, make the job "
    "faster, let its executions overlap, or raise its `max_waiting`",
    details="triggers",
)
REFUSING: Final = OverdueKind(
    "trigger-refusing",
    f"jobs whose newest {REFUSALS} executions by events were all refused",
    means="the job accepts none of its events: its condition, key, input or `input_schema` does not fit them",
    do="see the reason with `tocsin executions show ID`, and try a correction with `tocsin triggers test JOB --event FILE`",
    details="jobs",
    all_well="no job refuses all its events",
)


async def sources(context: CheckContext) -> list[Finding]:
    """Report triggers whose events are not heard.

    The codes are `trigger-not-opened`, `trigger-source-missing`, `trigger-unheard` and `trigger-late`.
    """
    opened = DefinitionSettings.of(context.target.settings)
    found: dict[OverdueKind, list[str]] = defaultdict(list)
    durables = dict(context.status.trigger_progress)
    triggers = in_force(await context.registrations())
    places = await context.target.projections.entries(Bucket.TRIGGERS, ends_key(">"))
    for definition, trigger in triggers:
        name = shown(definition, trigger)
        if not is_opened(opened, definition, trigger):
            found[NOT_OPENED].append(name)
            continue
        if trigger.job is not None:
            if ends_key(ids.event_durable(definition.name, trigger.source)) not in places:
                found[UNHEARD].append(name)
            continue
        stream = _stream(context, trigger, opened.streams)
        if stream not in durables:
            durables[stream] = await context.target.inspection.triggers(stream)
        of_stream = durables[stream]
        if of_stream is None:
            found[MISSING].append(name)
        elif (state := of_stream.get(ids.event_durable(definition.name, trigger.source))) is None:
            found[UNHEARD].append(name)
        elif state.waiting > MAX_WAITING or (state.waiting and state.observed_at - state.active_at > LATE):
            found[WAITING].append(f"{name}: {state.waiting:,}")
    findings = [finding for kind, names in found.items() for finding in kind.report(names)]
    return findings or [ok("trigger-unheard", f"the events of {counted(len(triggers), 'trigger')} are heard")]


async def refusals(context: CheckContext) -> list[Finding]:
    """Report jobs that refuse all their events (`trigger-refusing`)."""
    jobs = dict.fromkeys(definition.name for definition, _ in in_force(await context.registrations()))
    if not jobs or context.status.history is None:
        return []
    found = []
    async with context.target.open_history() as history:
        for job in islice(jobs, MAX_JOBS):
            query = ExecutionQuery(job=job, trigger="event", since=context.now - RECENT, limit=REFUSALS)
            rows = (await history.executions(query)).rows
            if len(rows) == REFUSALS and all(row.reason == "refused" for row in rows):
                found.append(f"{job} (newest: {rows[0].execution_id})")
    return REFUSING.report(found)


def _stream(context: CheckContext, trigger: EventTrigger, streams: Mapping[str, Sequence[str]]) -> str:
    if trigger.webhook is not None:
        return context.target.inspection.webhook_stream_name
    return outside_stream(trigger, streams) or ""


FRESH: Final = timedelta(minutes=5)
"""The event listener records events that wait for room once a minute."""
MAX_DEBOUNCED: Final = 500
"""Jobs with debounced triggers whose records are read."""
MAX_LISTED: Final = 10
"""Jobs that a finding names."""


async def keys(context: CheckContext) -> Finding:
    """Report triggers whose events wait because of too many keys (`trigger-keys`)."""
    definitions = (registration.definition for registration in await context.registrations())
    debounced = (job.name for job in definitions if any(trigger.debounce is not None for trigger in job.triggers))
    full = [job for job in islice(debounced, MAX_DEBOUNCED) if await _is_full(context, job)]
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
    records = map(past_reader.shown, await past_reader.read_ignored(context.target.log, job))
    return any(each.reason == "too_many_keys" and context.age(each.recorded_at) < FRESH for each in records)
