"""The auditor: takes events one by one, and reports the violations at the end."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final, cast

from pydantic import JsonValue

from ...archive.commit_reader import as_stored
from ...archive.stream_reader import decoded
from ...domain.daily_use import has_daily_quota
from ...domain.events import (
    Admitted,
    Advanced,
    Cancelled,
    Completed,
    Failed,
    Message,
    NamespacesDefined,
    PolicyDefined,
    Recorded,
    Skipped,
    Voided,
    unfold,
)
from ...domain.events import Report as WorkerReport
from ...domain.namespaces import namespace_of
from ...domain.policy import NO_POLICY, policy_of
from ...engine.report_lists import unlisted
from ...ports import StoredMessage
from ...subjects import DecodeError, Stream, digest_of, guard_of, publisher_of
from . import check
from .check import INVARIANTS, PATIENCE, Check, Comparison, Debt, Handler, Key, Proof, Report, Taken, Violation, on
from .coordination import Agents, Locks, Ownership, Queues
from .dependencies import Dependencies
from .execution_parts import is_proven
from .executions import Executions
from .ledger_time import LedgerTime
from .public_events import PublicEvents
from .requests import FanOuts, Requests, UniqueKeys

SHOWN: Final = 1_000
"""Number of violations that a report lists; the others are counted."""


class Versions(Check):
    """Judges the versions of the scheduler policy and of the namespaces."""

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._newest: dict[str, tuple[int, object]] = {}
        """The sequence and the content of the newest version."""

    @on(PolicyDefined)
    def _policy(self, recorded: Recorded[PolicyDefined]) -> Taken:
        yield from self._defined(recorded, "the scheduler policy", policy_of(recorded.message), NO_POLICY)

    @on(NamespacesDefined)
    def _namespaces(self, recorded: Recorded[NamespacesDefined]) -> Taken:
        yield from self._defined(recorded, "the namespaces", recorded.message.namespaces, ())

    def _defined(
        self, recorded: Recorded[PolicyDefined | NamespacesDefined], entity: str, content: object, nothing: object
    ) -> Taken:
        is_known = self._is_whole or entity in self._newest
        sequence, before = self._newest.get(entity, (0, nothing))
        self._newest[entity] = recorded.sequence, content
        if is_known and recorded.message.previous != sequence:
            reason = f"it replaces version {recorded.message.previous}, and the newest was {sequence}"
            yield check.violation("I4", entity, reason, recorded)
        if is_known and content == before:
            yield check.violation("I4", entity, "it changes nothing", recorded)


class Adoptions(Check):
    """Compares each adopted result with the recorded result.

    Memory: a digest for each completed step of executions that are open, or failed and have a dead letter.
    """

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._results: dict[Key, dict[str, bytes]] = {}
        """The digests of results by execution and step."""

    @on(Admitted)
    def _admitted(self, recorded: Recorded[Admitted]) -> None:
        if len(recorded.message.plan.steps) > 1:
            self._results.setdefault(check.key_of(recorded.message), {})

    @on(Advanced)
    def _advanced(self, recorded: Recorded[Advanced]) -> Taken:
        fact = recorded.message
        if fact.adopted_from is not None:
            earlier = self._results.get((fact.job, fact.adopted_from))
            is_known = earlier is not None or self._is_whole  # otherwise it may have ended before
            if is_known and (earlier or {}).get(fact.step) != _digest(fact.result):
                reason = f"execution {fact.adopted_from} did not complete {fact.step} with the adopted result"
                yield check.violation("I6", check.entity(fact), reason, recorded)
        if (results := self._results.get(check.key_of(fact))) is not None:
            results[fact.step] = _digest(fact.result)

    @on(Failed)
    def _failed(self, recorded: Recorded[Failed]) -> None:
        fact = recorded.message
        results = self._results.get(check.key_of(fact))
        if results is not None and fact.step_completed and fact.step is not None:
            results[fact.step] = _digest(fact.result)
        if not fact.dead_letter:
            self._results.pop(check.key_of(fact), None)

    @on(Completed, Cancelled)
    def _over(self, recorded: Recorded[Completed | Cancelled]) -> None:
        self._results.pop(check.key_of(recorded.message), None)


def _digest(result: JsonValue) -> bytes:
    return blake2b(json.dumps(result, sort_keys=True).encode(), digest_size=16).digest()


class DailyQuotaSkips(Check):
    """Judges whether skipped executions had a quota that could be used up.

    Memory: the namespaces with a daily quota, and one skip of each other namespace.
    """

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._limited: set[str] = set()
        self._skipped: dict[str | None, Recorded[Skipped]] = {}

    def debts(self) -> Iterator[Debt]:
        """Judge at the end, because the declaration may be read later."""
        for namespace, recorded in self._skipped.items():
            if self._is_whole and namespace not in self._limited:
                reason = f"it was skipped by a daily quota, and namespace {namespace} never had one"
                entity, facts = check.entity(recorded.message), (Proof.of(recorded),)
                yield Debt("I3", entity, reason, recorded.time, "clocks", facts)

    @on(NamespacesDefined)
    def _defined(self, recorded: Recorded[NamespacesDefined]) -> None:
        self._limited.update(each.name for each in recorded.message.namespaces if has_daily_quota(each))

    @on(Skipped)
    def _was_skipped(self, recorded: Recorded[Skipped]) -> None:
        if recorded.message.reason == "namespace_quota":
            self._skipped.setdefault(namespace_of(recorded.message.job), recorded)


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
        self._executions = Executions(since)
        self._time = LedgerTime(since)
        self._checks: tuple[Check, ...] = (
            self._time,
            self._executions,
            Requests(since),
            Locks(self._executions, since),
            PublicEvents(since),
            Agents(since),
            Queues(since),
            Dependencies(since),
            Ownership(since),
            Versions(since),
            DailyQuotaSkips(since),
            Adoptions(since),
            FanOuts(since),
            UniqueKeys(since),
        )
        self._handlers: dict[type[Message], list[Handler]] = {}
        for each in self._checks:
            for kind, handler in each.handlers().items():
                self._handlers.setdefault(kind, []).append(handler)
        self._facts = 0
        self._total = 0
        self._latest: datetime | None = None
        self._found: list[Violation] = []
        self._remarks: list[str] = []
        self._unreadable = _Counted("cannot be read by this version")
        self._unproven = _Counted("prove no claim, and count for no stage")
        self._unread: dict[tuple[str, int], tuple[Violation, str]] = {}
        """The violations by unreadable decisions, and the digests of their bodies."""
        self._voided: list[Recorded[Voided]] = []
        self._judged = [invariant for invariant in INVARIANTS if invariant not in {"I8", "I9"}]

    def take(self, recorded: Recorded[Message]) -> None:
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
                self.found(handler(event) or ())

    def read(self, message: StoredMessage) -> Iterator[Recorded[Message]]:
        """Take a message as it is stored, and yield its events with the states' times."""
        for one in unlisted(message):
            try:
                recorded = decoded(one)
            except DecodeError:
                self.unreadable(one)
            else:
                self.take(as_stored(recorded, one))
                yield recorded

    def judge_log(self) -> None:
        """Judge the log itself too (I9): its caller finds the violations."""
        self._judged.append("I9")

    def unreadable(self, message: StoredMessage) -> None:
        """Note a message that this version cannot decode; its consequences are judged without it.

        An unreadable input is a remark, because programs outside and workers may store any.
        """
        if guard_of(message.subject) is None:
            self._unreadable.add(message.stream, message.subject, message.sequence)
        else:
            proof = Proof(message.stream, message.sequence, message.subject, message.time)
            reason = "this version cannot read it, so its consequences cannot be judged"
            violation = Violation("I9", f"message {message.sequence:,} of {message.stream}", reason, (proof,))
            self._unread[message.stream, message.sequence] = violation, digest_of(message.body)

    def found(self, violations: Iterable[Violation]) -> None:
        for violation in violations:
            self._total += 1
            if len(self._found) < SHOWN:
                self._found.append(violation)

    def remark(self, remarks: Iterable[str]) -> None:
        """Take a message or event that cannot be judged."""
        self._remarks += remarks

    def compared(self, comparison: Comparison) -> None:
        """Take the result of the comparison with the read models (I8)."""
        self._judged.append("I8")
        self._remarks += comparison.remarks
        self.found(comparison.violations)

    @property
    def until(self) -> datetime | None:
        """The time (UTC) up to which the auditor judges.

        It is the time of the newest message, unless the caller gave another time.
        """
        return self._until or self._latest

    def report(self) -> Report:
        """Return the report. No message can be taken afterwards."""
        until = self.until
        self._time.horizon = until
        voided = tuple(self._take_voided())
        self.found(violation for violation, _ in self._unread.values())
        debts = [debt for check in self._checks for debt in check.debts()]
        overdue = [debt for debt in debts if until is not None and debt.is_overdue(until, self._patience)]
        self.found(Violation(debt.invariant, debt.entity, debt.reason, debt.facts) for debt in overdue)
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
            found = self._unread.get((event.stream, event.sequence))
            if found is not None and found[1] == event.digest:
                del self._unread[event.stream, event.sequence]
            by = "" if event.by is None else f" by {event.by.full_name}"
            reason = f": {event.reason}" if event.reason else ""
            yield f"{event.stream} {event.sequence} {event.subject}{by}{reason}"


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
