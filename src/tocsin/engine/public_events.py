"""Public events, each exactly once (ojs-cron §9).

The last event on a job's subject is guarded by its sequence. If that sequence is older than the decision to be announced,
then nothing was announced since, and the guard proves it when the event is stored; otherwise what came since is read. So
neither a redelivery nor a second copy of a stage announces twice, and the usual road reads nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, cast

from ..domain.definition import JobDefinition
from ..domain.events import (
    MISSED_REASONS,
    Admitted,
    CronMissed,
    CronMissedData,
    CronSkipped,
    CronSkippedData,
    CronTriggered,
    CronTriggeredData,
    Message,
    MissedReason,
    Passed,
    PublicEvent,
    Recorded,
    Skipped,
)
from ..ports import Clock, EventLog, SequenceConflict
from ..subjects import public_event

ANNOUNCED: Final = (CronTriggered, CronSkipped)
CAPACITY: Final = 10_000
TRIES: Final = 20


class PublicEvents:
    """Says in public what was decided. `after` is always the sequence of the decision's fact."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._last: OrderedDict[str, tuple[int, int]] = OrderedDict()  # subject -> (sequence, run count)

    def loaded(self, subject: str, facts: Sequence[Recorded[Message]]) -> None:
        """Take in the newest event on a subject, as it was read from the log just now, unless one is remembered."""
        if subject not in self._last:
            self._take(subject, facts[-1] if facts else None)

    async def decided(self, fact: Message, *, after: int) -> None:
        """Whatever the public is to hear of a decision."""
        match fact:
            case Admitted():
                await self.triggered(fact, after=after)
            case Skipped():
                await self.skipped(fact, after=after)

    async def triggered(self, fact: Admitted, *, after: int) -> None:
        """`cron.triggered`, for an execution that the schedule asked for (CRON-29)."""
        if fact.trigger != "cron":
            return
        now = self._clock.now()

        def event(run_count: int) -> CronTriggered:
            return CronTriggered(
                timestamp=now,
                data=CronTriggeredData(
                    cron_name=fact.job,
                    cron_expression=fact.plan.cron_expression or "",
                    timezone=fact.plan.timezone,
                    job_id=fact.execution_id,
                    job_type=fact.plan.steps[0].function,
                    run_count=run_count,
                    scheduled_time=fact.scheduled_time,
                    actual_time=now,
                ),
            )

        def is_it(message: Message) -> bool:
            return isinstance(message, CronTriggered) and message.data.job_id == fact.execution_id

        await self._once(public_event("triggered", fact.job), event, is_it, after)

    async def skipped(self, fact: Skipped, *, after: int) -> None:
        """`cron.skipped`, for an instant or trigger that did not become a run (CRON-30)."""
        now = self._clock.now()

        def event(_: int) -> CronSkipped:
            return CronSkipped(
                timestamp=now,
                data=CronSkippedData(
                    cron_name=fact.job,
                    cron_expression=fact.cron_expression or "",
                    timezone=fact.timezone,
                    reason=fact.reason,
                    active_job_id=fact.active_execution_id,
                    scheduled_time=fact.scheduled_time,
                ),
            )

        def is_it(message: Message) -> bool:
            if not isinstance(message, CronSkipped):
                return False
            # A local time that does not exist may fall on an instant that is skipped for another reason.
            told = message.data
            return (told.scheduled_time, told.reason) == (fact.scheduled_time, fact.reason)

        await self._once(public_event("skipped", fact.job), event, is_it, after)

    async def missed(self, fact: Passed, definition: JobDefinition) -> None:
        """`cron.missed`, for a span that passed without firing though nobody wished it. Nothing for any other."""
        if fact.reason not in MISSED_REASONS:
            return
        now = self._clock.now()

        def event(_: int) -> CronMissed:
            return CronMissed(
                timestamp=now,
                data=CronMissedData(
                    cron_name=fact.job,
                    cron_expression=definition.schedule or "",
                    timezone=definition.timezone,
                    reason=cast("MissedReason", fact.reason),
                    count=fact.count,
                    start=fact.start,
                    until=fact.until,
                ),
            )

        def is_it(message: Message) -> bool:
            return isinstance(message, CronMissed) and message.data.until == fact.until

        # The fact lies in another stream, whose sequences say nothing here: all that was ever announced is looked at.
        await self._once(public_event("missed", fact.job), event, is_it, 0)

    async def _once(
        self, subject: str, event: Callable[[int], PublicEvent], is_it: Callable[[Message], bool], after: int
    ) -> None:
        for _ in range(TRIES):
            sequence, count = self._last.get(subject) or await self._newest(subject)
            if sequence > after:
                since = await self._since(subject, after)
                if any(is_it(recorded.message) for recorded in since):
                    return
                if not since or since[-1].sequence < sequence:
                    continue  # a replica that lags: what the guard does not cover must have been read
            try:
                stored = await self._log.append(event(count + 1), expect=sequence)
            except SequenceConflict:
                self._last.pop(subject, None)
            else:
                self._remember(subject, stored, count + 1)
                return
        raise SequenceConflict(f"{subject} moved {TRIES} times")

    async def _since(self, subject: str, after: int) -> list[Recorded[Message]]:
        found: list[Recorded[Message]] = []
        while batch := await self._log.read(subject, after=found[-1].sequence if found else after):
            found += batch
        return found

    async def _newest(self, subject: str) -> tuple[int, int]:
        return self._take(subject, await self._log.last(subject))

    def _take(self, subject: str, last: Recorded[Message] | None) -> tuple[int, int]:
        sequence = 0 if last is None else last.sequence
        count = last.message.data.run_count if last is not None and isinstance(last.message, CronTriggered) else 0
        self._remember(subject, sequence, count)
        return sequence, count

    def _remember(self, subject: str, sequence: int, count: int) -> None:
        self._last[subject] = sequence, count
        self._last.move_to_end(subject)
        if len(self._last) > CAPACITY:
            self._last.popitem(last=False)
