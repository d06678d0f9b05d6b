"""The executions that need the locks of a job, with their durations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Final

from .. import execution_plan, ids
from ..definition import JobDefinition
from ..events import Due, Requested
from ..replay import INSTANT
from .runs import Moment, Outcome, RecordedJob, Run, Shard, Status, Usual, begin_of, usual_of
from .time_replay import CANDIDATE, Decided

UNRECORDED: Final = 2**61
"""The sequence of a moment that the log does not have: it comes after recorded moments of the same time."""
_ZERO: Final = timedelta()


@dataclass(slots=True, eq=False)
class Arrival:
    """An execution on its way through the replay."""

    outcome: Outcome
    request: Requested | None
    """None: it holds its lock since before the log was read."""
    run: Run | None
    """What the log says of it; None: it was not recorded."""
    needs_lock_at: Moment | None
    """When it needs its lock, or is admitted without one; None: never, as recorded."""
    handing_over: timedelta
    starting: timedelta | None
    """From its begin, which is its admission or a later start by jitter, until a worker starts it; None: no worker did."""
    holding: timedelta
    """From its begin until its end; negative: it ended while its start waited."""
    taking: timedelta = _ZERO
    """From the last cancellation of a holder, under `cancel_previous`, until it acquires the lock."""
    further_requests: list[Moment] = field(default_factory=list)
    """When it cancels a holder that got the lock after the first, oldest first."""
    ends: tuple[Status, str | None] = "completed", None
    end_sequence: int = UNRECORDED
    ends_unadmitted: Moment | None = None
    """When it ends if it was not admitted before, as recorded."""

    @property
    def key(self) -> tuple[str, str]:
        return self.outcome.job, self.outcome.execution_id


@dataclass(slots=True)
class Arrivals:
    """The executions of one job: `recorded` is what the log says of it."""

    recorded: RecordedJob
    usual: Usual = field(init=False)
    _decided_at: dict[datetime, datetime] = field(default_factory=dict)
    """When the recorded instants were decided."""
    _of_instant: dict[datetime, list[Run]] = field(default_factory=dict)
    """The recorded executions of each instant that was decided in the window."""

    def __post_init__(self) -> None:
        for decision in self.recorded.decisions:
            if isinstance(decision.message, Due) and decision.time <= self.recorded.past.now:
                self._decided_at[decision.message.scheduled_time] = decision.time
        for run in self._runs.values():
            if (at := self._instant_of(run)) is not None:
                self._of_instant.setdefault(at, []).append(run)
        moments = ((run, self._needs_lock_at(run)) for run in self._runs.values() if run.begun is not None)
        planning = [max(_ZERO, moment.time - self._requested_at(run)) for run, moment in moments if moment is not None]
        handing_over = [wait for run in self._runs.values() if (wait := self._handing_over(run)) is not None]
        self.usual = usual_of(chain(self.recorded.runs.finished, self._runs.values()), planning, handing_over)

    @property
    def _runs(self) -> Mapping[str, Run]:
        return self.recorded.runs.by_id

    def recorded_outcomes(self) -> Iterator[Outcome]:
        """Yield what the log says of the executions that were requested in the window."""
        for run in self._runs.values():
            if run.begun is None or run.request is None or not self._is_of_window(run):
                continue
            outcome = self._outcome(run.request, run.execution_id, run.shard, self._requested_at(run))
            outcome.status, outcome.reason = run.status
            outcome.found_lock_held = run.queued is not None or bool(run.cancellations) or run.was_skipped_by_lock
            outcome.admitted_at = None if run.held is None else run.held.time
            outcome.started_at = run.started_at
            outcome.ended_at = None if run.ended is None else run.ended.time
            yield outcome

    def carried_over(self) -> Iterator[Arrival]:
        """Yield the executions that were requested before the window, and were not over then."""
        for run in self._runs.values():
            if not self._is_of_window(run):
                yield self._of_run(run, run.request, self._requested_at(run))

    def of_window(self, decided: Iterable[Decided], definition: JobDefinition | None) -> Iterator[Arrival]:
        """Yield the executions of decided instants, and of recorded triggers.

        `definition`: the definition to try; None: the recorded executions keep their plans.
        """
        shards: Sequence[Shard] = sorted({run.shard for run in self._runs.values() if run.shard}) or [None]
        for decision in decided:
            if isinstance(decision.fact, Due) and decision.definition is not None:
                yield from self._of_due(decision.fact, decision.definition, decision.stored, shards, definition)
        for run in self._runs.values():
            if self._is_of_window(run) and self._instant_of(run) is None and run.request is not None:
                request = run.request
                if definition is not None:
                    request = execution_plan.planned_again(request, definition, CANDIDATE)
                yield self._of_run(run, request, self._requested_at(run))

    def _of_due(
        self, due: Due, rule: JobDefinition, stored: datetime, shards: Sequence[Shard], tried: JobDefinition | None
    ) -> Iterator[Arrival]:
        for run in (runs := self._of_instant.get(due.scheduled_time, ())):
            request = run.request
            if request is not None and tried is not None:
                request = execution_plan.planned_again(request, rule, due.definition, stored)
            yield self._of_run(run, request, stored)
        if runs or due.scheduled_time in self._decided_at:
            return
        for shard in shards if rule.partition is not None else (None,):
            request = execution_plan.from_due(due, rule, stored)
            name = request.execution_id if shard is None else ids.shard_execution_id(request.execution_id, shard)
            outcome = self._outcome(request, name, shard, stored, is_estimated=True)
            yield self._arrival(outcome, request, None, Moment(stored + self.usual.planning, UNRECORDED))

    def _of_run(self, run: Run, request: Requested | None, requested_at: datetime) -> Arrival:
        at = self._needs_lock_at(run)
        is_unknown = request is not None and run.held_from is None
        outcome = self._outcome(request, run.execution_id, run.shard, requested_at, is_estimated=is_unknown)
        needs_lock_at = None if at is None else Moment(max(at.time, requested_at), at.sequence)
        arrival = self._arrival(outcome, request, run, needs_lock_at)
        if (handing_over := self._handing_over(run)) is not None:
            arrival.handing_over = handing_over
        if run.cancellations:
            arrival.further_requests = run.cancellations[1:]
            if run.acquired is not None and run.queued is None:
                arrival.taking = max(_ZERO, run.acquired.time - run.cancellations[-1].time)
        if run.held is None:
            if run.ended is not None and not run.was_skipped_by_lock:
                arrival.ends_unadmitted, arrival.ends = run.ended, run.status
            return arrival
        begin = begin_of(run.request, run.held.time)
        arrival.starting = None if run.started_at is None else run.started_at - begin
        if run.ended is None:  # it was still active
            arrival.holding = max(arrival.holding, self.recorded.past.now - begin + INSTANT)
        elif run.superseded_by is not None and run.ended.time > self.recorded.runs.since:
            arrival.holding = max(arrival.holding, run.ended.time - begin)
        else:
            arrival.holding = run.ended.time - begin
            arrival.ends, arrival.end_sequence = run.status, run.ended.sequence
        outcome.is_estimated = run.ended is None or run.superseded_by is not None
        return arrival

    def _arrival(self, outcome: Outcome, request: Requested | None, run: Run | None, at: Moment | None) -> Arrival:
        usual = self.usual
        return Arrival(outcome, request, run, at, usual.handing_over, usual.starting, usual.starting + usual.duration)

    def _outcome(
        self, request: Requested | None, name: str, shard: Shard, at: datetime, *, is_estimated: bool = False
    ) -> Outcome:
        if request is None:
            return Outcome(self.recorded.job, name, "cron", at, shard, at)
        job, trigger, scheduled_time = self.recorded.job, request.trigger, request.scheduled_time
        return Outcome(job, name, trigger, scheduled_time, shard, at, is_estimated=is_estimated)

    def _instant_of(self, run: Run) -> datetime | None:
        """Return the instant of an execution if it was decided in the window."""
        request = run.request
        is_decided = request is not None and request.trigger == "cron" and request.scheduled_time in self._decided_at
        return request.scheduled_time if request is not None and is_decided else None

    def _is_of_window(self, run: Run) -> bool:
        if self._instant_of(run) is not None:
            return True
        is_cron = run.request is None or run.request.trigger == "cron"
        return run.begun is not None and not is_cron and self._requested_at(run) > self.recorded.runs.since

    def _requested_at(self, run: Run) -> datetime:
        """Return when the instant or the first event of an execution was stored."""
        if (at := self._instant_of(run)) is not None:
            return self._decided_at[at]
        # The planner stores the acquisition of a free lock before the first event of the execution.
        moments = [moment.time for moment in (run.begun, run.acquired) if moment is not None]
        return min(moments, default=self.recorded.runs.since)

    def _needs_lock_at(self, run: Run) -> Moment | None:
        """Return when the lock was decided on, or not needed for the admission."""
        if run.cancellations:
            return run.cancellations[0]
        moment = run.ended if run.was_skipped_by_lock else run.queued or run.held_from
        if moment is not None and (run.queued is not None or run.was_skipped_by_lock):
            # The decision rests on a holder that was active. It may be stored just after the end of that holder.
            holder = self._runs.get(run.blocker or "")
            if holder is not None and holder.ended is not None:
                return min(moment, holder.ended)
        return moment

    def _handing_over(self, run: Run) -> timedelta | None:
        """Return the time from the end of its predecessor to its acquisition, if it waited."""
        before = self._runs.get(run.predecessor or "")
        while before is not None and before.acquired is not None and before.ended is not None:
            if before.ended >= before.acquired:
                break
            before = self._runs.get(before.predecessor or "")  # it was cancelled before its turn came
        if run.acquired is None or run.queued is None or before is None or before.ended is None:
            return None
        return max(_ZERO, run.acquired.time - before.ended.time)
