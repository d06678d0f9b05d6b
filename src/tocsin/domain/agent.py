"""Registered worker processes, and agents as the command line and the API show them.

A hold list is what a worker process sends: what it registered with, and the tasks that it holds. It is hostile input, so
every field is bounded. Its name and id come from its subject, never from its body.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from pydantic import BaseModel, Field

from .agent_grants import may_get
from .definition.partition import MAX_SHARDS, is_shard_id
from .documented_model import DocumentedModel
from .events import (
    Actor,
    AgentDrainStarted,
    AgentEnded,
    AgentFact,
    AgentFellSilent,
    AgentForgotten,
    AgentRegistered,
    AgentSwitched,
    Message,
    QueueGrant,
    Recorded,
)
from .ownership import EVERY_SHARD
from .text import matches

MAX_HOLD_LIST_BYTES: Final = 262_144
MAX_FUNCTIONS: Final = 500
MAX_QUEUES: Final = 100
MAX_LABELS: Final = 50
MAX_HELD: Final = 1_000
MAX_HELD_BYTES: Final = MAX_HOLD_LIST_BYTES // 2
"""Characters of the held tasks in a hold list."""
MAX_PROPOSALS: Final = 1_000
MAX_NAME: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOKEN: Final = re.compile(r"[^\s.*>\x00-\x1f\x7f]+")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")

MAX_HELD_NAME: Final = 1_000
"""Characters of a held task's name."""
_HELD_TOKENS: Final = 4

Text: TypeAlias = Annotated[str, Field(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
DeclaredShard: TypeAlias = Annotated[str, Field(max_length=64, pattern=r"^(\*|[a-z0-9][a-z0-9-]{0,63})$")]
"""The id of a shard, or `*` for every shard."""
HeldName: TypeAlias = Annotated[str, Field(max_length=MAX_HELD_NAME)]
Proposals: TypeAlias = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=MAX_PROPOSALS)]
Mode: TypeAlias = Literal["enabled", "disabled", "draining"]
"""What an agent does: it takes tasks, it takes none, or it finishes its tasks."""


WorkerKind: TypeAlias = Literal["agent", "http", "mq"]
"""How a worker gets its tasks: it registers and is assigned tasks, it fetches over HTTP, or it takes them from hip-62's queue."""
OutsideKind: TypeAlias = Literal["http", "mq"]
"""The kinds of workers that do not register: they are known by what they request and answer."""
SILENCE: Final[Mapping[WorkerKind, timedelta]] = {"http": timedelta(seconds=45), "mq": timedelta(minutes=10)}
"""Time after which a worker that does not register is lost. It is heard at most every few seconds, an executor only by its answers."""


class AgentState(StrEnum):
    """The state of an agent, as operators see it."""

    ENABLED = "ENABLED"
    DISABLED = "DISABLED"
    DRAINING = "DRAINING"
    LOST = "LOST"


class HoldList(DocumentedModel, frozen=True, extra="ignore", defer_build=True):
    """A hold list, as an agent sends it at each change and every few seconds."""

    number: Annotated[int, Field(ge=1, le=2**62)]
    """Counts the hold lists of a process, so that a late or repeated one is recognized."""
    mode: Mode | Literal["starting"]
    """What the agent does; it takes no tasks while it starts."""
    host: Text = ""
    version: Text = ""
    labels: Annotated[dict[Text, Text], Field(max_length=MAX_LABELS)] = Field(default_factory=dict)
    queues: Annotated[tuple[Text, ...], Field(max_length=MAX_QUEUES)] = ()
    functions: Annotated[tuple[Text, ...], Field(max_length=MAX_FUNCTIONS)] = ()
    max_concurrent_jobs: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    held: Annotated[tuple[HeldName, ...], Field(max_length=MAX_HELD)] = ()
    """The tasks that it holds: `<job>.<execution id>.<step>.<attempt>`, each as one token of a subject."""
    handed_back: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=MAX_HELD)] = ()
    """The sequences of claims whose tasks it does not run."""
    acknowledged: Proposals = ()
    """The sequences of the proposals of executions that it acknowledges."""
    ended: bool = False
    """The process stops: this is its last hold list."""
    leader_candidate: bool = True
    """Whether it may become the executor leader."""
    shards: Annotated[tuple[DeclaredShard, ...], Field(max_length=MAX_SHARDS)] = ()
    """The shards that it may own; `*` stands for every shard."""


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of an assigned task; the body of the task follows.

    Attributes:
        subject: the relative subject of the task.
        sequence: the position of the task in its stream.
        time: when the task was stored (UTC).
        delivery: the number of the claim's delivery.
        claim: the sequence of the claim.
        proof: the secret that a report on the claim must carry.
        heartbeat: what an earlier attempt or delivery of the step sent last; None: nothing, or it is lost.
        epoch: the epoch of the agent as the owner of the task's resource; None: the task needs none.
    """

    subject: str
    sequence: int
    time: datetime
    delivery: int
    claim: int
    proof: str
    heartbeat: Any = None
    epoch: int | None = None

    def framed(self, body: bytes) -> bytes:
        return msgspec.json.encode(self) + b"\n" + body


_ASSIGNMENTS: Final = msgspec.json.Decoder(Assignment)


def unframed(message: bytes) -> tuple[Assignment, bytes]:
    """Return an assignment and its task's body; raise ValueError for another message."""
    head, _, body = message.partition(b"\n")
    return _ASSIGNMENTS.decode(head), body


class HeldEntry(NamedTuple):
    """A task in a hold list."""

    job: str
    execution_id: str
    step: str
    attempt: str

    @property
    def execution(self) -> str:
        """The key of its execution, as `EndNotice` names it."""
        return f"{self.job}.{self.execution_id}"


def read_held(name: str) -> HeldEntry | None:
    """Return a task of a hold list; None: the name is malformed."""
    tokens = name.split(".")
    return HeldEntry(*tokens) if len(tokens) == _HELD_TOKENS and all(map(_TOKEN.fullmatch, tokens)) else None


class EndNotice(msgspec.Struct, frozen=True):
    """A notice that executions (`<job>.<execution id>`, the job as one token) are over."""

    executions: tuple[str, ...]


class Command(BaseModel, frozen=True, extra="ignore", defer_build=True):
    """The answer of the agent keeper to an agent."""

    mode: Mode
    layout: int | None = None
    """The layout of the installation's streams; a worker that needs another layout ends."""
    proposals: Proposals = ()
    """The sequences of the proposals that it shall acknowledge in its next hold list."""


def is_agent_name(name: str) -> bool:
    """Return whether a name is one token of a subject, and short enough."""
    return _NAME.fullmatch(name) is not None


def checked_shards(shards: Iterable[str]) -> tuple[str, ...]:
    """Return the shards that an agent declares, each once; raise ValueError if one is wrong."""
    distinct = tuple(dict.fromkeys(shards))
    for shard in distinct:
        if shard != EVERY_SHARD and not is_shard_id(shard):
            raise ValueError(
                f"shards: `*`, or ids of 1 to 64 lower-case letters, digits, hyphens and underscores, the first a letter or a digit, not {shard!r}"
            )
    if len(distinct) > MAX_SHARDS:
        raise ValueError(f"shards: at most {MAX_SHARDS:,} ids, not {len(distinct):,}; `*` stands for every shard")
    return distinct


def agent_key(name: str, agent_id: str) -> str:
    """Return the key of a process among all agents.

    An id alone is no proof: a worker may send hold lists with the id of another, under its own name.
    """
    return f"{name}.{agent_id}"


def name_of(key: str) -> str:
    return key.partition(".")[0]


def is_agent_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def safe_name(name: str) -> str:
    """Replace every character that a token may not have by a hyphen."""
    return _UNSAFE.sub("-", name)[:MAX_NAME] or "-"


@dataclass(frozen=True, slots=True)
class Agent:
    """The state of one process."""

    registered: AgentRegistered | None = None
    is_draining: bool = False
    end: Literal["lost", "ended", "forgotten"] | None = None

    @property
    def is_live(self) -> bool:
        return self.registered is not None and self.end is None

    def state(self, *, enabled: bool) -> AgentState:
        """Return the state that operators see; `enabled`: its name is not disabled."""
        if self.end is not None:
            return AgentState.LOST
        if self.is_draining:
            return AgentState.DRAINING
        return AgentState.ENABLED if enabled else AgentState.DISABLED

    def mode(self, *, enabled: bool) -> Mode:
        if self.is_draining:
            return "draining"
        return "enabled" if enabled else "disabled"


initial: Final = Agent()


def evolve(state: Agent, fact: AgentFact) -> Agent:
    """Apply an event about one process."""
    match fact:
        case AgentRegistered():
            return replace(state, registered=fact, end=None)
        case AgentDrainStarted():
            return replace(state, is_draining=True)
        case AgentFellSilent():
            return replace(state, end="lost")
        case AgentEnded():
            return replace(state, end="ended")
        case AgentForgotten():
            return replace(state, end="forgotten")
        case _:
            return state


def fold(facts: Iterable[Recorded[Message]]) -> Agent:
    """Return the state after the events of one process, oldest first."""
    state = initial
    for recorded in facts:
        if isinstance(recorded.message, AgentFact):
            state = evolve(state, recorded.message)
    return state


def hear(state: Agent, name: str, agent_id: str, held: HoldList) -> list[AgentFact]:
    """Decide on a hold list: register the agent, or note that it ended.

    A process that ended stays so: a hold list that arrives later is older.
    """
    if state.end == "ended":
        return []
    if held.ended:
        return [AgentEnded(name=name, agent_id=agent_id)] if state.is_live else []
    registered = AgentRegistered(
        name=name,
        agent_id=agent_id,
        host=held.host,
        version=held.version,
        labels=dict(sorted(held.labels.items())),
        queues=tuple(dict.fromkeys(held.queues)),
        functions=tuple(sorted(set(held.functions))),
        max_concurrent_jobs=held.max_concurrent_jobs,
        leader_candidate=held.leader_candidate,
        shards=tuple(sorted(set(held.shards))),
    )
    return [] if state.is_live and state.registered == registered else [registered]


def lose(state: Agent, *, silent_for: float) -> list[AgentFact]:
    if state.registered is None or not state.is_live:
        return []
    fact = state.registered
    return [AgentFellSilent(name=fact.name, agent_id=fact.agent_id, silent_for=round(silent_for, 3))]


def forget(state: Agent, name: str, agent_id: str) -> list[AgentFact]:
    """Decide that a lost or ended agent is no longer listed."""
    if state.end not in {"lost", "ended"}:
        return []
    return [AgentForgotten(name=name, agent_id=agent_id)]


def drain(
    state: Agent, name: str, agent_id: str, *, by: Actor | None = None, reason: str | None = None
) -> list[AgentFact]:
    if not state.is_live or state.is_draining:
        return []
    return [AgentDrainStarted(name=name, agent_id=agent_id, by=by, reason=reason)]


def mode_of(newest: AgentSwitched | None) -> Mode:
    """Return what the newest event of a name lets its workers do."""
    if newest is None or newest.enabled:
        return "enabled"
    return "draining" if newest.draining else "disabled"


def switch(
    newest: AgentSwitched | None, name: str, mode: Mode, *, by: Actor | None = None, reason: str | None = None
) -> list[AgentFact]:
    """Decide to disable, drain or enable a name; `newest` is its newest event.

    A name that drains takes no tasks already, so it is not disabled.
    """
    before = mode_of(newest)
    if mode == before or (mode, before) == ("disabled", "draining"):
        return []
    return [AgentSwitched(name=name, enabled=mode == "enabled", draining=mode == "draining", by=by, reason=reason)]


class AgentRecord(DocumentedModel, frozen=True, defer_build=True):
    """A worker process; of a worker that does not register, what it says of itself."""

    name: str
    """The configured name, which several processes may share; of other kinds the worker's own name, or its identity if it has none."""
    agent_id: str
    """The id of the process, new at each start; of other kinds a digest of identity and name."""
    kind: WorkerKind = "agent"
    """`agent` (registered), `http` (it fetches over HTTP), or `mq` (an executor of hip-62's queue)."""
    identity: str | None = None
    """The identity that fetches, if the worker fetches over HTTP."""
    heard_at: datetime | None = None
    """When a worker that does not register was last heard, to a quarter of a minute (UTC)."""
    state: AgentState
    """`ENABLED`, `DISABLED` (its name takes no tasks), `DRAINING` (it finishes its tasks), or `LOST` (it is silent)."""
    since: datetime | None = None
    """The time of its newest event."""
    host: str = ""
    version: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    queues: list[str] = Field(default_factory=list)
    functions: list[str] = Field(default_factory=list)
    max_concurrent_jobs: int = 0
    """The number of tasks that it runs at the same time."""
    slots: int | None = None
    """The number of tasks that it may hold: `max_concurrent_jobs`, or that of the scheduler policy if it is lower; null: it is unknown."""
    leader_candidate: bool = False
    """Whether it may become the executor leader, which alone gets the tasks of `LEADER_ONLY` jobs."""
    is_leader: bool = False
    """Whether it is the executor leader."""
    shards: list[str] = Field(default_factory=list)
    """The shards that it may own; `*` stands for every shard."""
    owned_shards: list[str] = Field(default_factory=list)
    """The shards that it owns, whose tasks it alone gets."""
    held: list[str] = Field(default_factory=list)
    """The tasks that it holds, as far as they are known: `<execution id>.<step>.<attempt>`."""
    grants: list[QueueGrant] | None = None
    """The tasks that agents of its name may get, by queue; null: an operator granted and revoked nothing."""
    granted_shards: list[str] | None = None
    """The shards that agents of its name may own; null: no operator limited them, so they may own every shard, or none if `needs_grant`."""
    needs_grant: bool = False
    """Whether it gets no tasks and owns no shards without a grant (`agents.require_grant`)."""

    def at(self, now: datetime) -> "AgentRecord":
        """Return the record at a time: silence means that a worker is lost."""
        if self.heard_at is None or now - self.heard_at < SILENCE[self.kind]:
            return self
        return self.model_copy(update={"state": AgentState.LOST})

    def has(self, function: str) -> bool:
        """Return whether it has a function; of workers over HTTP, `functions` are patterns."""
        if self.kind == "http":
            return any(matches(function, pattern) for pattern in self.functions)
        return function in self.functions

    def may_get(self, queue: str, function: str) -> bool:
        """Return whether operators let it get the tasks of a function in a matched queue."""
        return not self.needs_grant if self.grants is None else may_get(self.grants, queue, function)
