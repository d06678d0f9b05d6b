"""The executions that need the locks of a job, with their durations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Final

from .. import execution_plan, ids
from ..definition import JobDefinition
from ..events import Due, Requested, Skipped
from .outcomes import Outcome, Status, end_of, outcome_of
from .recorded import BY_LOCK, Moment, RecordedJob, Run, Usual, begin_of, usual_of
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
            if isinstance(decision.message, Due) and decision.time <= self.recorded.known_until:
                self._decided_at[decision.message.scheduled_time] = decision.time
        for run in self._runs.values():
            if (at := self._instant_of(run)) is not None:
                self._of_instant.setdefault(at, []).append(run)
        moments = ((run, self._needs_lock_at(run)) for run in self._runs.values() if run.begun is not None)
        planning = [max(_ZERO, moment.time - self._requested_at(run)) for run, moment in moments if moment is not None]
        handing_over = [wait for run in self._runs.values() if (wait := self._handing_over(run)) is not None]
        runs = chain(self.recorded.runs.finished, self._runs.values())
        self.usual = usual_of(runs, planning, handing_over)

    @property
    def _runs(self) -> Mapping[str, Run]:
        return self.recorded.runs.by_id

    def recorded_outcomes(self) -> Iterator[Outcome]:
        """Yield what the log says of the executions that were requested in the window."""
        for run in self._runs.values():
            if run.begun is not None and self._is_of_window(run):
                outcome = outcome_of(self.recorded.job, run, self._requested_at(run))
                if outcome is not None:
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
        shards: Sequence[str | None] = sorted({run.shard for run in self._runs.values() if run.shard}) or [None]
        for decision in decided:
            if isinstance(decision.fact, Due) and decision.definition is not None:
                yield from self._of_due(decision, decision.fact, definition, shards)
        for run in self._runs.values():
            if self._is_of_window(run) and self._instant_of(run) is None and run.request is not None:
                request = run.request
                if definition is not None:
                    request = execution_plan.planned_again(request, definition, CANDIDATE)
                yield self._of_run(run, request, self._requested_at(run))

    def _of_due(
        self, decision: Decided, due: Due, definition: JobDefinition | None, shards: Sequence[str | None]
    ) -> Iterator[Arrival]:
        if runs := self._of_instant.get(due.scheduled_time, ()):
            for run in runs:
                request = run.request
                if request is not None and definition is not None and decision.definition is not None:
                    request = execution_plan.planned_again(
                        request, decision.definition, due.definition, decision.stored
                    )
                yield self._of_run(run, request, decision.stored)
        elif decision.definition is not None and due.scheduled_time not in self._decided_at:
            for shard in shards if decision.definition.partition is not None else (None,):
                request = execution_plan.from_due(due, decision.definition, decision.stored)
                yield self._unrecorded(request, shard, decision.stored)

    def _of_run(self, run: Run, request: Requested | None, requested_at: datetime) -> Arrival:
        at, handing_over = self._needs_lock_at(run), self._handing_over(run)
        arrival = Arrival(
            self._outcome(run, request, requested_at),
            request,
            run,
            None if at is None else Moment(max(at.time, requested_at), at.sequence),
            self.usual.handing_over if handing_over is None else handing_over,
            self.usual.starting,
            self.usual.starting + self.usual.duration,
        )
        if run.cancellations:
            arrival.further_requests = run.cancellations[1:]
            if run.acquired is not None and run.queued is None:
                arrival.taking = max(_ZERO, run.acquired.time - run.cancellations[-1].time)
        held_from = run.held_from
        is_admitted = held_from is not None and (run.ended is None or run.ended >= held_from)
        if not is_admitted or held_from is None:
            if run.ended is not None and not _is_skipped_by_lock(run):
                arrival.ends_unadmitted, arrival.ends = run.ended, end_of(run)
            return arrival
        begin = begin_of(run.request, held_from.time)
        arrival.starting = None if run.started_at is None else run.started_at - begin
        if run.ended is None:
            # It was still active.
            arrival.holding = max(arrival.holding, self.recorded.known_until - begin + timedelta(microseconds=1))
        elif run.superseded_by is not None and run.ended.time > self.recorded.runs.since:
            arrival.holding = max(arrival.holding, run.ended.time - begin)
        else:
            arrival.holding = run.ended.time - begin
            arrival.ends, arrival.end_sequence = end_of(run), run.ended.sequence
        arrival.outcome.is_estimated = run.ended is None or run.superseded_by is not None
        return arrival

    def _outcome(self, run: Run, request: Requested | None, requested_at: datetime) -> Outcome:
        if request is None:
            return Outcome(self.recorded.job, run.execution_id, "cron", requested_at, run.shard, requested_at)
        return Outcome(
            *(self.recorded.job, run.execution_id, request.trigger, request.scheduled_time, run.shard, requested_at),
            is_estimated=run.held_from is None,
        )

    def _unrecorded(self, request: Requested, shard: str | None, requested_at: datetime) -> Arrival:
        """Return the arrival of an execution that the log does not have."""
        name = request.execution_id if shard is None else ids.shard_execution_id(request.execution_id, shard)
        outcome = Outcome(
            *(request.job, name, request.trigger, request.scheduled_time, shard, requested_at), is_estimated=True
        )
        usual = self.usual
        return Arrival(
            outcome,
            request,
            None,
            Moment(requested_at + usual.planning, UNRECORDED),
            usual.handing_over,
            usual.starting,
            usual.starting + usual.duration,
        )

    def _instant_of(self, run: Run) -> datetime | None:
        """Return the instant of an execution if it was decided in the window."""
        request = run.request
        if request is None or request.trigger != "cron" or request.scheduled_time not in self._decided_at:
            return None
        return request.scheduled_time

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
        moment = run.ended if _is_skipped_by_lock(run) else run.queued or run.held_from
        if moment is None:
            return None
        if run.queued is not None or _is_skipped_by_lock(run):
            # The decision rests on a holder that was active. It may be stored just after the end of that holder.
            holder = self._runs.get(run.blocker or "")
            if holder is not None and holder.ended is not None:
                return min(moment, holder.ended)
        return moment

    def _handing_over(self, run: Run) -> timedelta | None:
        """Return the time from the end of its predecessor to its acquisition.

        None: it did not wait for the lock.
        """
        before = self._runs.get(run.predecessor or "")
        while before is not None and _acquired_when_over(before):
            before = self._runs.get(before.predecessor or "")
        if run.acquired is None or run.queued is None or before is None or before.ended is None:
            return None
        return max(_ZERO, run.acquired.time - before.ended.time)


def _acquired_when_over(run: Run) -> bool:
    """Return whether an execution was cancelled while it waited, before its turn came."""
    return run.acquired is not None and run.ended is not None and run.ended < run.acquired


def _is_skipped_by_lock(run: Run) -> bool:
    return isinstance(run.end, Skipped) and run.end.reason in BY_LOCK
