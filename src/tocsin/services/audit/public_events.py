"""Public events (ojs-cron §9): each firing, skip and missed span once (CRON-29, CRON-30).

Memory: decisions that are not announced yet, triggers that wait for an admission, the last announced run and the registrations of each
job, and each run that restarted its count.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple, TypeAlias

from ...domain.events import (
    MISSED_REASONS,
    Admitted,
    Cancelled,
    CronAnswer,
    CronMissed,
    CronSkipped,
    CronTriggered,
    CronTriggeredData,
    Defined,
    Failed,
    Passed,
    Planned,
    Queued,
    Recorded,
    Skipped,
)
from ...domain.events.ledger import in_force_since
from . import check
from .check import Check, Debt, Key, Proof, Taken, on

Skip: TypeAlias = tuple[str, datetime, str]
Span: TypeAlias = tuple[str, datetime, datetime, int, str]
"""The job, the start and the end, the number of instants, and the reason."""


class _Restart(NamedTuple):
    """A run that has the count 1 although its job ran before."""

    proof: Proof
    definition: int
    """The sequence of the definition of this run."""
    previous: CronTriggeredData
    """The run that was announced before this run."""


class PublicEvents(Check):
    """Pairs decisions with their public events; the decision is stored first."""

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._firings: dict[Key, tuple[Proof, int]] = {}
        """The admissions that are not announced, and the sequences of their definitions."""
        self._skips: dict[Skip, deque[Proof]] = defaultdict(deque)
        self._last: dict[str, CronTriggeredData] = {}
        """The run of each name that was announced last."""
        self._registrations: dict[str, tuple[tuple[int, tuple[datetime, datetime]], ...]] = {}
        """The registrations of each name, without edits: the sequence, and the times from which a registration is in force and was stored."""
        self._restarts: dict[str, list[_Restart]] = defaultdict(list)
        self._missed: dict[Span, Proof] = {}
        self._told: dict[Span, Proof] = {}
        self._planned: dict[Key, str] = {}
        """The trigger of each execution that waits for its admission."""
        self._unanswered: dict[tuple[str, str], Proof] = {}
        """What an answer to a trigger must follow, by job and trigger."""

    @on(Admitted)
    def _admitted(self, recorded: Recorded[Admitted]) -> None:
        if definition := recorded.message.plan.definition:
            self._firings[check.key_of(recorded.message)] = Proof.of(recorded), definition
        self._ended(recorded)

    @on(CronTriggered)
    def _triggered(self, recorded: Recorded[CronTriggered]) -> Taken:
        data = recorded.message.data
        entity = check.job(data.cron_name)
        firing = self._firings.pop((data.cron_name, data.job_id), None)
        if firing is None and self._is_whole:
            reason = f"{data.job_id} was announced before, or never admitted"
            yield check.violation("CRON-29", entity, reason, recorded)
        last = self._last.get(data.cron_name)
        expected = last.run_count + 1 if last is not None else 1 if self._is_whole else data.run_count
        if data.run_count == 1 and last is not None:
            definition = 0 if firing is None else firing[1]
            self._restarts[data.cron_name].append(_Restart(Proof.of(recorded), definition, last))
        elif data.run_count != expected:
            reason = f"run {expected} is counted {data.run_count}"
            yield check.violation("CRON-29", entity, reason, recorded)
        self._last[data.cron_name] = data

    @on(Defined)
    def _defined(self, recorded: Recorded[Defined]) -> None:
        """Note a registration, from which runs are counted from 1."""
        if recorded.message.created_at is None:
            job, times = recorded.message.job, (in_force_since(recorded), recorded.time)
            self._registrations[job] = (*self._registrations.get(job, ()), (recorded.sequence, times))

    def _is_first(self, job: str, restart: _Restart) -> bool:
        """Return whether the run announced before a restart belongs to an earlier registration.

        The lock keeper announces a run when it has its lock, so a run of the deleted job may follow the first run of the new job.
        """
        times = [times for sequence, times in self._registrations.get(job, ()) if sequence <= restart.definition]
        return bool(times) and not restart.previous.ran_since(*times[-1])

    @on(Skipped)
    def _skipped(self, recorded: Recorded[Skipped]) -> None:
        fact = recorded.message
        if not fact.is_announced:
            return
        self._skips[fact.job, fact.scheduled_time, fact.reason].append(Proof.of(recorded))
        self._planned.pop(check.key_of(fact), None)
        if fact.trigger_id is not None:
            self._unanswered[fact.job, fact.trigger_id] = Proof.of(recorded)

    @on(CronSkipped)
    def _skip_told(self, recorded: Recorded[CronSkipped]) -> Taken:
        data = recorded.message.data
        key = (data.cron_name, data.scheduled_time, data.reason)
        if waiting := self._skips.get(key):
            waiting.popleft()
            if not waiting:
                del self._skips[key]
        elif self._is_whole:
            reason = f"the skip of {data.scheduled_time.isoformat()} was announced before, or does not exist"
            yield check.violation("CRON-30", check.job(data.cron_name), reason, recorded)

    @on(Passed)
    def _passed(self, recorded: Recorded[Passed]) -> None:
        fact = recorded.message
        if fact.reason in MISSED_REASONS:
            span = (fact.job, fact.start, fact.until, fact.count, fact.reason)
            if self._told.pop(span, None) is None:
                self._missed[span] = Proof.of(recorded)

    @on(CronMissed)
    def _missed_told(self, recorded: Recorded[CronMissed]) -> Taken:
        data = recorded.message.data
        span = (data.cron_name, data.start, data.until, data.count, data.reason)
        if self._missed.pop(span, None) is None and self._is_whole:
            if span in self._told:
                yield check.violation("MISSED", check.job(data.cron_name), "the span was announced before", recorded)
            self._told[span] = Proof.of(recorded)  # the ledger is another stream, and may come later

    @on(Planned)
    def _plan(self, recorded: Recorded[Planned]) -> None:
        if recorded.message.trigger_id is not None:
            self._planned[check.key_of(recorded.message)] = recorded.message.trigger_id

    @on(Queued)
    def _queued(self, recorded: Recorded[Queued]) -> None:
        fact = recorded.message
        if (trigger := self._planned.get(check.key_of(fact))) is not None:
            self._unanswered[fact.job, trigger] = Proof.of(recorded)

    @on(Cancelled, Failed)
    def _ended(self, recorded: Recorded[Admitted | Cancelled | Failed]) -> None:
        """Forget a trigger that waits no more; it needs no answer."""
        fact = recorded.message
        if (trigger := self._planned.pop(check.key_of(fact), None)) is not None:
            self._unanswered.pop((fact.job, trigger), None)

    @on(CronAnswer)
    def _answered(self, recorded: Recorded[CronAnswer]) -> None:
        data = recorded.message.data
        self._unanswered.pop((data.cron_name, data.trigger_id), None)

    def debts(self) -> Iterator[Debt]:
        for proof, _ in self._firings.values():
            yield Debt("CRON-29", proof.subject, "the firing was not announced", proof.time, facts=(proof,))
        for proofs in self._skips.values():
            for proof in proofs:
                yield Debt("CRON-30", proof.subject, "the skip was not announced", proof.time, facts=(proof,))
        for name, restarts in self._restarts.items():
            for restart in restarts if self._is_whole else ():
                if not self._is_first(name, restart):
                    reason, proof = "a run is counted 1, and the job was not registered again", restart.proof
                    yield Debt("CRON-29", check.job(name), reason, proof.time, "clocks", (proof,))
        for (job, trigger), proof in self._unanswered.items():
            yield Debt("ANSWER", check.job(job), f"trigger {trigger} has no answer", proof.time, facts=(proof,))
        for (job, *_), proof in self._missed.items():
            yield Debt("MISSED", check.job(job), "the span was not announced", proof.time, facts=(proof,))
        for (job, *_), proof in self._told.items():
            reason = "a span was announced that did not pass, or was announced twice"
            yield Debt("MISSED", check.job(job), reason, proof.time, facts=(proof,))
