"""The runs of the jobs for which executions wait.

Only these jobs are followed, so that other jobs cost nothing. When a job is needed first, its runs since the beginning of the
window are read once, from the streams and the archive.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from ... import subjects, telemetry
from ...archive import decoded
from ...domain.dependency import Run, Runs, Window
from ...domain.events import Due, Message, Recorded
from ...ports import Clock, EventLog, LogUnavailable, OutdatedState, StoredLog, StoredMessage
from ...subjects import DecodeError, Stream

FILTERED: Final = 64
"""Jobs that are followed by filters of their own. With more, all executions are followed."""
SLACK: Final = timedelta(minutes=1)
"""How much earlier than its scheduled time a run may have been stored, as the clocks of two machines differ."""
RETRY_S: Final = 1.0
CANCEL_AGAIN_S: Final = 0.5
"""Seconds after which a task that goes on is cancelled again."""

OnRun: TypeAlias = Callable[[str, Run | None], None]
"""Called with a job and each of its runs that began or ended; None: its earlier runs were read."""

_log = telemetry.get_logger("tocsin.dependency_keeper")


class UpstreamRuns:
    """Follows the runs of the jobs that are needed."""

    def __init__(self, log: EventLog, stored: StoredLog, clock: Clock, on_run: OnRun) -> None:
        """`stored`: the streams and their archive."""
        self._log = log
        self._stored = stored
        self._clock = clock
        self._on_run = on_run
        self._needed: dict[str, datetime] = {}
        self._known: dict[str, tuple[datetime, Runs]] = {}
        self._upto = 0
        self._has_changed = asyncio.Event()

    @property
    def upto(self) -> int:
        """The sequence up to which the runs are known."""
        return self._upto

    def of(self, job: str, since: datetime) -> Runs | None:
        """Return the runs of a job since a time (UTC); None: not read yet."""
        known = self._known.get(job)
        if known is not None and known[0] <= since:
            return known[1]
        if job not in self._needed or since < self._needed[job]:
            self._needed[job] = since
            self._has_changed.set()
        return None

    def keep_only(self, jobs: Collection[str]) -> None:
        """Forget all jobs for which nothing waits any more."""
        for job in [job for job in self._needed if job not in jobs]:
            del self._needed[job]
            self._known.pop(job, None)
            self._has_changed.set()

    async def are_planned(self, job: str, window: Window) -> bool:
        """Return whether each instant that fired in a window has a run or a skip.

        An instant may be decided long after its time, and none before it.

        Raises:
            DecodeError: an event of the job's ledger is unreadable.
        """
        _, runs = self._known[job]
        upto, subject = await self._log.end(Stream.LEDGER), f"{subjects.ledger(job).removesuffix('>')}due"
        async with aclosing(
            self._stored.messages(Stream.LEDGER, subject, after=window.since - SLACK, upto=upto)
        ) as portions:
            async for portion in portions:
                for message in portion:
                    due = await self._read(message)
                    if not isinstance(due, Due) or due.scheduled_time <= window.since:
                        continue
                    if due.scheduled_time > window.until:
                        return True  # the instants of a job fire in the order of their times
                    if due.scheduled_time not in runs:
                        return False
        return True

    async def _read(self, message: StoredMessage) -> Message | None:
        """Return a stored event, unless an operator set it aside."""
        try:
            return decoded(message).message
        except DecodeError:
            recorded = await self._log.get(message.subject, message.sequence)
            return None if recorded is None else recorded.message

    async def follow(self) -> None:
        """Follow the needed jobs until cancelled."""
        while True:
            self._has_changed.clear()
            following = asyncio.ensure_future(self._follow())
            changed = asyncio.ensure_future(self._has_changed.wait())
            try:
                await asyncio.wait((following, changed), return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
            except (LogUnavailable, OutdatedState) as error:
                _log.info("runs of other jobs wait for JetStream", action="log-unavailable", error=str(error))
                await self._clock.sleep(RETRY_S)
            except Exception as error:  # noqa: BLE001 - a read that fails once may succeed later
                _log.error("runs of other jobs not read; retrying", action="undecidable", exc_info=error)
                await self._clock.sleep(RETRY_S)
            finally:
                await _ended(following, changed)

    async def _follow(self) -> None:
        """Read what is missing, and follow the jobs that are needed now."""
        if not self._needed:
            await asyncio.Event().wait()
        await self._read_missing()
        jobs = sorted(self._known)
        filters = tuple(name for job in jobs for name in subjects.runs(job))
        if len(jobs) > FILTERED:
            filters = subjects.runs(subjects.ANY)
        async with aclosing(self._log.follow(Stream.LOG, *filters, after=self._upto)) as follower:
            async for batch in follower:
                self._learn(batch.messages)
                self._upto = max(self._upto, batch.upto)

    async def _read_missing(self) -> None:
        """Read the earlier runs of jobs, as far as they are not known."""
        missing = {
            job: since for job, since in self._needed.items() if job not in self._known or self._known[job][0] > since
        }
        if not missing:
            return
        upto = await self._log.end(Stream.LOG)
        filters = tuple(name for job in missing for name in subjects.runs(job))
        if len(missing) > FILTERED:
            filters = subjects.runs(subjects.ANY)
        read = {job: Runs() for job in missing}
        async with aclosing(
            self._stored.messages(Stream.LOG, *filters, after=min(missing.values()) - SLACK, upto=upto)
        ) as portions:
            async for portion in portions:
                for message in portion:
                    job = subjects.job_of(message.subject)
                    if job not in read:
                        continue
                    try:
                        read[job].learn(decoded(message))
                    except DecodeError as error:
                        _log.error(
                            "event unreadable, skipped",
                            action="unreadable",
                            sequence=message.sequence,
                            error=str(error),
                        )
        # The runs of jobs that were known before are followed from where they were read to.
        self._upto = min(self._upto, upto) if self._known else upto
        for job, runs in read.items():
            if job in self._needed:
                self._known[job] = missing[job], runs
                self._on_run(job, None)

    def _learn(self, messages: Sequence[Recorded[Message]]) -> None:
        for recorded in messages:
            job = subjects.job_of(recorded.subject)
            if (known := self._known.get(job)) is not None and (run := known[1].learn(recorded)) is not None:
                self._on_run(job, run)


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until they have ended.

    Until Python 3.12 `asyncio.wait_for` loses a cancellation that comes together with its result. nats-py waits in another way
    (`adapters.nats.client.cancellations`); the log of another adapter may not.
    """
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
