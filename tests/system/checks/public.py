"""What the public is told (ojs-cron §9): each firing and each skip, once."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from tocsin.domain.events import Admitted, CronSkipped, CronTriggered, Recorded, Skipped

from .everything import Everything, Violation


def each_firing_is_told_once(everything: Everything) -> Iterator[Violation]:
    """`cron.triggered` once for each execution that the schedule brought about, and counted."""
    told: dict[str, list[Recorded[CronTriggered]]] = defaultdict(list)
    for event in everything.facts(CronTriggered):
        told[event.message.data.cron_name].append(event)
    for events in told.values():
        for number, event in enumerate(events, start=1):
            if event.message.data.run_count != number:
                yield Violation.of("CRON-29", f"run {number} is counted {event.message.data.run_count}", event)
    times = Counter(event.message.data.job_id for events in told.values() for event in events)
    for admitted in everything.facts(Admitted):
        if times[admitted.message.execution_id] != (admitted.message.trigger == "cron"):
            yield Violation.of("CRON-29", f"told {times[admitted.message.execution_id]} times", admitted)


def each_skip_is_told_once(everything: Everything) -> Iterator[Violation]:
    """`cron.skipped` once for each execution that was skipped, with its reason."""
    told = Counter(
        (data.cron_name, data.scheduled_time, data.reason)
        for data in (event.message.data for event in everything.facts(CronSkipped))
    )
    skips = everything.facts(Skipped)
    for skipped in skips:
        fact = skipped.message
        if (times := told[fact.job, fact.scheduled_time, fact.reason]) != 1:
            yield Violation.of("CRON-30", f"told {times} times", skipped)
    if told.total() > len(skips):
        yield Violation("CRON-30", f"{told.total()} skips are told of, and there were {len(skips)}")
