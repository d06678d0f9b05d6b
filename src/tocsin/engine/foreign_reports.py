"""Reports of foreign messages and unreadable events, for operators.

An entry of the bucket `foreign` is written once for each message and process, and removed when the message is voided. A process that starts later may write it
again, so readers leave out what is voided (`not_voided`). No decision rests on an entry.
"""

import asyncio
from collections import OrderedDict, deque
from datetime import datetime
from typing import Final

from pydantic import BaseModel, ConfigDict

from .. import subjects, telemetry
from ..domain.events import Voided
from ..domain.text import printable
from ..ports import Clock, EventLog, Projections
from ..subjects import Bucket, DecodeError, UnreadableMessage

INTERVAL_S: Final = 2.0
MAX_READ_AGAIN: Final = 100
"""Unreadable events that are read again before they are shown; those beyond are shown as they were met."""
MAX_SHOWN: Final = 1_000
"""Entries that a process writes; the audit finds all messages."""
MAX_NOTED: Final = 10_000
"""Messages that a process remembers, so that it does not report them again."""
MAX_REASON: Final = 300
"""Characters of the reason why an event is unreadable."""
MAX_UNSEEN: Final = 1_000
"""Reports that wait to be taken; more are dropped."""

_log = telemetry.get_logger("tocsin.foreign")
_foreign_messages: Final = telemetry.meter().create_counter(
    "tocsin_foreign_messages",
    unit="{message}",
    description="Messages in the stream of commits that no stage stored, and that readers skipped.",
)


class ForeignReport(BaseModel):
    """A foreign message or an unreadable event that a process met."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    stream: str
    sequence: int
    subject: str
    stored_at: datetime
    """The time (UTC) at which the log stored it."""
    reason: str
    """The reason why no stage can have stored it, or why the process cannot read it."""
    is_unreadable: bool = False
    """Whether a stage stored it, and the process cannot read it."""
    does_decode: bool = False
    """Whether it can be read, and the state of its scope does not accept it."""

    @property
    def place(self) -> str:
        """The subject, the stream and the sequence of the message, to be shown."""
        return f"{printable(self.subject)} ({self.stream} {self.sequence})"


class ForeignMessages:
    """The foreign messages and unreadable events that readers of the log met."""

    def __init__(self) -> None:
        self._noted: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._unseen: deque[ForeignReport] = deque(maxlen=MAX_UNSEEN)

    def report(
        self, subject: str, sequence: int, stored_at: datetime, reason: str, *, stream: str | None = None
    ) -> None:
        """Report a foreign message once. `stream`: None: the stream of its subject."""
        stream = stream or subjects.stream_of(subject)
        report = ForeignReport(stream=stream, sequence=sequence, subject=subject, stored_at=stored_at, reason=reason)
        if not self._is_new(report):
            return
        self._unseen.append(report)
        _foreign_messages.add(1, {"kind": subject.partition(".")[0]})
        _log.warning(
            "foreign message skipped; run `tocsin audit`",
            action="foreign-message",
            stream=stream,
            subject=subject,
            sequence=sequence,
            reason=reason,
        )

    def report_unreadable(self, message: UnreadableMessage, reason: str, *, does_decode: bool = False) -> None:
        """Report a decision that this version cannot read unless it was reported before.

        `does_decode`: it can be read, and the state of its scope does not accept it.
        """
        if subjects.guard_of(message.subject) is None:
            return
        report = ForeignReport(
            stream=message.stream,
            sequence=message.sequence,
            subject=message.subject,
            stored_at=message.time,
            reason=reason[:MAX_REASON],
            is_unreadable=True,
            does_decode=does_decode,
        )
        if self._is_new(report):
            self._unseen.append(report)

    def _is_new(self, report: ForeignReport) -> bool:
        key = report.subject, report.sequence
        if key in self._noted:
            return False
        self._noted[key] = None
        if len(self._noted) > MAX_NOTED:
            self._noted.popitem(last=False)
        return True

    def take(self) -> list[ForeignReport]:
        """Return the reports since the last call."""
        reports = list(self._unseen)
        self._unseen.clear()
        return reports


class ForeignReports:
    """Writes what one process met."""

    def __init__(self, projections: Projections, clock: Clock, foreign: ForeignMessages) -> None:
        self._projections = projections
        self._clock = clock
        self._foreign = foreign
        self._waiting: list[ForeignReport] = []
        self._shown = 0

    async def run(self) -> None:
        """Write reports until cancelled."""
        while True:
            await self._clock.sleep(INTERVAL_S)
            await self.run_once()

    async def run_once(self) -> None:
        """Write what was met since the last call; what cannot be written is tried again."""
        self._waiting = [*self._waiting, *self._foreign.take()][: MAX_SHOWN - self._shown]
        while self._waiting:
            try:
                await self._show(self._waiting[0])
            except Exception as error:  # noqa: BLE001 - a report that fails must not stop the stages
                _log.info("foreign message not shown yet", action="foreign-not-shown", error=str(error))
                return
            self._waiting.pop(0)

    async def _show(self, report: ForeignReport) -> None:
        key = subjects.foreign_key(report.stream, report.sequence)
        await self._projections.put(Bucket.FOREIGN, key, report.model_dump_json().encode())
        self._shown += 1


async def not_voided(log: EventLog, projections: Projections) -> tuple[ForeignReport, ...]:
    """Return the foreign and unreadable messages that processes met, without voided messages.

    Raises:
        LogUnavailable: the log did not answer.
    """
    entries = await projections.entries(Bucket.FOREIGN)
    if not entries:
        return ()
    stored = await log.load(subjects.filter_for("repair.voided"))
    voided = {(one.message.stream, one.message.sequence) for one in stored if isinstance(one.message, Voided)}
    reports = (ForeignReport.model_validate_json(value) for value in entries.values())
    listed = [report for report in reports if (report.stream, report.sequence) not in voided]
    doubtful = [report for report in listed if report.is_unreadable][:MAX_READ_AGAIN]
    are_readable = await asyncio.gather(*(_is_readable(log, report) for report in doubtful))
    readable = {report for report, is_readable in zip(doubtful, are_readable, strict=True) if is_readable}
    return tuple(
        sorted(
            (report for report in listed if report not in readable), key=lambda report: (report.stream, report.sequence)
        )
    )


async def _is_readable(log: EventLog, report: ForeignReport) -> bool:
    """Return whether this version can read an event, or the stream lost it.

    A process of an older version may have met it.
    """
    if report.does_decode:
        return False
    try:
        await log.get(report.subject, report.sequence)
    except DecodeError:
        return False
    return True
