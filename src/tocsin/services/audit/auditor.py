"""The auditor: takes events one by one, and reports the violations at the end."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, cast

from ...domain.events import Message, Recorded, Voided, unfold
from ...domain.events import Report as WorkerReport
from ...ports import StoredMessage
from ...subjects import Stream, digest_of, publisher_of
from . import guards, versions
from .adoptions import Adoptions
from .check import INVARIANTS, PATIENCE, Check, Comparison, Handler, Report, Violation
from .coordination import Agents, Locks
from .daily_quotas import DailyQuotaSkips
from .dependencies import Dependencies
from .execution_reports import is_proven
from .executions import Executions
from .fan_outs import FanOuts
from .ledger_time import LedgerTime
from .ownership import Ownership
from .public_events import PublicEvents
from .queues import Queues
from .requests import Requests
from .unique_keys import UniqueKeys

SHOWN: Final = 1_000
"""Number of violations that a report lists; the others are counted."""


@dataclass(slots=True)
class _Counted:
    """Messages that are no finding: their number for each stream and publisher, and the first."""

    reason: str
    _numbers: dict[tuple[Stream, str], tuple[int, str]] = field(default_factory=dict)

    def add(self, stream: Stream, subject: str, sequence: int) -> None:
        program = publisher_of(subject)
        by = f"the program {program}" if program else _PUBLISHERS.get(stream, "only stages and the API")
        number, first = self._numbers.get((stream, by), (0, f"{subject} ({stream} {sequence})"))
        self._numbers[stream, by] = number + 1, first

    def remarks(self) -> Iterator[str]:
        """Yield a remark for each stream and publisher."""
        for (stream, by), (number, first) in self._numbers.items():
            yield f"{number:,} of the messages of {stream}, where {by} may publish, {self.reason}; the first is {first}"


_PUBLISHERS: Final = {
    Stream.INPUTS: "programs outside",
    Stream.REQUESTS: "the API and operators",
    Stream.REPORTS: "all workers",
}


class Auditor:
    """All checks together, over the messages of all streams.

    Each stream comes in its own order; they may be interleaved in any way. Memory is least if they are interleaved by time.
    """

    def __init__(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        patience: timedelta = PATIENCE,
        key: bytes | None = None,
    ) -> None:
        """Judge the events from `since` to `until` (UTC), or all events.

        Args:
            since: the first event of the log, except for definitions; executions that started before are not judged.
            until: later events are left out; None: all events.
            patience: the time before `until` for which a stage may be late without a violation.
            key: the installation's key, without which no report proves its claim; None: a report with the token of its task counts.
        """
        self._key = key
        self._until = until
        self._patience = patience
        is_whole = since is None
        self._executions = Executions(since)
        self._time = LedgerTime(since)
        self._checks: tuple[Check, ...] = (
            self._time,
            self._executions,
            Requests(since),
            Locks(self._executions, is_whole=is_whole),
            PublicEvents(is_whole=is_whole),
            Agents(is_whole=is_whole),
            Queues(is_whole=is_whole),
            Dependencies(since),
            Ownership(is_whole=is_whole),
            versions.of_policy(is_whole=is_whole),
            versions.of_namespaces(is_whole=is_whole),
            DailyQuotaSkips(is_whole=is_whole),
            Adoptions(since),
            FanOuts(is_whole=is_whole),
            UniqueKeys(since, is_whole=is_whole),
        )
        self._handlers: dict[type[Message], list[Handler]] = {}
        for check in self._checks:
            for kind, handler in check.handlers().items():
                self._handlers.setdefault(kind, []).append(handler)
        self._facts = 0
        self._total = 0
        self._latest: datetime | None = None
        self._found: list[Violation] = []
        self._remarks: list[str] = []
        self._unreadable = _Counted("cannot be read by this version")
        self._unproven = _Counted("prove no claim, and count for no stage")
        self._foreign: dict[tuple[str, int], tuple[Violation, str]] = {}
        self._voided: list[Recorded[Voided]] = []
        self._judged = [invariant for invariant in INVARIANTS if invariant not in {"I8", "I9"}]

    def take(self, recorded: Recorded[Message]) -> None:
        """Take one more message."""
        if self._until is not None and recorded.time > self._until:
            return
        self._facts += 1
        if self._latest is None or recorded.time > self._latest:
            self._latest = recorded.time
        if isinstance(recorded.message, WorkerReport) and self._key is not None and not is_proven(recorded, self._key):
            self._unproven.add(Stream.REPORTS, recorded.subject, recorded.sequence)
            return
        if isinstance(recorded.message, Voided):
            self._voided.append(cast("Recorded[Voided]", recorded))
        for event in unfold((recorded,)):
            for handler in self._handlers.get(type(event.message), ()):
                for violation in handler(event):
                    self._add(violation)

    def judge_guards(self) -> None:
        """Judge where messages came from too (I9), since `stored` will be called for each."""
        self._judged.append("I9")

    def stored(self, message: StoredMessage) -> None:
        """Take a message as it is stored, with the headers that say how."""
        for violation in guards.foreign(message):
            self._foreign[message.stream, message.sequence] = violation, digest_of(message.body)

    def unreadable(self, message: StoredMessage) -> None:
        """Note a message that this version cannot decode; its consequences are judged without it.

        An unreadable input is a remark, because programs outside and workers may store any.
        """
        for violation in guards.unreadable(message):
            self._foreign[message.stream, message.sequence] = violation, digest_of(message.body)
        if not guards.is_decision(message.subject):
            self._unreadable.add(message.stream, message.subject, message.sequence)

    def begins(self, stream: Stream, *, first: int, archived: int) -> None:
        """Take the beginning of a stream (`guards.removed`)."""
        self._add_all(guards.removed(stream, first=first, archived=archived))

    def compared(self, comparison: Comparison) -> None:
        """Take the result of the comparison with the read models (I8)."""
        self._judged.append("I8")
        self._remarks += comparison.remarks
        self._add_all(comparison.violations)

    def report(self) -> Report:
        """Return the report. No message can be taken afterwards."""
        until = self._until or self._latest
        self._time.horizon = until
        voided = tuple(self._take_voided())
        self._add_all(violation for violation, _ in self._foreign.values())
        debts = [debt for check in self._checks for debt in check.debts()]
        overdue = [debt for debt in debts if until is not None and debt.is_overdue(until, self._patience)]
        for debt in overdue:
            self._add(Violation(debt.invariant, debt.entity, debt.reason, debt.facts))
        return Report(
            facts=self._facts,
            jobs=self._time.count,
            executions=self._executions.count,
            until=until,
            violations=tuple(self._found),
            total=self._total,
            debts=tuple(debt for debt in debts if debt not in overdue),
            invariants=tuple(self._judged),
            remarks=(
                *self._unreadable.remarks(),
                *self._unproven.remarks(),
                *self._time.remarks.values(),
                *self._remarks,
            ),
            voided=voided,
        )

    def _take_voided(self) -> Iterator[str]:
        """Yield the messages that operators voided, and no longer count them as violations."""
        for recorded in self._voided:
            event = recorded.message
            found = self._foreign.get((event.stream, event.sequence))
            if found is not None and found[1] == event.digest:
                del self._foreign[event.stream, event.sequence]
            by = "" if event.by is None else f" by {event.by.full_name}"
            reason = f": {event.reason}" if event.reason else ""
            yield f"{event.stream} {event.sequence} {event.subject}{by}{reason}"

    def _add_all(self, violations: Iterable[Violation]) -> None:
        for violation in violations:
            self._add(violation)

    def _add(self, violation: Violation) -> None:
        self._total += 1
        if len(self._found) < SHOWN:
            self._found.append(violation)


def audit(
    facts: Iterable[Recorded[Message]],
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    patience: timedelta = PATIENCE,
    key: bytes | None = None,
) -> Report:
    """Judge all stored messages; see `Auditor`.

    With a `patience` of zero, no stage may owe anything.
    """
    auditor = Auditor(since=since, until=until, patience=patience, key=key)
    for recorded in facts:
        auditor.take(recorded)
    return auditor.report()
