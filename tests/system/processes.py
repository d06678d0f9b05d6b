"""Tocsin as processes that can be killed, stopped and started again, on a real nats-server."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Final, TypeVar

from typing_extensions import override

from tests.stored_events import StoredEvents
from tests.system import forked
from tests.system.running import Running, deciding, settings
from tests.system.worker_process import RUNS_FILE
from tocsin import bootstrap
from tocsin.bootstrap.provision import durables_of
from tocsin.domain import ledger
from tocsin.domain.events import DeadLetterFact
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.ports import LogUnavailable
from tocsin.ports.queries import DeadLetterQuery, ExecutionQuery, every
from tocsin.settings import Settings
from tocsin.stages.matcher.agents import SILENCE_S
from tocsin.subjects import ALL_TASKS, DEPENDENTS, LOCKED_COMPLETIONS, Stream, any_of, name

T = TypeVar("T")

REPOSITORY: Final = Path(__file__).parents[2]
QUICK: Final[Mapping[str, object]] = {
    "leader": {"ttl": 2, "renew_interval": 0.5},
    "stages": {"ack_wait": 2},
    "worker": {"ack_wait": 2, "shutdown_timeout": 5},
}
"""Settings under which a successor takes over within seconds."""

STAGES_WITHOUT_CLOCK: Final = tuple(stage for stage in bootstrap.STAGE_NAMES if stage != "ticker")
DECIDERS: Final = ("planner", "lock_keeper", "dag_advancer", "retrier")
GROUPS: Final[tuple[tuple[str, ...], ...]] = (
    ("ticker",),
    DECIDERS,
    tuple(stage for stage in STAGES_WITHOUT_CLOCK if stage not in DECIDERS),
)
"""All stages in three processes, for machines that cannot take one for each."""
TOCSIN: Final = ("tocsin",)
PATIENCE: Final = 250.0
"""Seconds after which a test gives up waiting for processes, each of which may take long to start beside those of other tests."""
BACKLOG: Final = 300
"""Messages that all durables together may still have before them while more work is given."""
STUCK_S: Final = SILENCE_S + 15
"""Seconds without a change after which open executions never end; the tasks of a killed worker wait for its silence."""
_OVER: Final = frozenset({"completed", "failed", "cancelled", "skipped", "fanned-out"})


class Program:
    """One program, restarted if needed. Its output goes to a file."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], said: Path, *, ready: str
    ) -> None:
        """`command`: a module and its arguments; `ready`: the action of the log line of a started process."""
        self.name = name
        self._command = command
        self._environment = environment
        self._said = said
        self._ready = f'"{ready}"'
        self._begin = 0
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        """Start it, or start it again."""
        self._said.touch()
        self._begin = self._said.stat().st_size
        module, *arguments = self._command
        self._process = forked.start(
            module, arguments, environment=self._environment, folder=REPOSITORY, said=self._said
        )

    @property
    def process(self) -> ForkServerProcess:
        """The newest process."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def pid(self) -> int:
        """Of the newest process."""
        assert self.process.pid is not None
        return self.process.pid

    @property
    def ended(self) -> int | None:
        """The exit code; None while it runs."""
        return self.process.exitcode

    def is_ready(self) -> bool:
        """Whether it is at work; if it ended instead, the test is over."""
        assert self.ended is None, f"{self.name} ended with {self.ended}:\n{self.said()[-4_000:]}"
        return self._ready in self.said()

    def said(self) -> str:
        """The output of the newest process."""
        return self._said.read_bytes()[self._begin :].decode(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT, SIGTERM."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.join()


class Site(Running):
    """An installation whose stages and workers are processes of their own."""

    def __init__(self, installation: bootstrap.Installation, folder: Path) -> None:
        super().__init__(installation)
        self.patience = PATIENCE
        self.programs: list[Program] = []
        self.runs = folder / "runs"
        self._folder = folder
        self._facts = list[tuple[str, str, str]]()
        self._facts_upto = 0
        self.environment = {
            **environment_of(self.settings),
            RUNS_FILE: str(self.runs),
        }

    def address(self, url: str) -> None:
        """Have what is started from here on look for NATS there."""
        self.environment["TOCSIN_NATS__URL"] = url

    def start(self, *stages: str, module: Sequence[str] = TOCSIN) -> Program:
        """Start stages in one process; without names, all of them. `module` replaces Tocsin's own module."""
        return self._start("+".join(stages) or "all", module, ["run", *(stages or ["--all"])], "stages-started")

    def start_worker(
        self, target: str = "tests.system.worker_process", *, module: Sequence[str] = TOCSIN, **settings: str
    ) -> Program:
        """Start a worker; `settings`: variables of its environment that differ, without `TOCSIN_`."""
        own = {f"TOCSIN_{name}".upper(): value for name, value in settings.items()}
        return self._start("worker", module, ["worker", target], "worker-started", own)

    def start_gateway(self, port: int) -> Program:
        """Start a copy of the HTTP API."""
        return self._start("serve", TOCSIN, ["serve", "--port", str(port)], "api-serving")

    def start_ojs_worker(self, name: str, lease: int, *urls: str) -> Program:
        """Start an Open Job Spec worker that uses these gateways, with leases in milliseconds."""
        return self._start("ojs-worker", ("tests.system.ojs_worker",), [name, str(lease), *urls], "worker-started")

    async def call(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Have a command answer in JSON: how it ended, and what it said."""
        ended = await run_command([*arguments, "--output", "json"], self.environment)
        answer: dict[str, Any] = json.loads(ended.stdout) if ended.stdout else {}
        return ended.returncode, answer

    async def ready(self) -> None:
        """Wait until all that was started is at work."""

        async def is_ready() -> bool:
            return all(program.is_ready() for program in self.programs)

        await self.until(is_ready)

    async def passes(self, *, seconds: float) -> datetime:
        """Wait for time itself; what time it is then."""
        clock = self.installation.clock
        end = clock.monotonic() + seconds

        async def is_over() -> bool:
            return clock.monotonic() >= end

        await self.until(is_over)
        return clock.now()

    async def ends(self) -> Counter[str]:
        """Return the number of finished executions of each job."""
        return Counter(name(job) for job, _, fact in await self.stored_facts() if fact in _OVER)

    @override
    async def until(self, happened: Callable[[], Awaitable[T]]) -> T:
        """Wait for something to be true, also while the server is away."""

        async def seen() -> T | None:
            try:
                return await happened()
            except LogUnavailable:
                return None

        try:
            found = await super().until(seen)
        except TimeoutError:
            last = [f"{program.name} ({program.ended}): {program.said()[-600:]}" for program in self.programs]
            raise AssertionError(
                "\n".join([f"it did not happen within {self.patience} s; what they said:", *last])
            ) from None
        assert found is not None
        return found

    async def quiet(self) -> None:
        """Wait until the system is idle: no instant, execution or message is pending."""
        clock, last, since = self.installation.clock, set[str](), 0.0

        async def is_quiet() -> bool:
            nonlocal last, since
            assert all(program.ended is None for program in self.programs)
            # In the order of their effects: what leaves one place while another is read is then seen in the next.
            is_pending = await self._undecided() or await self._pending()
            still_open = await self._open()
            if is_pending or still_open != last:
                last, since = still_open, clock.monotonic()
                return False
            is_stuck = still_open and clock.monotonic() - since > STUCK_S
            assert not is_stuck, f"nobody has anything to do, and these never end: {still_open}"
            return not still_open

        try:
            await self.until(is_quiet)
        except TimeoutError:
            left = {"undecided": await self._undecided(), "open": await self._open(), "pending": await self._pending()}
            raise AssertionError(f"still to be done: {left}") from None

    async def keeps_up(self) -> None:
        """Wait until only momentary work is pending, on a busy machine."""

        async def is_little() -> bool:
            return sum((await self._pending()).values()) <= BACKLOG

        await self.until(is_little)

    async def checked(self) -> StoredEvents:
        """Return all stored messages of the idle system, after a clean audit."""
        await self.quiet()
        everything = await StoredEvents.of(self.log)
        report = everything.audited()
        assert report.is_clean, "\n".join(map(str, report.violations[:20]))
        return everything

    async def history_agrees_with(self, everything: StoredEvents) -> None:
        """Wait until the history equals the log in every execution and dead letter."""
        ends = {execution_id: end.message for execution_id, end in everything.ends.items()}
        letters = {recorded.message.id for recorded in everything.facts(DeadLetterFact)}

        differs = dict[str, object]()

        async def agrees() -> bool:
            nonlocal differs
            rows = [row async for row in every(history.executions, ExecutionQuery(limit=1_000))]
            kept = [letter async for letter in every(history.dead_letters, DeadLetterQuery(limit=1_000))]
            as_shown = {row.execution_id: (row.job_name, row.status) for row in rows}
            as_stored = {execution_id: (end.job, end.type) for execution_id, end in ends.items()}
            differs = {
                "shown": sorted(as_shown.items() - as_stored.items()),
                "stored": sorted(as_stored.items() - as_shown.items()),
                "letters": sorted(letters ^ {letter.id for letter in kept}),
            }
            return not any(differs.values())

        async with self.installation.history() as history:
            try:
                await self.until(agrees)
            except AssertionError as error:
                raise AssertionError(f"the history differs from the log: {differs}\n{error}") from None

    async def delete(self, *jobs: str) -> None:
        """Delete jobs, so that their time ends."""
        for job in jobs:
            await self.change(job, lambda state, job=job: ledger.delete(state, job))  # type: ignore[misc]

    def end(self) -> None:
        """End what still runs."""
        for program in self.programs:
            program.kill()

    def _start(
        self,
        name: str,
        module: Sequence[str],
        arguments: Sequence[str],
        ready: str,
        environment: Mapping[str, str] | None = None,
    ) -> Program:
        program = Program(
            name,
            [*module, *arguments],
            {**self.environment, **(environment or {})},
            self._folder / f"{len(self.programs)}-{name}.log",
            ready=ready,
        )
        program.start()
        self.programs.append(program)
        return program

    async def _undecided(self) -> list[str]:
        """Return the jobs with a due and undecided instant. An active job always has a coming instant."""
        states = await LedgerReader(self.log).load_all()
        now = self.installation.clock.now()
        return [job for job, (state, _) in states.items() if ledger.decide_instants(state, now)]

    async def _open(self) -> set[str]:
        """The executions that are not over."""
        stored = await self.stored_facts()
        return {execution_id for _, execution_id, _ in stored} - {id_ for _, id_, fact in stored if fact in _OVER}

    async def stored_facts(self) -> list[tuple[str, str, str]]:
        """The job's token, the execution and the type of each event that opens or ends an execution."""
        # A task that admits its execution is the first event of most.
        patterns = ("execution.*.*.*", DEPENDENTS, *ALL_TASKS, LOCKED_COMPLETIONS)
        view = await self.installation.commits.view()
        upto = await view.end(Stream.LOG)
        async for event in view.past(any_of(patterns), after=self._facts_upto, upto=upto):
            _, job, execution_id, fact, *_ = event.subject.split(".")
            self._facts.append((job, execution_id, fact))
        self._facts_upto = upto
        return self._facts

    async def _pending(self) -> dict[str, int]:
        """Return the backlog of each stage and of each durable."""
        connection, names = self.installation.connection, self.installation.names
        found = Counter[str]()
        for spec in durables_of(self.settings):
            consumer = await connection.manage(f"CONSUMER.INFO.{names.stream(spec.stream)}.{spec.name}")
            found[spec.name] = consumer["num_pending"] + consumer["num_ack_pending"]
        return {what: number for what, number in (found + await self.not_taken()).items() if number}


async def run_command(arguments: Sequence[str], environment: Mapping[str, str]) -> "CompletedProcess[str]":
    """Return the end of a command, while what runs in this process runs on."""
    return await asyncio.to_thread(
        forked.call, arguments, environment=environment, folder=REPOSITORY, patience_s=PATIENCE
    )


@asynccontextmanager
async def site(url: str, folder: Path, **more: object) -> AsyncIterator[Site]:
    """An installation without processes; every process that it starts ends with it."""
    async with uninitialized_site(url, folder, **more) as it:
        await bootstrap.initialize(it.installation)
        yield it


@asynccontextmanager
async def uninitialized_site(url: str, folder: Path, **more: object) -> AsyncIterator[Site]:
    """A site without streams, which a program has to create."""
    async with (
        bootstrap.connect(settings(url, folder, **{**QUICK, **more})) as connected,
        deciding(connected) as installation,
    ):
        it = Site(installation, folder)
        try:
            yield it
        finally:
            it.end()


def environment_of(settings_: Settings) -> dict[str, str]:
    """Return the environment of a process with these settings."""
    return _foreign_environment() | dict(_variables(settings_))


def _foreign_environment() -> dict[str, str]:
    """Return the variables of this process that are no settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}


def _variables(of: Settings) -> Iterator[tuple[str, str]]:
    """The settings that differ from the defaults as variables of the environment; another version may lack the others."""

    def leaves(values: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
        for field, value in values.items():
            if isinstance(value, Mapping):
                yield from leaves(value, f"{path}{field}__".upper())
            elif value is not None:
                yield f"{path}{field}".upper(), json.dumps(value) if isinstance(value, list) else str(value)

    given = of.model_dump(mode="json", exclude_defaults=True)
    if of.queues:  # one with the defaults is a queue too
        given["queues"] = of.model_dump(mode="json", include={"queues"})["queues"]
    return leaves(given, "TOCSIN_")
