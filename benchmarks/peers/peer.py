"""What a peer is: a module of this package with the names below."""

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
"""Tasks that each peer has done before anything is measured."""
_VARIABLE: Final = "PEER_ASSIGNMENT"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What every process of a peer is told.

    Attributes:
        peer: its name.
        workload: W1, W2 or W3.
        url: where its server is; empty for one that needs none.
        folder: where it may keep files.
        number: jobs or tasks.
        due: the full minute at which all jobs of W1 are due, in seconds since 1970; None in the others.

    """

    peer: str
    workload: str
    url: str
    folder: Path
    number: int
    due: float | None = None

    @property
    def starts(self) -> Path:
        """The pipe on which handlers tell that they began."""
        return self.folder / "starts"

    @property
    def instant(self) -> datetime:
        """When the jobs of W1 are due."""
        return datetime.fromtimestamp(self.due or 0, UTC)

    @property
    def cron(self) -> str:
        """The same as an expression of five fields."""
        at = self.instant
        return f"{at.minute} {at.hour} {at.day} {at.month} *"

    @property
    def jobs(self) -> list[str]:
        """The jobs of W1; none in the other workloads."""
        return [f"job-{number}" for number in range(self.number)] if self.due else []

    def environment(self) -> dict[str, str]:
        """The environment of a process that is to read it."""
        return {**os.environ, _VARIABLE: json.dumps({**asdict(self), "folder": str(self.folder)})}

    @classmethod
    def received(cls) -> Self:
        """What this process was told."""
        fields = json.loads(os.environ[_VARIABLE])
        return cls(**{**fields, "folder": Path(fields["folder"])})


class Client(Protocol):
    """How a program outside hands tasks over."""

    async def enqueue(self, key: str) -> None:
        """Hand over one no-op; returns when the peer has it."""
        ...

    async def completed(self) -> int:
        """How many tasks are done, as its own store (or its own word, where nothing is stored) says."""
        ...


class Peer(Protocol):
    """A module of this package."""

    DISTRIBUTIONS: Sequence[str]
    """What has to be installed; the first gives the version that is shown."""
    SERVER: str
    """redis, postgresql, nats, or nothing."""
    NOTE: str
    """What a reader of its figures has to know."""
    PREPARES: bool
    """Whether `run("prepare", …)` comes first, alone."""
    PARTS: Sequence[str]
    """The processes beside the client."""
    PARTS_THAT_SCHEDULE: Sequence[str]
    """More of them for W1."""

    def run(self, part: str, assignment: Assignment) -> None:
        """Be one of the processes, until SIGTERM."""
        ...

    def client(self, assignment: Assignment) -> AbstractAsyncContextManager[Client]:
        """Be the client."""
        ...


def peer(name: str) -> Peer:
    """The peer of that name."""
    return cast("Peer", import_module(f"benchmarks.peers.{name}"))
