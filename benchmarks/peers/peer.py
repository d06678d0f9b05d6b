"""The protocol of a peer: a module of this package with the names below."""

import json
import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, Self, cast

WARM_UP: Final = 20
"""Tasks that each peer completes before the measurement."""
_VARIABLE: Final = "PEER_ASSIGNMENT"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment that every process of a peer receives.

    Attributes:
        peer: its name.
        workload: W1, W2 or W3.
        url: the URL of its server; empty for a peer without a server.
        folder: a folder for its files.
        number: jobs or tasks.
        due: the full minute of all jobs of W1, in UNIX seconds; None in the other workloads.
    """

    peer: str
    workload: str
    url: str
    folder: Path
    number: int
    due: float | None = None

    @property
    def starts(self) -> Path:
        """The pipe on which handlers report their start."""
        return self.folder / "starts"

    @property
    def instant(self) -> datetime:
        """The instant at which the jobs of W1 are due."""
        return datetime.fromtimestamp(self.due or 0, UTC)

    @property
    def cron(self) -> str:
        """The instant as a cron expression of five fields."""
        at = self.instant
        return f"{at.minute} {at.hour} {at.day} {at.month} *"

    @property
    def jobs(self) -> list[str]:
        """The jobs of W1; none in the other workloads."""
        return [f"job-{number}" for number in range(self.number)] if self.due else []

    def environment(self) -> dict[str, str]:
        """Return the environment for a process of the peer."""
        return {**os.environ, _VARIABLE: json.dumps({**asdict(self), "folder": str(self.folder)})}

    @classmethod
    def received(cls) -> Self:
        """Return the assignment of this process."""
        fields = json.loads(os.environ[_VARIABLE])
        return cls(**{**fields, "folder": Path(fields["folder"])})


class Client(Protocol):
    """A program that enqueues tasks with the peer."""

    async def enqueue(self, key: str) -> None:
        """Enqueue one no-op task; return when the peer has accepted it."""

    async def completed(self) -> int:
        """Return the number of completed tasks by its store, or by its own count."""


class Peer(Protocol):
    """A module of this package."""

    DISTRIBUTIONS: Sequence[str]
    """The packages to install; the first gives the version."""
    SERVER: str
    """redis, postgresql, nats, or empty."""
    NOTE: str
    """A remark for readers of its figures."""
    PREPARES: bool
    """Whether `run("prepare", …)` runs first, alone."""
    PARTS: Sequence[str]
    """The processes beside the client."""
    PARTS_THAT_SCHEDULE: Sequence[str]
    """Further processes for W1."""

    def run(self, part: str, assignment: Assignment) -> None:
        """Run a process until SIGTERM."""

    def client(self, assignment: Assignment) -> AbstractAsyncContextManager[Client]:
        """Run the client."""


def peer(name: str) -> Peer:
    """Return the peer of a name."""
    return cast("Peer", import_module(f"benchmarks.peers.{name}"))
