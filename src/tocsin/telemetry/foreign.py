"""Reports of foreign messages and unreadable events, once for each in a process."""

from collections import OrderedDict, deque
from datetime import datetime
from typing import Final

from ..domain.foreign_report import ForeignReport
from ..subjects import UnreadableMessage, guard_of, stream_of
from . import get_logger, meter

MAX_NOTED: Final = 10_000
"""Messages that a process remembers, so that it does not report them again."""
MAX_REASON: Final = 300
"""Characters of the reason why an event is unreadable."""
MAX_UNSEEN: Final = 1_000
"""Reports that wait to be taken; more are dropped."""

_log = get_logger("tocsin.foreign")
_foreign_messages: Final = meter().create_counter(
    "tocsin_foreign_messages",
    unit="{message}",
    description="Messages in the stream of commits that no stage stored, and that readers skipped.",
)


class ForeignMessages:
    """The foreign messages and unreadable events that readers of the log met."""

    def __init__(self) -> None:
        self._noted: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._unseen: deque[ForeignReport] = deque(maxlen=MAX_UNSEEN)

    def report(
        self, subject: str, sequence: int, stored_at: datetime, reason: str, *, stream: str | None = None
    ) -> None:
        """Report a foreign message once. `stream`: None: the stream of its subject."""
        stream = stream or stream_of(subject)
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
        if guard_of(message.subject) is None:
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
