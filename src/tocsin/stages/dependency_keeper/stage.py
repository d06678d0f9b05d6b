"""Dependency keeper: holds executions until other jobs have run (scratchbird, Job Dependencies).

An execution depends on the last run of each job in a window. When all of these have ended as wanted, or the time for it is over,
the dependency keeper stores `dependencies-settled`. The lock keeper then admits or skips the execution.

Everything is read from the log: a process that stopped left nothing behind. Only the holder of the lease acts. That only saves work,
because every append is guarded by the state of the execution.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from ... import subjects, telemetry
from ...domain import execution
from ...domain.definition import JobDefinition
from ...domain.dependency import Outcome, Run, Runs, Window, as_fact, knows_all, state_of, window
from ...domain.events import DependenciesSettled, DependencyRun, Message, Recorded
from ...domain.ledger import Ledger
from ...engine.leader_election import TERM_EVENTS, LeaderElection, lease_access
from ...engine.ledger_reader import LedgerReader
from ...engine.saved_place import SavedPlace
from ...engine.stage import Access, Stage, StageContext
from ...ports import Append, Clock, EventLog, LogUnavailable, OutdatedState, Projections, StoredLog
from ...subjects import DEPENDENCY_KEEPER_LEASE, Bucket, Stream
from .dependents import Dependent, Dependents
from .upstream_runs import UpstreamRuns

AT_A_TIME: Final = 64
"""Executions whose wait ends in one write."""
TICK_S: Final = 0.5
"""The time after which deadlines are looked at, although nothing arrives."""
SOON: Final = timedelta(seconds=1)
"""When an execution is examined again whose answer is not certain yet."""
LATEST: Final = timedelta(minutes=1)
"""The longest time between two such examinations."""
LEASE_S: Final = 4.0
"""The time to live of the leader lease: no wait ends for so long after the leader was killed."""
CURSOR: Final = subjects.cursor(Stream.LOG, subjects.DEPENDENCY_KEEPER)
_ENDS: Final = tuple(
    subjects.filter_for(f"execution.{event}") for event in ("dependencies-settled", "cancelled", "skipped")
)
"""Filters over the events that end a wait."""

_log = telemetry.get_logger("tocsin.dependency_keeper")


class DependencyKeeper:
    """Decides when an execution has waited long enough for other jobs."""

    def __init__(
        self, log: EventLog, stored: StoredLog, projections: Projections, leadership: LeaderElection, clock: Clock
    ) -> None:
        """`stored`: the streams and their archive."""
        self._log = log
        self._clock = clock
        self._leadership = leadership
        self._ledgers = LedgerReader(log)
        self.dependents = Dependents()
        self._runs = UpstreamRuns(log, stored, clock, self._on_run)
        self._place = SavedPlace(projections, clock, CURSOR)
        self._changed = asyncio.Event()
        self._upto = 0
        self.is_complete = False

    # --- loops -----------------------------------------------------------------------------------------------------------

    async def lead(self) -> None:
        """Hold the leader lease, or try to."""
        await self._leadership.run()

    async def follow(self) -> None:
        """Follow which executions wait."""
        filters = subjects.DEPENDENTS, *_ENDS
        async for batch in self._log.follow(Stream.LOG, *filters, after=await self._place.load()):
            for recorded in batch.messages:
                self.dependents.learn(recorded)
            self._upto = batch.upto
            self.is_complete = self.is_complete or batch.caught_up
            self._changed.set()

    async def follow_runs(self) -> None:
        """Follow the runs of the jobs for which executions wait."""
        await self._runs.follow()

    async def run(self) -> None:
        """End the wait of executions, as long as this process leads."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            now = await self._leadership.time()
            if now is None or not self.is_complete:
                continue
            try:
                await self.run_once(now)
            except (LogUnavailable, OutdatedState) as error:
                _log.info("executions wait for JetStream", action="log-unavailable", error=str(error))
            except Exception as error:  # noqa: BLE001 - the other executions go on
                _log.error("executions not examined; retrying", action="undecidable", exc_info=error)

    async def tick(self) -> None:
        """Let `run` look at deadlines although nothing arrives."""
        while True:
            await self._clock.sleep(TICK_S)
            self._changed.set()

    def _on_run(self, job: str, run: Run | None) -> None:
        self.dependents.on_run(job, run)
        self._changed.set()

    # --- decisions -------------------------------------------------------------------------------------------------------

    async def run_once(self, now: datetime) -> None:
        """Examine every execution that is due at `now` (UTC)."""
        due = self.dependents.take(now)
        while some := list(islice(due, AT_A_TIME)):
            for dependent in some:
                self.dependents.look_again(dependent.scope, now + SOON)  # also after an error
            await self._examine(some, now)
        self._runs.keep_only(self.dependents.upstream)
        await self._place.save(self.dependents.oldest, self._upto)

    async def _examine(self, some: Sequence[Dependent], now: datetime) -> None:
        ledgers: dict[str, Ledger] = {}
        settled: dict[str, tuple[Outcome, tuple[DependencyRun, ...]]] = {}
        for dependent in some:
            answer = None
            try:
                answer = await self._answer(dependent, ledgers, now)
            except LogUnavailable:
                raise
            except OutdatedState:
                pass  # a lagging replica answered
            except Exception as error:  # noqa: BLE001 - the other executions go on
                _log.error("execution not examined", action="undecidable", scope=dependent.scope, exc_info=error)
                self.dependents.look_again(dependent.scope, now + LATEST)
            if answer is None and dependent.deadline + LATEST <= now:
                answer = "dependency_missing", dependent.unknown_runs()  # it waits no longer for what cannot be read
            if answer is not None:
                settled[dependent.scope] = answer
        await self._settle(settled)

    async def _answer(
        self, dependent: Dependent, ledgers: dict[str, Ledger], now: datetime
    ) -> tuple[Outcome, tuple[DependencyRun, ...]] | None:
        """Return how the wait of an execution ends; None: it goes on.

        What is read comes first: the answer rests on the runs of one moment, and none that is stored by then is missing in them.
        """
        windows = await self._windows(dependent)
        if (runs := self._known_runs(windows)) is None:
            return None  # `on_run` and the next tick look at it again
        if not self._may_end(dependent, windows, runs, now):
            return None
        for job, _ in windows:
            if job not in ledgers:
                ledgers[job], _ = await self._ledgers.load(job)
        filters = tuple(name for job in dict(windows) for name in subjects.runs(job))
        if await self._log.has_newer(*filters, after=self._runs.upto):
            return None
        if (runs := self._known_runs(windows)) is None:
            return None
        return self._outcome(dependent, windows, runs, ledgers, now)

    def _known_runs(self, windows: Sequence[tuple[str, Window]]) -> list[Runs] | None:
        """Return the runs of each job; None: some are not read yet."""
        read = [self._runs.of(job, window.since) for job, window in windows]
        runs = [known for known in read if known is not None]
        return runs if len(runs) == len(read) else None

    def _may_end(
        self, dependent: Dependent, windows: Sequence[tuple[str, Window]], runs: Sequence[Runs], now: datetime
    ) -> bool:
        """Return whether the wait may be over, as far as the runs say."""
        if dependent.deadline <= now:
            return True
        of_each = zip(dependent.depends_on, runs, windows, strict=True)
        if all(state_of(dependency, known.last(span)) == "met" for dependency, known, (_, span) in of_each):
            return True
        self.dependents.look_again(dependent.scope, dependent.deadline)
        return False

    def _outcome(
        self,
        dependent: Dependent,
        windows: Sequence[tuple[str, Window]],
        runs: Sequence[Runs],
        ledgers: Mapping[str, Ledger],
        now: datetime,
    ) -> tuple[Outcome, tuple[DependencyRun, ...]] | None:
        """Return how the wait of an execution ends; None: it goes on."""
        dependencies = dependent.depends_on
        last = [known.last(span) for known, (_, span) in zip(runs, windows, strict=True)]
        states = [state_of(dependency, run) for dependency, run in zip(dependencies, last, strict=True)]
        facts = tuple(
            as_fact(dependency, span, run)
            for dependency, (_, span), run in zip(dependencies, windows, last, strict=True)
        )
        is_met = all(state == "met" for state in states)
        if is_met and all(
            knows_all(known, ledgers[job], span) for known, (job, span) in zip(runs, windows, strict=True)
        ):
            return "met", facts
        if dependent.deadline <= now:
            return "dependency_failed" if "failed" in states else "dependency_missing", facts
        again = dependent.deadline
        if is_met:  # a later run may still come
            again = min(again, now + min(LATEST, max(SOON, (now - dependent.since) / 8)))
        self.dependents.look_again(dependent.scope, again)
        return None

    async def _windows(self, dependent: Dependent) -> list[tuple[str, Window]]:
        """Return the jobs on which an execution depends, each with its window."""
        definition: JobDefinition = await self._ledgers.definition(dependent.job, dependent.definition)
        windows: list[tuple[str, Window]] = []
        for dependency in dependent.depends_on:
            span = window(dependency, definition, dependent.scheduled_time)
            self.dependents.note_window(dependent.scope, dependency.job, span)
            windows.append((dependency.job, span))
        return windows

    async def _settle(self, settled: Mapping[str, tuple[Outcome, tuple[DependencyRun, ...]]]) -> None:
        """Store that executions wait no longer; what another writer changed is examined again."""
        if not settled:
            return
        reads = await self._log.load_each(*settled)
        writes: list[Append] = []
        for (scope, (outcome, runs)), facts in zip(settled.items(), reads.facts, strict=True):
            events = _settle(facts, outcome, runs)
            if events:
                writes.append(Append(tuple(events), facts[-1].sequence))
            elif facts or not await self._log.tail(scope):  # it is over, and may be archived
                self.dependents.forget(scope)
        for write, result in zip(writes, await self._log.write(writes) if writes else [], strict=True):
            if result.error is None:
                self.dependents.forget(write.scope)
            elif not isinstance(result.error, OutdatedState | LogUnavailable):
                raise result.error


def _settle(
    facts: Sequence[Recorded[Message]], outcome: Outcome, runs: tuple[DependencyRun, ...]
) -> list[DependenciesSettled]:
    return execution.settle(execution.fold(facts), outcome, runs)


def _start(context: StageContext) -> DependencyKeeper:
    return DependencyKeeper(
        context.log,
        context.require_stored(),
        context.projections,
        context.elect(DEPENDENCY_KEEPER_LEASE, signs=(), ttl=LEASE_S),
        context.clock,
    )


DEPENDENCY_KEEPER: Final = Stage(
    name="dependency_keeper",
    purpose="holds executions until the jobs on which they depend have run; one leads",
    consumes="executions that depend on other jobs, and runs of these jobs",
    decides="`dependencies-settled`",
    access=Access(
        appends=(DependenciesSettled, *TERM_EVENTS),
        reads=(Stream.LOG, Stream.LEDGER),
        follows=(Stream.LOG,),
        writes=(*lease_access(DEPENDENCY_KEEPER_LEASE), (Bucket.CURSORS, CURSOR)),
        reads_archive=True,
    ),
    start=_start,
    loops=(
        DependencyKeeper.lead,
        DependencyKeeper.follow,
        DependencyKeeper.follow_runs,
        DependencyKeeper.run,
        DependencyKeeper.tick,
    ),
)
