"""The command line over the in-memory adapters: one world for each test, called as often as it likes."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from typer.testing import CliRunner
from typing_extensions import override

from tests.domain.given import KEY
from tests.history_files import history_url
from tests.stages.world import World as Stages
from tocsin.adapters.nats.admin.provision import Change, Mode
from tocsin.adapters.nats.admin.provision_errors import MessagesAtRisk
from tocsin.adapters.sql.history import SqlHistory, open_history
from tocsin.bootstrap import Installation
from tocsin.cli import app
from tocsin.cli.runtime.backend import Backend
from tocsin.domain import events
from tocsin.domain.events import Message, Recorded
from tocsin.ports import StoredLog, Unreachable
from tocsin.services.jobs import Registry
from tocsin.settings import Settings
from tocsin.subjects import INSTALLATION_KEY, Bucket
from tocsin.testing import InMemoryEventLog, InMemoryProjections, InMemoryStoredLog, ManualClock

T = TypeVar("T")
_MESSAGE = re.compile(rf"\b({'|'.join(name for name, kind in vars(events).items() if isinstance(kind, type))})\(\w+=")
"""A message as Python writes it."""


@dataclass
class CallResult:
    """The result of a call."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # noqa: ANN401 - JSON
        assert not _MESSAGE.search(self.out), "a message is shown as JSON, not as Python writes it"
        return json.loads(self.out)

    @property
    def failure(self) -> tuple[int, str]:
        """The exit code and the stable code of the error, of a command with `-o json`."""
        return self.code, self.error["error_code"]

    @property
    def error(self) -> Any:  # noqa: ANN401 - JSON
        return json.loads(self.err)["error"]


@dataclass
class World(Backend):
    """A backend whose NATS is in memory and whose history is a file."""

    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    reachable: bool = True
    used: list[Settings] = field(default_factory=list)
    ran: list[Sequence[str]] = field(default_factory=list)
    loss: str | None = None
    """The messages that `init` would remove."""

    def __post_init__(self) -> None:
        self.log = InMemoryEventLog(self.clock)
        self.stored: StoredLog = InMemoryStoredLog(self.log)
        self.commits = SimpleNamespace(reader=None)
        self.projections = InMemoryProjections(self.clock)
        self.registry = Registry(self.log, self.projections, self.clock)
        asyncio.run(self.set_up())

    async def set_up(self) -> None:
        await self.projections.put(Bucket.INSTALLATION, INSTALLATION_KEY, b"key")

    @override
    @asynccontextmanager
    async def connect(self, settings: Settings, *, within: float | None = 1) -> AsyncIterator[Installation]:
        if not self.reachable:
            raise Unreachable(f"no NATS server answers at {settings.nats.url}")
        self.used.append(settings)
        self.settings = settings
        yield cast("Installation", self)

    @override
    async def await_log(self, installation: Installation) -> None:
        """The server answers."""

    @override
    async def is_set_up(self, installation: Installation, *, within: float | None) -> bool:
        return await self.projections.get(Bucket.INSTALLATION, INSTALLATION_KEY) is not None

    @override
    async def initialize(self, installation: Installation, mode: Mode | None = None) -> list[Change]:
        if mode is Mode.KEEP_MESSAGES and self.loss is not None:
            raise MessagesAtRisk({"TOCSIN_LEDGER": self.loss})
        return [
            Change("stream", "TOCSIN_LOG", "created"),
            Change("stream", "TOCSIN_LEDGER", "updated", {"num_replicas": (1, 3)}, self.loss),
            Change("consumer", "planner", "unchanged"),
        ]

    @override
    def stages(self) -> tuple[str, ...]:
        return "registrar", "ticker", "lock_keeper"

    @override
    async def run_stages(
        self, installation: Installation, names: Sequence[str], *, ready: asyncio.Event | None = None
    ) -> None:
        self.ran.append(names)

    @override
    @asynccontextmanager
    async def serving(
        self, installation: Installation, *, any_port: Collection[str] = (), allow_reset: bool = False
    ) -> AsyncIterator[str]:
        yield "http://127.0.0.1:8062"

    async def report_key(self) -> bytes:
        return KEY

    async def identity(self) -> str:
        return "0123456789abcdef"

    def history(self) -> AbstractAsyncContextManager[SqlHistory]:
        return open_history(history_url(self.folder))

    def call(self, *args: str, input: str | None = None) -> CallResult:  # noqa: A002 - the runner's name
        result = CliRunner().invoke(app, args, input=input, obj=self)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return CallResult(result.exit_code, result.stdout, result.stderr)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    def append(self, *facts: Message, expect: int = 0) -> None:
        """Facts of one scope, a second apart."""

        async def _append() -> None:
            sequence = expect
            for fact in facts:
                sequence = await self.log.append(fact, expect=sequence)
                self.clock.advance(1)

        self.do(_append())

    def play(self, stages: Stages) -> None:
        """Have the log of stages."""
        self.clock, self.log, self.projections = stages.clock, stages.log, stages.projections  # type: ignore[assignment]
        self.stored, self.commits = stages.past, SimpleNamespace(reader=stages.past.commits)
        self.do(self.set_up())

    def jobs(self, text: str) -> str:
        path = self.folder / "jobs.yaml"
        path.write_text(text, "utf-8")
        return str(path)

    def recorded(self, filter_subject: str) -> list[Recorded[Message]]:
        return self.do(self.log.read(filter_subject))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for name in ("NATS_URL", "DATABASE_URL", "TOCSIN_NATS_URL", "TOCSIN_CONFIG", "TOCSIN_DATA_DIR", "TOCSIN_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("TOCSIN_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return World(tmp_path)
