"""An installation on a real nats-server whose processes run on the log of commits."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.commits.processes import NAMES
from tests.system.processes import Program, Site, site
from tocsin import subjects
from tocsin.adapters.nats.log.commit_log import NatsCommitLog
from tocsin.bootstrap.commit_process import KEY
from tocsin.domain.commit import Commit, LogHead, Seal
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Due, Trigger
from tocsin.domain.log_events import LogEvent, decode, is_log_event
from tocsin.engine.commit_writer import Chain

FAST: Mapping[str, Any] = {"ttl": "2s", "renew_interval": "500ms"}


class Server:
    """A site whose processes run on the log of commits, and a process of the test beside them."""

    def __init__(self, tocsin: Site, commits: NatsCommitLog, key: bytes) -> None:
        self.tocsin = tocsin
        self.log = tocsin.installation.log
        self._commits = commits
        self._seal = Seal(tocsin.installation.names.root, 0, {KEY: key})
        self._ids = 0

    def start(self, *names: str, module: tuple[str, ...] = ("tocsin",)) -> Program:
        return self.tocsin.start(*(names or (*NAMES, "registrar")), module=module)

    async def define(self, **definition: Any) -> None:  # noqa: ANN401 - a document
        job = JobDefinition.model_validate(definition)
        await self.log.append(Defined(job=job.name, definition=job), expect=0)

    async def trigger(self, job: str) -> None:
        self._ids += 1
        await self.log.publish(subjects.trigger(job), Trigger(), message_id=f"{job}-{self._ids}")

    async def commits(self) -> list[Commit]:
        chain, after, commits = Chain(self._seal, LogHead(KEY)), 0, list[Commit]()
        while (stored := await self._commits.next(0, after=after)) is not None:
            after = stored.sequence
            if (commit := chain.take(stored)) is not None:
                commits.append(commit)
        return commits

    async def control(self) -> list[tuple[str, LogEvent]]:
        """The events of the log itself, with their writers."""
        return [
            (commit.writer, change)
            for commit in await self.commits()
            for event in commit.events
            if (change := decode(event)) is not None
        ]

    async def instants(self) -> list[datetime]:
        """The instants that are due."""
        return [
            due.scheduled_time
            for commit in await self.commits()
            for event in commit.events
            if isinstance(
                due := None if is_log_event(event.subject) else subjects.decode(event.subject, bytes(event.body)), Due
            )
        ]

    async def subjects(self) -> list[str]:
        """The subjects of all events."""
        return [event.subject for commit in await self.commits() for event in commit.events]


@asynccontextmanager
async def server(url: str, folder: Path) -> AsyncIterator[Server]:
    async with site(url, folder, leader=FAST) as tocsin:
        installation = tocsin.installation
        root = installation.names.root
        commits = NatsCommitLog(installation.connection, f"{root}_COMMITS", f"{root}.commits")
        yield Server(tocsin, commits, await installation.report_key())
