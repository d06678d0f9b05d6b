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
from typing import Final, NamedTuple, TypeAlias

from ... import subjects, telemetry
from ...domain import execution
from ...domain.access import may_follow
from ...domain.dependency import Run, Upstream, Window, decide, is_decided, window
from ...domain.events import DependenciesSettled, DependencyRun, Message, Recorded, WaitOutcome
from ...domain.ledger import Ledger
from ...engine.leader_election import LeaderElection, lease_access
from ...engine.leadership_events import TERM_EVENTS
from ...engine.ledger_reader import LedgerReader
from ...engine.saved_place import SavedPlace
from ...engine.stage import Access, Stage, StageContext
from ...ports import Append, Clock, EventLog, LogUnavailable, OutdatedState, Projections, StoredLog
from ...subjects import DEPENDENCY_KEEPER_LEASE, Bucket, Stream
from .dependents import Dependent, Dependents
from .upstream_runs import UpstreamRuns

AT_ONCE: Final = 64
"""Executions whose wait ends in one write."""
TICK_S: Final = 0.5
"""The time after which deadlines are looked at, although nothing arrives."""
SOON: Final = timedelta(seconds=1)
"""When an execution is examined again whose answer is not certain yet."""
LATEST: Final = timedelta(minutes=1)
"""The longest time between two such examinations."""
CATCH_UP_S: Final = 5.0
"""How long an examination waits for runs that are stored and not known yet."""
CATCH_UP_TICK_S: Final = 0.05
LEASE_S: Final = 4.0
"""The time to live of the leader lease: no wait ends for so long after the leader was killed."""
CURSOR: Final = subjects.cursor(Stream.LOG, subjects.DEPENDENCY_KEEPER)
_ENDS: Final = tuple(
    subjects.filter_for(f"execution.{event}") for event in ("dependencies-settled", "cancelled", "skipped")
)
"""Filters over the events that end a wait."""

Answer: TypeAlias = tuple[WaitOutcome, tuple[DependencyRun, ...]]
"""How a wait ends, and the runs on which that rests."""

_log = telemetry.get_logger("tocsin.dependency_keeper")


class _Known(NamedTuple):
    """Reads that the executions of one examination share."""

    ledgers: dict[str, Ledger]
    """Those of the jobs whose runs were proven complete after it was read."""
    windows: dict[tuple[str, Window], bool]
    """Whether all runs of a job in a window are known."""


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
        async for batch in self._log.follow(Stream.LOG, *filters, after=(await self._place.load()).after):
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
        while some := list(islice(due, AT_ONCE)):
            for dependent in some:
                self.dependents.look_again(dependent.scope, now + SOON)  # also after an error
            await self._examine(some, now)
        self._runs.keep_only(self.dependents.upstream)
        await self._place.save(lambda: (0, (), self.dependents.oldest), self._upto)

    async def _examine(self, some: Sequence[Dependent], now: datetime) -> None:
        known = _Known({}, {})
        settled: dict[str, Answer] = {}
        for dependent in some:
            answer: Answer | None = None
            try:
                answer = ("queue_full", ()) if dependent.is_surplus else await self._answer(dependent, known, now)
            except LogUnavailable:
                raise
            except OutdatedState:
                pass  # a lagging replica answered
            except Exception as error:  # noqa: BLE001 - the other executions go on
                _log.error("execution not examined", action="undecidable", scope=dependent.scope, exc_info=error)
                self.dependents.look_again(dependent.scope, now + LATEST)
            if answer is not None:
                settled[dependent.scope] = answer
        await self._settle(settled)

    async def _answer(self, dependent: Dependent, known: "_Known", now: datetime) -> Answer | None:
        """Return how the wait of an execution ends; None: it goes on.

        What is read comes first: the answer rests on the runs of one moment, and none that is stored by then is missing in them.
        While a run in a window may be missing, the execution waits, also beyond its deadline: `tocsin doctor` names it.
        """
        windows = await self._windows(dependent)
        is_late = dependent.deadline <= now
        if (runs := self._upstream(dependent, windows)) is None:
            return None  # `on_run` and the next tick look at it again
        if not is_late and any(each.state != "met" for each in runs):
            self.dependents.look_again(dependent.scope, dependent.deadline)
            return None
        later = now + min(LATEST, max(SOON, (now - dependent.since) / 8))
        self.dependents.look_again(dependent.scope, later if is_late else min(dependent.deadline, later))
        if not await self._read_ledgers([each.job for each in dependent.depends_on], known.ledgers):
            return None
        if (runs := self._upstream(dependent, windows)) is None:
            return None
        upstream = await self._marked(dependent, runs, known.ledgers)
        if not all([await self._knows_runs(each, known) for each in upstream if not each.is_hidden]):
            return None
        return await self._decided(dependent, upstream, now)

    async def _marked(
        self, dependent: Dependent, upstream: Sequence[Upstream], ledgers: Mapping[str, Ledger]
    ) -> Sequence[Upstream]:
        """Mark the jobs that the viewers in force hide from the execution's job."""
        definitions = [ledgers[each.dependency.job].definition for each in upstream]
        if not any(definition and definition.viewers for definition in definitions):
            return upstream
        own, _ = await self._ledgers.load(dependent.job)
        return [each._replace(is_hidden=not may_follow(own, ledgers[each.dependency.job])) for each in upstream]

    async def _decided(self, dependent: Dependent, upstream: Sequence[Upstream], now: datetime) -> Answer | None:
        """Return how a wait ends if all runs in its windows are known."""
        deadline = max(dependent.deadline_after(each.last) for each in upstream)
        outcome = decide(upstream, is_late=deadline <= now)
        if outcome is None:
            self.dependents.look_again(dependent.scope, deadline)
        elif outcome == "met" or all([await self._is_open(each) for each in upstream if each.state == "waits"]):
            return outcome, tuple(each.fact for each in upstream)
        return None

    async def _windows(self, dependent: Dependent) -> list[Window]:
        """Return the window of each dependency of an execution."""
        if (windows := self.dependents.windows_of(dependent)) is None:
            definition = await self._ledgers.definition(dependent.job, dependent.definition)
            windows = [window(each, definition, dependent.scheduled_time) for each in dependent.depends_on]
            self.dependents.note_windows(dependent, windows)
        return windows

    def _upstream(self, dependent: Dependent, windows: Sequence[Window]) -> list[Upstream] | None:
        """Return the jobs on which an execution depends.

        None: the runs of some are not read yet.
        """
        upstream: list[Upstream] = []
        is_known = True
        for dependency, span in zip(dependent.depends_on, windows, strict=True):
            if (runs := self._runs.of(dependency.job, span.since)) is None:
                is_known = False  # go on, so that the runs of the others are read too
            else:
                upstream.append(Upstream(dependency, span, runs))
        return upstream if is_known else None

    async def _read_ledgers(self, jobs: Sequence[str], ledgers: dict[str, Ledger]) -> bool:
        """Read the ledgers that are missing.

        Return whether all runs that were stored until then are known.
        """
        missing = [job for job in jobs if job not in ledgers]
        if not missing:
            return True
        read = {job: (await self._ledgers.load(job))[0] for job in missing}
        filters = tuple(name for job in missing for name in subjects.runs(job))
        if await self._log.has_newer(*filters, after=self._runs.upto) and not await self._catch_up(filters):
            return False
        ledgers |= read
        return True

    async def _knows_runs(self, each: Upstream, known: "_Known") -> bool:
        """Return whether no instant of a window after the last known run lacks its run."""
        job, window = each.dependency.job, each.window
        if (job, window) not in known.windows:
            ledger, last = known.ledgers[job], each.last
            since = window.since if last is None else last.scheduled_time
            known.windows[job, window] = is_decided(ledger, window) and (
                ledger.last_fired is None
                or ledger.last_fired <= since
                or await self._runs.are_planned(job, Window(since, window.until))
            )
        return known.windows[job, window]

    async def _is_open(self, each: Upstream) -> bool:
        """Return whether the last run goes on, and not only its end is unknown here.

        Raises:
            DecodeError: an event of it is unreadable.
        """
        if (run := each.last) is None:
            return False
        facts = await self._log.load(subjects.execution(each.dependency.job, run.execution_id))
        return bool(facts) and not execution.fold(facts).is_over

    async def _catch_up(self, filters: Sequence[str]) -> bool:
        """Wait a moment until all runs that are stored by now are known.

        Runs that begin meanwhile do not count: a job that runs all the time would never be known.
        """
        end, begun = await self._log.end(Stream.LOG), self._clock.monotonic()
        while await self._log.has_newer(*filters, after=self._runs.upto, upto=end):
            if self._clock.monotonic() - begun > CATCH_UP_S:
                return False
            await self._clock.sleep(CATCH_UP_TICK_S)
        return True

    async def _settle(self, settled: Mapping[str, Answer]) -> None:
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
    facts: Sequence[Recorded[Message]], outcome: WaitOutcome, runs: tuple[DependencyRun, ...]
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
        follows=(Stream.LOG, Stream.LEDGER),
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
