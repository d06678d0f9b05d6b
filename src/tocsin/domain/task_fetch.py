"""Fetches of workers over HTTP, and the visibility leases of their tasks (ojs-worker-protocol).

No stream stores the messages between the API and the matcher. Every field is bounded, because another process sends it.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, JsonValue

from .definition.builtin_work import is_builtin
from .documented_model import DocumentedModel
from .events import Dispatched
from .text import matches

MAX_LEASE_S: Final = 365 * 86_400.0
MAX_BYTES: Final = 65_536
"""The size of a request."""
MAX_QUEUES: Final = 100
MAX_COUNT: Final = 100
"""The number of tasks of a fetch."""
MAX_WAIT_S: Final = 20.0
"""How long a fetch may wait for its first task."""
MAX_WORKER_ID_LENGTH: Final = 255

Id: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", max_length=36)]
Queue: TypeAlias = Annotated[str, Field(min_length=1, max_length=255)]
Pattern: TypeAlias = Annotated[str, Field(min_length=1, max_length=1_000)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=MAX_LEASE_S)]


@dataclass(frozen=True, slots=True)
class Lease:
    """Seconds until a claim without a heartbeat ends: of the task, else `asked`, else `usual`."""

    usual: float
    asked: float | None = None
    """Requested by the worker."""

    def of(self, task: Dispatched) -> float:
        seconds = ojs_field(task, "lease")
        return float(seconds) if isinstance(seconds, int | float) else self.asked or self.usual


def lease_span(seconds: float) -> timedelta:
    """Return the time of a lease of `seconds`, at most `MAX_LEASE_S`."""
    return timedelta(seconds=min(seconds, MAX_LEASE_S))


def ojs_field(task: Dispatched, name: str) -> JsonValue:
    """Return a field of a task that only the Open Job Spec has."""
    metadata = task.meta.get("ojs")
    return metadata.get(name) if isinstance(metadata, dict) else None


class _Message(DocumentedModel, frozen=True, extra="ignore", defer_build=True):
    def encode(self) -> bytes:
        return self.model_dump_json(exclude_defaults=True).encode()


class Fetch(_Message):
    """A request for tasks.

    It may arrive more than once, each time with the time that it may still wait.
    """

    id: Id
    gateway: Id
    """The process that receives the answer."""
    queues: Annotated[tuple[Queue, ...], Field(min_length=1, max_length=MAX_QUEUES)]
    """The queues, the most wanted first."""
    functions: Annotated[tuple[Pattern, ...], Field(max_length=1_000)] = ()
    """Patterns of the functions that the caller may run."""
    count: Annotated[int, Field(ge=0, le=MAX_COUNT)]
    """The greatest number of tasks; 0: the caller has left, and only the claims that are stored are wanted."""
    wait: Annotated[float, Field(ge=0, le=MAX_WAIT_S)] = 0.0
    """Seconds to wait for the first task."""
    identity: Annotated[str, Field(max_length=10_000)]
    """The identity of the caller; only it may answer for the tasks."""
    worker: Annotated[str, Field(max_length=MAX_WORKER_ID_LENGTH)] = ""
    """The name that the worker gives itself; empty: none."""
    usual_lease: Seconds
    """Seconds until a claim without a heartbeat ends."""
    asked_lease: Seconds | None = None
    """The same, as the worker requests it."""

    @property
    def lease(self) -> Lease:
        return Lease(self.usual_lease, self.asked_lease)

    def may_run(self, function: str) -> bool:
        """Return whether the caller may have the tasks of a function.

        A worker over HTTP does not get the specification of a built-in function, so it gets none of its tasks.
        """
        return not is_builtin(function) and any(matches(function, pattern) for pattern in self.functions)


class FetchedClaim(_Message):
    """A claim that a fetch received."""

    scope: Annotated[str, Field(pattern=r"^execution\.[^.*>]+\.[^.*>]+\.>$", max_length=2_000)]
    """The scope of its execution."""
    step: Annotated[str, Field(max_length=1_000)]
    sequence: Annotated[int, Field(ge=1)]
    """The sequence of the claim in the log."""


AnswerState: TypeAlias = Literal["waiting", "served", "refused"]


class Answer(_Message):
    """The answer of the matcher.

    The fetch waits, is served, or is refused because too many wait.
    """

    id: Id
    state: AnswerState
    claims: Annotated[tuple[FetchedClaim, ...], Field(max_length=MAX_COUNT)] = ()
