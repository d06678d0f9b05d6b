"""The API over the in-memory adapters: one world for each test, and a client."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.domain.given import KEY
from tests.history_files import history_url
from tests.matching import running_matcher
from tocsin.adapters.http.api.app import api
from tocsin.adapters.http.api.dependencies import Components
from tocsin.adapters.http.auth.authentication import Authentication
from tocsin.adapters.http.auth.code_flow import CodeFlow
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.adapters.http.auth.visibility import Visibility
from tocsin.adapters.http.connections import Connection
from tocsin.adapters.http.middleware.rate_limit import RateLimit
from tocsin.adapters.memory.agents import InMemoryFetchChannel
from tocsin.adapters.sql.history import SqlHistory, open_history
from tocsin.domain.access import Binding, Role
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Message, Recorded
from tocsin.ports import StoredLog
from tocsin.services.calculations import Calculations
from tocsin.services.definition_settings import UnheardStreams
from tocsin.services.health import Finding
from tocsin.services.health.coordination import Leadership, Lease
from tocsin.services.health.findings import warn
from tocsin.services.jobs import Registry
from tocsin.services.operations.event_waiter import EventWaiter
from tocsin.services.operations.task_fetches import TaskFetches
from tocsin.services.operator import OpenHistory, Operator
from tocsin.services.queue_decisions import QueueDecisions, pause_of, purge_of
from tocsin.services.queues import QueueDetails, Reaches, Sees
from tocsin.services.webhooks import Webhooks
from tocsin.settings import Settings
from tocsin.testing import (
    InMemoryEventLog,
    InMemoryProjections,
    InMemoryStoredLog,
    ManualClock,
)

LOCAL = "http://127.0.0.1"


@dataclass
class WebhookMessages:
    """A queue of requests to webhooks, each id once."""

    stored: dict[str, tuple[str, bytes, dict[str, str]]] = field(default_factory=dict)
    error: Exception | None = None

    async def store(self, durable: str, body: bytes, headers: Mapping[str, str], *, message_id: str) -> None:
        if self.error is not None:
            raise self.error
        self.stored[message_id] = (durable, body, dict(headers))


@dataclass
class World:
    """An installation in memory, and copies of the API that serve it."""

    folder: Path
    history: SqlHistory
    clock: ManualClock = field(default_factory=ManualClock)
    authenticator: Authentication | None = None
    settings: Settings = field(default_factory=Settings)
    rate: RateLimit | None = None
    calculations: Calculations = field(default_factory=Calculations)
    code_flow: CodeFlow | None = None
    lease_s: float = 30

    def __post_init__(self) -> None:
        self.log = InMemoryEventLog(self.clock)
        self.stored: StoredLog = InMemoryStoredLog(self.log)
        self.projections = InMemoryProjections(self.clock)
        self.registry = Registry(self.log, self.projections, self.clock)
        self.fetch_channel = InMemoryFetchChannel()
        self.webhook_queue = WebhookMessages()
        opened = self.settings.triggers.webhooks
        self.webhooks = Webhooks(self.registry.jobs, opened, self.webhook_queue, self.clock, KEY)
        self.fetches = TaskFetches(self.log, self.fetch_channel, self.clock)
        self.client = self.copy()

    def operator(self, history: OpenHistory) -> Operator:
        """Return an operator that reads neither queues nor the status."""

        async def unused(*_: object) -> Any:  # noqa: ANN401 - never called
            raise NotImplementedError

        parts = self.log, self.stored, self.projections, self.clock
        return Operator(*parts, history=history, queues=unused, status=unused, settings=self.settings)

    async def status(self) -> dict[str, Any]:
        """An in-memory installation has none."""
        return {"root": "tocsin"}

    async def leadership(self) -> Leadership:
        """One leader, whose lease ends after `lease_s` seconds."""
        now = self.clock.now()
        ends_at = now + timedelta(seconds=self.lease_s)
        return Leadership((Lease("ticker", "a@host", renewed_at=now, said_at=now, ends_at=ends_at),), ())

    async def unheard_streams(self) -> UnheardStreams:
        """A stream of the settings does not exist, or is a work queue, if its name says so."""
        streams = sorted(self.settings.triggers.streams)
        return UnheardStreams(*([name for name in streams if name.startswith(word)] for word in ("ABSENT", "WORK")))

    async def queue_details(self, sees: Sees, reaches: Reaches) -> tuple[QueueDetails, ...]:
        """An in-memory installation has the queues of its settings and of its jobs."""
        jobs = [job for job in await self.registry.jobs() if sees(job)]
        details: list[QueueDetails] = []
        for name in sorted(filter(reaches, {*self.settings.queues, *(job.definition.queue for job in jobs)})):
            queue, state = self.settings.queues.get(name), await QueueDecisions(self.log).state(name)
            details.append(
                QueueDetails(
                    name,
                    queue.transport if queue else "matched",
                    jobs=tuple(job.name for job in jobs if job.definition.queue == name),
                    paused=pause_of(state),
                    purged=purge_of(state),
                )
            )
        return tuple(details)

    async def doctor(self) -> list[Finding]:
        """An in-memory installation has no servers to examine."""
        return [
            warn(
                "unclaimed",
                "1 executions wait",
                means="the workers are busy",
                do="run more workers",
                executions=["a b"],
            )
        ]

    def parts(self) -> Components:
        """The components of the handlers."""
        return Components(
            version="0",
            settings=self.settings,
            registry=Registry(self.log, self.projections, self.clock),
            log=self.log,
            stored=self.stored,
            projections=self.projections,
            history=self.history,
            clock=self.clock,
            report_key=KEY,
            status=self.status,
            doctor=self.doctor,
            leadership=self.leadership,
            unheard_streams=self.unheard_streams,
            queue_details=self.queue_details,
            visibility=Visibility(self.log, self.clock),
            fetches=self.fetches,
            arrivals=EventWaiter(self.log),
            calculations=self.calculations,
            webhooks=self.webhooks,
        )

    def app(self) -> FastAPI:
        """One more copy of the API."""
        authenticator = self.authenticator or Authentication(Tokens(self.projections, self.clock), None, self.clock)
        return api(self.parts(), authenticator, self.rate, self.code_flow)

    def copy(self) -> httpx.AsyncClient:
        """A client of one more copy."""
        transport = httpx.ASGITransport(self.app(), raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=LOCAL)

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        """One request."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return (
            await self.client.request(method, path, json=body, headers=named)
            if body is not None
            else (await self.client.request(method, path, headers=named))
        )

    async def token(
        self,
        identity: str,
        *roles: Role,
        queues: tuple[str, ...] = (),
        functions: tuple[str, ...] = ("*",),
        namespaces: tuple[str, ...] | None = None,
    ) -> str:
        """Return a token of a user."""
        binding = Binding(queues, functions)
        tokens = Tokens(self.projections, self.clock)
        token, _ = await tokens.create(identity, roles, binding=binding, namespaces=namespaces)
        return token

    async def given(self, **definition: Any) -> None:  # noqa: ANN401 - the fields of a definition
        """A job that is registered already."""
        fields: Mapping[str, Any] = {"name": "job", "schedule": "0 3 * * *", "function": "f", **definition}
        await self.registry.apply([JobDefinition.model_validate(fields)])

    def keep(self, stored: StoredLog) -> None:
        """Everything that was ever stored, if that is more than the log holds."""
        self.stored = stored
        self.client = self.copy()

    async def facts(self, filter_subject: str) -> list[Recorded[Message]]:
        """The content of the log."""
        return await self.log.read(filter_subject)


READ_BYTES = 262_144
"""What asyncio reads from a socket at once, at most."""


class Heads:
    """Counts of the requests that HTTP connections of this process took while an answer was open."""

    def __init__(self) -> None:
        self.begun = Counter[Connection]()
        self.have_begun = asyncio.Event()
        self.most_open = 0
        """The most heads of a connection that had begun and were not answered."""
        self.most_unanswered_bytes = 0
        """The most bytes that a connection read between two answers."""
        self._answered = Counter[Connection]()
        self._unanswered_bytes = Counter[Connection]()

    def begin(self, connection: Connection) -> None:
        self.begun[connection] += 1
        self.most_open = max(self.most_open, self.begun[connection] - self._answered[connection])
        self.have_begun.set()

    def answer(self, connection: Connection) -> None:
        self._answered[connection] += 1
        self._unanswered_bytes[connection] = 0

    def read(self, connection: Connection, data: bytes) -> None:
        self._unanswered_bytes[connection] += len(data)
        self.most_unanswered_bytes = max(self.most_unanswered_bytes, self._unanswered_bytes[connection])


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> Heads:
    """Observe the connections of this process, which go on as they are."""
    seen = Heads()

    def observe(callback: str, note: Callable[..., None]) -> None:
        call = getattr(Connection, callback)

        def observed(connection: Connection, *arguments: bytes) -> None:
            note(connection, *arguments)
            call(connection, *arguments)

        monkeypatch.setattr(Connection, callback, observed)

    observe("on_message_begin", seen.begin)
    observe("on_response_complete", seen.answer)
    observe("data_received", seen.read)
    return seen


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_history(history_url(tmp_path)) as history:
        world = World(tmp_path, history)
        async with running_matcher(world.log, world.clock, world.fetch_channel), world.fetches.running():
            yield world
