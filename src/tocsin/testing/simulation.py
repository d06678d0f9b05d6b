"""A whole Tocsin in a test, on a clock that the test moves."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta, tzinfo
from types import TracebackType
from typing import Any, Final, Self

from pydantic import JsonValue

from ..app.application import Tocsin
from ..app.declarations import Declarations
from ..app.job import Job, name_of, request_of
from ..bootstrap.in_memory import InMemoryInstallation, open_in_memory, run_stages_in_memory
from ..bootstrap.in_process import operator_in_memory
from ..bootstrap.stage_runner import STAGE_NAMES
from ..bootstrap.workers import connection_of
from ..domain.definition import JobDefinition
from ..domain.errors import TocsinError
from ..domain.execution_record import ExecutionRecord
from ..domain.ledger import JobNotFound
from ..domain.policy import NO_POLICY
from ..ports import History
from ..services.apply import completed
from ..services.jobs import Registry
from ..settings import Archive, Settings
from ..stages.recorder.stage import RECORDER, catch_up
from ..worker import Worker
from .clock import SimulatedClock, end_of, instant_of, zone_of
from .loop_time import LoopTime, installed
from .record import Definitions, Record, Skip, opened_by, read
from .rest import CLEANUP_S, CLEANUP_WAKES, StuckError, rest, stop
from .watchdog import Watchdog
from .worker_process import Handling, Injected, WorkerProcess

RUN_UP: Final = timedelta(seconds=1)
"""Time that passes in full before each instant, so that loops of the stages have their turns."""
LOOK: Final = timedelta(seconds=10)
"""How often the stages look at executions that wait, and are decided on by their age."""
SIMULATED: Final = tuple(name for name in STAGE_NAMES if name != RECORDER.name)
"""The stages of a simulation. It reads outcomes from the log, and writes the history only when it is read."""
LOSS_S: Final = 60.0
"""Simulated seconds within which the stages certainly notice that a worker was killed."""


class SimulationError(TocsinError):
    """The simulation cannot go on; the text says why, and what to change."""

    code = "simulation-stuck"


class Simulation:
    """A whole Tocsin in a test: the real stages and the real worker.

        async with Simulation(app, at="2026-03-08T00:00", tz="America/New_York") as simulation:
            await simulation.advance("3 days")
            assert simulation.instants("nightly") == [...]

    No time passes but in `advance`. Handlers that wait by `asyncio.sleep` or `asyncio.timeout` wait for the simulated time too; the test
    itself keeps the time of the machine. A sync handler runs in a thread, and the simulation waits for it.

    Within the block an application is connected to the simulation: `app.trigger`, `app.client` and so on work there, in handlers too.
    """

    def __init__(
        self,
        app: Declarations | Worker | None = None,
        *,
        at: datetime | str = "2026-01-01T00:00",
        tz: str = "UTC",
        definitions: Definitions = (),
        only: Iterable[Job[..., Any] | str] | None = None,
        settings: Settings | None = None,
        thread_limit: float = 10.0,
    ) -> None:
        """Prepare a simulation; it starts as a context.

        Args:
            app: an application, or a `Worker` with handlers; None: no worker runs.
            at: the time at which it starts; without an offset, in `tz`.
            tz: the time zone of `at`, of spans in days, and of the times that the simulation returns.
            definitions: more jobs: definitions, or files of them.
            only: the jobs to register, or their names; None: all. The functions of the others stay with the worker.
            settings: the settings of the installation, with queues and policies; by default none are read from the environment. Without
                `triggers.streams`, the subjects are open that `triggers` of these jobs name.
            thread_limit: seconds of the machine's time that a sync handler may run, or an async handler without an `await`.

        Raises:
            ValueError: `at` is not a time, `tz` not a time zone, or `only` names no job of these.
            DefinitionError: a file of definitions is invalid.
        """
        self.zone: tzinfo = zone_of(tz)
        """The time zone of the returned times."""
        self._clock = SimulatedClock(instant_of(at, self.zone))
        self._app = app if isinstance(app, Tocsin) else None
        self._worker: Worker | None
        self._declared: Mapping[str, Job[..., Any]] = {}
        self._definitions = read(definitions)
        if isinstance(app, Declarations):
            self._worker, self._declared = app.worker, app.declared
            self._definitions = (*app.definitions, *self._definitions)
        else:
            self._worker = app
        if only is not None:
            self._definitions = _chosen(self._definitions, only)
        base = settings or Settings()
        changes = {"archive": Archive(enabled=False), "triggers": opened_by(self._definitions, base.triggers)}
        self._settings = base.model_copy(update=changes)
        self._thread_limit = thread_limit
        self._watchdog = Watchdog(thread_limit)
        self._stack = AsyncExitStack()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._process: WorkerProcess | None = None
        self._awake_until = 0.0
        """No time is skipped before (seconds of the clock): the stages have to notice that a worker is gone."""
        self._handling: Handling | None = None
        self._stubborn: frozenset[str] = frozenset()
        """The handlers, and their tasks, that did not end when they were cancelled."""
        self._recording = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Start the stages and the worker, register the jobs, and connect the application.

        Raises:
            ConnectedElsewhereError: the application is connected already, such as to another simulation.
            DefinitionError: a definition is invalid.
        """
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            stack.enter_context(installed(loop))
            stack.enter_context(self._watchdog.watching())
            self._time = LoopTime(self._clock, loop)
            self.installation: InMemoryInstallation = await stack.enter_async_context(
                open_in_memory(self._settings, self._clock)
            )
            self._record = Record(self.installation.commit_log, await self.installation.commits.reader.seal())
            self._registry = Registry(self.installation.log, self.installation.projections, self._clock)
            if self._app is not None:
                operator = operator_in_memory(self.installation, None, history=self._history)
                await stack.enter_async_context(self._app.connected(operator))
            stack.push_async_callback(self._stop)
            self._tasks["the stages"] = self._time.start(
                run_stages_in_memory(self.installation, SIMULATED, channels={}), "the stages"
            )
            await self._rest()
            if self._worker is not None:
                self._handling = Handling(self._worker.handlers, self._clock)
                stack.callback(self._handling.close)
                await self.start_worker()
            await self.apply(*self._definitions)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop everything.

        Raises:
            SimulationError: a handler, or a task that it started, does not end when it is cancelled. The error of the test comes first.
        """
        await self._stack.aclose()
        if self._stubborn and error is None:
            names = ", the ".join(sorted(self._stubborn))
            raise SimulationError(
                f"the {names} did not end when the simulation cancelled it. Let it raise `asyncio.CancelledError` again, "
                f"and clean up within {CLEANUP_S:.0f} simulated seconds and {CLEANUP_WAKES:,} waits"
            )

    async def _stop(self) -> None:
        tasks = self._tasks.values()
        self._stubborn = await stop(self._clock, self._time, self._handling, tasks, self._watchdog)

    @asynccontextmanager
    async def _history(self) -> AsyncIterator[History]:
        installation = self.installation
        async with self._recording:
            await catch_up(installation.log, installation.recorded, installation.clock, past=installation.stored)
        yield installation.recorded

    @property
    def now(self) -> datetime:
        """The simulated time, in the time zone of the simulation."""
        return self._clock.now().astimezone(self.zone)

    async def advance(self, span: str | float | timedelta) -> None:
        """Let time pass, and bring everything to rest at each instant, in order.

        `3 days` ends at the same time of the day, also across a change of the clocks; `72h`, seconds and a `timedelta` are exact. In
        `2 days 12h`, the exact part follows the days.

        Raises:
            DurationError, ValueError: it is no span, or a negative span.
            SimulationError: a handler holds the simulation up.
        """
        await self.advance_to(end_of(self._clock.now(), span, self.zone))

    async def advance_to(self, instant: datetime | str) -> None:
        """Let time pass until an instant.

        Without an offset, it is in the time zone of the simulation.

        Raises:
            ValueError: it is not a time, or in the past.
            SimulationError: a handler holds the simulation up.
        """
        end = instant_of(instant, self.zone)
        if end < self._clock.now():
            raise ValueError(f"time does not go back: it is {self.now.isoformat()}, after {instant}")
        await self._rest()
        while (now := self._clock.now()) < end:
            self._record.read()
            due = self._record.next_instant()
            goal = end if due is None or due <= now else min(end, due)
            if self._is_idle() and (due is None or due > now):
                goal = self._sleep_over(now, goal)
            alarm = self._clock.next_alarm()
            left = (goal - self._clock.now()).total_seconds()
            self._clock.advance(left if alarm is None else min(alarm, left))
            if self._clock.now() >= goal:
                self._clock.wake_polls()
            await self._rest()
        self._record.read()

    def _sleep_over(self, now: datetime, goal: datetime) -> datetime:
        """Skip the time in which nothing can happen, and return when something may."""
        if (alarm := self._clock.next_instant()) is not None:
            goal = min(goal, alarm)
        if self._record.is_open:
            goal = min(goal, now + LOOK)
        if goal - now > RUN_UP:
            self._clock.skip(goal - now - RUN_UP)
        return goal

    def _is_idle(self) -> bool:
        is_working = self._handling is not None and self._handling.running > 0
        is_working = is_working or self._clock.monotonic() < self._awake_until
        return (
            not (is_working or self._time.has_timers)
            and self.installation.inputs.is_idle
            and self.installation.events.is_idle
        )

    async def _rest(self) -> None:
        """Let every task run until it waits."""
        try:
            await rest(self._time, self._handling, self._thread_limit, self._watchdog)
        except StuckError as error:
            raise SimulationError(f"{error} (at {self.now.isoformat()})") from None
        self._check()

    def _check(self) -> None:
        for name, task in self._tasks.items():
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise SimulationError(f"{name} failed: {error!r}") from error

    def executions(self, job: str | None = None) -> Sequence[ExecutionRecord]:
        """Return the executions of a job, or of all jobs, by scheduled time.

        Raises:
            JobNotFound: the job never existed.
        """
        self._record.read()
        if job is not None and not self._record.knows(job):
            raise JobNotFound(job)
        found = [each for each in self._record.executions.values() if job is None or each.job == job]
        return sorted(found, key=lambda each: each.scheduled_time)

    def execution(self, execution_id: str) -> ExecutionRecord:
        """Return one execution.

        Raises:
            KeyError: no execution has this id.
        """
        self._record.read()
        return self._record.executions[execution_id]

    def instants(self, job: str) -> list[datetime]:
        """Return the instants of the schedule at which a job ran.

        They are in the time zone of the simulation.

        Raises:
            JobNotFound: the job never existed.
        """
        ran = [each for each in self.executions(job) if each.trigger == "cron" and each.status != "skipped"]
        return [each.scheduled_time.astimezone(self.zone) for each in ran]

    def skips(self, job: str) -> list[Skip]:
        """Return the instants at which a job did not run, with their reasons.

        Raises:
            JobNotFound: the job never existed.
        """
        passed = {
            at: passed.reason for passed in self._record.passed if passed.job == job for at in passed.scheduled_times
        }
        skipped = {each.scheduled_time: each.reason or "" for each in self.executions(job) if each.status == "skipped"}
        reasons = {**skipped, **passed, **self._record.passed_together(job)}
        return [Skip(at.astimezone(self.zone), reasons[at]) for at in sorted(reasons)]

    def results(self, job: str) -> list[Any]:
        """Return the results of the completed executions of a job, each as `run.result()` returns it.

        Raises:
            JobNotFound: the job never existed.
        """
        completed = [each.execution_id for each in self.executions(job) if each.status == "completed"]
        return [self._record.outcome(id_).value() for id_ in completed]

    async def apply(self, *definitions: JobDefinition) -> None:
        """Create or change jobs.

        Raises:
            DefinitionError: a definition is invalid.
        """
        await self._registry.apply([completed(definition, NO_POLICY, self._settings) for definition in definitions])
        await self._rest()

    async def trigger(self, job: Job[..., Any] | str, /, **given: object) -> str:
        """Request an execution now, bring it to rest, and return its id.

        `job` and `given`: as of `app.trigger`. So the input may have the types of the function's parameters.

        Raises:
            JobNotFound: no job has this name.
            DefinitionError: the job does not accept this input.
        """
        name, written = request_of(job, self._declared, given)
        id_ = await self._registry.trigger(name, written)
        await self._rest()
        return id_

    async def publish(self, subject: str, body: JsonValue = None, *, headers: Mapping[str, str] | None = None) -> None:
        """Publish a message that `triggers` of jobs may hear, and bring it to rest.

        It is stored in each stream that is open for its subject.

        Raises:
            SimulationError: no stream is open for the subject.
        """
        if not self.installation.events.publish(subject, json.dumps(body).encode(), headers):
            raise SimulationError(
                f"no stream is open for {subject!r}: name it in `triggers` of a job that the simulation starts with, "
                "or in `triggers.streams` or `triggers.subjects` of its settings"
            )
        await self._rest()

    async def pause(self, job: str) -> None:
        """Pause a job."""
        await self._registry.pause(job)
        await self._rest()

    async def resume(self, job: str) -> None:
        """Resume a job."""
        await self._registry.resume(job)
        await self._rest()

    def fail(self, name: str, *, times: int = 1, error: BaseException | None = None) -> None:
        """Let the next runs of a step, or of a function, fail before they begin.

        `error`: None is a `RuntimeError`, which is retried by the policy of the job.

        Raises:
            ValueError: `times` is less than 1.
            SimulationError: no worker runs.
        """
        if times < 1:
            raise ValueError(f"times: at least 1, not {times}")
        self._running().injected.append(Injected(name, times, error or RuntimeError(f"injected failure of {name}")))

    async def kill_worker(self, *, restart: bool = True) -> None:
        """Kill the worker as SIGKILL does.

        Nothing leaves it any more, and its work is lost. The matcher notices after some 30 seconds, and hands its tasks to another worker. `restart`: another starts at once.
        """
        self._running()
        if self._process is not None:
            self._process.kill()
            self._process = None
            self._running().started.cancel()
            self._awake_until = self._clock.monotonic() + LOSS_S
        await self._rest()
        if restart:
            await self.start_worker()

    async def start_worker(self) -> None:
        """Start the worker again after `kill_worker(restart=False)`."""
        handling = self._running()
        if self._worker is None or self._process is not None:
            return
        options = self._worker.options
        process = WorkerProcess(options, handling, connection_of(self.installation, self.installation.agents, options))
        self._process = process
        self._tasks["the worker"] = self._time.start(process.run(), "the worker")
        await self._rest()
        self._clock.wake_polls()
        await self._rest()

    def _running(self) -> Handling:
        if self._handling is None:
            raise SimulationError("no worker runs: pass an application or a Worker to Simulation")
        return self._handling


def _chosen(definitions: Sequence[JobDefinition], only: Iterable[Job[..., Any] | str]) -> tuple[JobDefinition, ...]:
    names = set(map(name_of, only))
    if unknown := names - {definition.name for definition in definitions}:
        known = ", ".join(sorted(definition.name for definition in definitions)) or "none"
        raise ValueError(f"only: no job is called {min(unknown)!r}; the jobs are: {known}")
    return tuple(definition for definition in definitions if definition.name in names)
