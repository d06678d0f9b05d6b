"""The declaration of a stage, and the stage as it runs.

A `Stage` is one value: what it reads, what it may store, and how it decides on each message. A decision is pure: it sees
the fold, and returns the changes to store (`step`). Permissions, durables, the documentation and the tests are derived from the
declaration. `Stage.bind` joins it with the object that has the decisions as methods. The loop of commits decides for the result
(`commit_loop`), or it runs at the edge of the log (`edge`). Loops of a stage may wait and write by themselves.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from ..archive.log_archive import LogArchive, Origin
from ..domain.commit import Seal
from ..domain.events import Message, Recorded
from ..domain.trace_context import Sampling
from ..ports import (
    AgentChannel,
    Clock,
    DurableSpec,
    EventLog,
    EventStreams,
    FetchChannel,
    History,
    LogUnavailable,
    NotificationChannel,
    OpenScreening,
    OutdatedState,
    Projections,
    StoredLog,
    StreamPurge,
    TraceExport,
)
from ..ports.commit_log import CommitLog
from ..settings import Settings
from ..subjects import Bucket, Stream, entity_of
from .fold import Fold
from .leader_election import LeaderElection
from .step import Decide, Scope, States, Step

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from .snapshots import Folding, Snapshots

H = TypeVar("H")
"""The object whose methods are the decisions and loops of a stage."""
Loop = Callable[[], Coroutine[None, None, None]]


async def attempted(
    once: Callable[[], Awaitable[object]],
    logger: "FilteringBoundLogger",
    what: str,
    action: str = "undecidable",
    **fields: str,
) -> bool:
    """Run one round of a loop, log its error, and return whether it succeeded."""
    try:
        await once()
    except (LogUnavailable, OutdatedState) as error:
        logger.info(what, action="log-unavailable", error=str(error), **fields)
    except Exception:
        logger.exception(what, action=action, **fields)
    else:
        return True
    return False


async def woken(event: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Wait until an event is set, at most for some seconds of a clock."""
    tasks = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


ACK_WAIT_S: Final = 30.0
"""How long a message may stay unacknowledged before the log delivers it again."""


@dataclass(frozen=True, slots=True)
class Access:
    """The access of a stage besides its durables.

    The rules of its NATS user are derived from it.
    """

    appends: tuple[type[Message], ...] = ()
    """The messages that it stores: events, inputs and public events."""
    reads: tuple[Stream, ...] = ()
    """Streams in which it reads single messages. Every stage reads the log of commits."""
    follows: tuple[Stream, ...] = ()
    """Streams that it follows with an ephemeral consumer."""
    looks_up: tuple[Bucket, ...] = ()
    """Buckets that it only reads."""
    writes: tuple[tuple[Bucket, str], ...] = ()
    """Buckets that it reads and writes, each with the key, or filter of keys, that it may write."""
    removes: tuple[Stream, ...] = ()
    """Streams from which it removes single messages, which are no events."""
    reads_archive: bool = False
    keeps_agents: bool = False
    """Whether it hears hold lists of agents, and commands agents."""
    assigns_tasks: bool = False
    """Whether it hears hold lists of agents, and sends them tasks."""
    keeps_archive: bool = False
    """Whether it writes segments of the archive and purges the streams."""
    screens: bool = False
    """Whether it hears what users outside publish, stores it, and answers them."""
    alerts: bool = False
    """Whether it publishes `cron.alert`, which no stream stores."""
    hears_events: bool = False
    """Whether it has durables for the events of triggers in the streams of the settings."""
    announces: bool = False
    """Whether it publishes the public events of commits."""


@dataclass(frozen=True, slots=True)
class Subscription(Generic[H]):
    """A durable, and the decision on each of its messages.

    At the edge, messages with the same `ordering_key(subject)` are decided in order; None: every message is independent.
    """

    durable: str
    stream: Stream
    filters: tuple[str, ...] | Callable[[Settings], tuple[str, ...]]
    """Subjects, or a function if they depend on the settings."""
    decide: Callable[[H, Recorded[Message], States, datetime], Step]
    """The decision on one message."""
    ordering_key: Callable[[str], str] | None = entity_of
    on_signal: Callable[[H, object], None] | None = None
    """Take the signals of a step after its changes are stored."""
    is_at_edge: bool = False
    """Whether it runs at the edge of the log, although the loop of commits decides for its stage."""
    is_proven: Callable[[H, str], bool] | None = None
    """Return whether a subject proves its publisher. Without proof, an unreadable message is acknowledged, not refused."""

    def spec(self, settings: Settings) -> DurableSpec:
        """Return the durable as the log must provide it."""
        filters = self.filters(settings) if callable(self.filters) else self.filters
        return DurableSpec(self.durable, self.stream, filters, ack_wait=settings.stages.ack_wait)

    def bind(self, handlers: H, settings: Settings) -> "BoundSubscription":
        """Return the subscription with the object that decides."""
        spec = self.spec(settings)
        return BoundSubscription(
            spec.name,
            spec.stream,
            spec.filters,
            partial(self.decide, handlers),
            ordering_key=self.ordering_key,
            ack_wait=spec.ack_wait,
            on_signal=None if self.on_signal is None else partial(self.on_signal, handlers),
            is_proven=None if self.is_proven is None else partial(self.is_proven, handlers),
            is_at_edge=self.is_at_edge,
        )


class Deadline(NamedTuple):
    """A time (UTC) that a state names, and at which a stage decides.

    `key` distinguishes the deadlines of a state.
    """

    at: datetime
    key: str = ""


@dataclass(frozen=True, slots=True)
class DeadlineRule(Generic[H]):
    """The deadlines of a kind of state, and the decision on each.

    `of` returns the deadlines of a state. `decide` takes the scope of the state, a deadline of it, the states and the time.
    """

    kind: Scope[Any]
    of: Callable[[H, Any], Iterable[Deadline]]
    decide: Callable[[H, str, Deadline, States, datetime], Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Generic[H]):
    """One independent part of the scheduler, declared once.

    `purpose`, `consumes` and `decides` are the row of the documentation's table of stages, in Markdown.
    """

    name: str
    purpose: str
    consumes: str
    decides: str
    access: Access
    start: Callable[["StageContext"], H | None]
    """Make the object that decides; None: the settings give this stage nothing to do."""
    subscriptions: tuple[Subscription[H], ...] = ()
    deadlines: tuple[DeadlineRule[H], ...] = ()
    """The deadlines that it decides on the log of commits."""
    loops: tuple[Callable[[H], Coroutine[None, None, None]], ...] = ()
    """Loops that run as long as the stage, until cancelled."""
    needs_history: bool = False
    """Whether the stage requires the history's database (`StageContext.storage`)."""
    is_installed: Callable[[Settings], bool] = lambda _: True
    """Whether an installation with these settings has the stage: its durables and its NATS user."""
    needs: str = ""
    """The setting that installs it, in Markdown; empty: every installation has the stage."""

    @property
    def user(self) -> str:
        """The name of its NATS user, its service and its command: with hyphens."""
        return self.name.replace("_", "-")

    def bind(self, handlers: H, settings: Settings | None = None) -> "BoundStage":
        """Return the stage with the object that decides, ready to run."""
        settings = settings or Settings()
        return BoundStage(
            self.name,
            tuple(subscription.bind(handlers, settings) for subscription in self.subscriptions),
            tuple(partial(loop, handlers) for loop in self.loops),
            self.access,
            tuple(
                BoundDeadlineRule(d.kind, partial(d.of, handlers), partial(d.decide, handlers)) for d in self.deadlines
            ),
        )

    def run_in(self, context: "StageContext") -> "BoundStage | None":
        """Start the stage; None if the settings give it nothing to do."""
        handlers = self.start(context)
        return None if handlers is None else self.bind(handlers, context.settings)


AnyStage = Stage[Any]


class Elect(Protocol):
    """Make a candidate for a leader lease.

    `ttl`: the longest time in seconds without a leader after one was killed; None: that of the settings.
    """

    def __call__(self, lease: str, *, ttl: float | None = None) -> LeaderElection:
        """Make the candidate."""


@dataclass(frozen=True, slots=True)
class CommitStorage:
    """The log of commits of a process that archives it.

    Attributes:
        log: the commits, archived or not.
        partition: the partition.
        seal: the seal that recognizes genuine commits.
        key: the id of the key of the first commit.
        archive: where commits go.
        folding: returns the loop that folds the log in this process; None: it does not run yet.
        snapshots: the snapshots of the fold.
        takers: the stages that take each stream of inputs by the log of commits.
        followers: returns the number of the newest event that each follower has.
    """

    log: CommitLog
    partition: int
    seal: Seal
    key: str
    archive: LogArchive
    folding: "Callable[[], Folding | None]"
    snapshots: "Snapshots"
    takers: Mapping[Stream, frozenset[str]]
    followers: Mapping[str, Callable[[], Awaitable[int]]]


@dataclass(frozen=True, slots=True)
class Storage:
    """Storage for the stages that write the history and the archive."""

    history: History
    stored: StoredLog
    """Every message ever stored, in the streams or in the archive."""
    streams: StoredLog
    purge: StreamPurge
    origin: Origin
    commits: CommitStorage | None = None
    """None: no archiver runs in this process."""


@dataclass(frozen=True, slots=True)
class StageContext:
    """The dependencies of the stages of one process, which share only the fold."""

    settings: Settings
    log: EventLog
    projections: Projections
    clock: Clock
    stored: StoredLog
    """Every message ever stored, in the streams or in the archive."""
    report_key: bytes
    """The installation's key, which proves that a report comes from the worker that holds the task."""
    elect: Elect
    fold: Callable[[], Fold] = Fold
    """Returns the fold of the process; of an empty log if none is given."""
    storage: Storage | None = None
    """None: the history's database is not open."""
    agents: AgentChannel | None = None
    fetches: FetchChannel | None = None
    """None: no agents can be heard."""
    screening: OpenScreening | None = None
    """Opens the channels of users outside; None: nothing is screened."""
    version: str = ""
    """The version of this program."""
    sampling: Sampling | None = None
    """What decides on the traces of new executions; None: none are made."""
    traces: TraceExport | None = None
    """The export of traces; None: none are exported."""
    event_streams: EventStreams | None = None
    """The durables of triggers; None: no events can be heard."""
    channels: Mapping[str, NotificationChannel] = field(default_factory=dict)
    """The channels of notifications, by their names in the settings."""

    def require_storage(self) -> Storage:
        """Return the storage of a stage that declares `needs_history`."""
        if self.storage is None:
            raise AssertionError("a stage that reads `storage` must declare `needs_history`")
        return self.storage


@dataclass(frozen=True, slots=True)
class BoundSubscription:
    """A subscription, ready to decide on its messages."""

    durable: str
    stream: Stream
    filters: tuple[str, ...]
    decide: Decide
    ordering_key: Callable[[str], str] | None = entity_of
    ack_wait: float = ACK_WAIT_S
    on_signal: Callable[[object], None] | None = None
    is_proven: Callable[[str], bool] | None = None
    is_at_edge: bool = False


@dataclass(frozen=True, slots=True)
class BoundDeadlineRule:
    """The deadlines of a kind of state, ready to be decided on."""

    kind: Scope[Any]
    of: Callable[[Any], Iterable[Deadline]]
    decide: Callable[[str, Deadline, States, datetime], Step]


@dataclass(frozen=True, slots=True)
class BoundStage:
    """A stage, ready to run."""

    name: str
    subscriptions: tuple[BoundSubscription, ...] = ()
    loops: tuple[Loop, ...] = ()
    access: Access = Access()
    deadlines: tuple["BoundDeadlineRule", ...] = ()
