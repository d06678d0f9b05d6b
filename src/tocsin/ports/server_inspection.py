"""Reports of the log's servers about an installation: streams, durables, limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeAlias

from ..subjects import Bucket, Stream

Drift: TypeAlias = Mapping[str, tuple[object, object]]
"""Fields whose configuration differs from what the installation needs: (actual, needed)."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """The server that this client is connected to."""

    url: str
    name: str
    version: str
    cluster: str | None
    known: tuple[str, ...]
    """The servers of the cluster that a client can connect to."""


@dataclass(frozen=True, slots=True)
class ServerVersions:
    """Oldest versions of the server, as numbers."""

    works: tuple[int, ...]
    """The oldest version that Tocsin works with."""
    archives: tuple[int, ...]
    """The oldest version on which the archiver deletes messages from the streams."""
    stops_at_headers: tuple[int, ...]
    """The oldest version on which a header can stop a stream that several servers keep."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that keeps a replica of a stream beside its leader."""

    name: str
    is_current: bool
    is_offline: bool
    lag: int
    """Operations that it has not applied yet."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream as its leader reports it, or a replica if it has no leader."""

    name: str
    messages: int
    bytes: int
    max_bytes: int
    """The size at which it refuses messages; -1: unlimited."""
    max_messages: int
    """The number of messages at which it refuses more; -1: unlimited."""
    subjects: int
    last_sequence: int
    replicas: int
    """As configured."""
    leader: str | None
    peers: tuple[Peer, ...]
    layout: int | None
    """The number of its layout; None: it has none."""
    drift: Drift
    observed_at: datetime
    """By the clock of the server that answered."""
    unchangeable: Drift = field(default_factory=dict)
    """The part of `drift` that the server refuses to change, and `tocsin init` therefore too."""
    loss: str | None = None
    """The stored messages that a removal of `drift` would remove, in words; None: none."""
    is_work_queue: bool = False
    """Whether each of its messages is for one reader, which removes it."""


@dataclass(frozen=True, slots=True)
class DurableState:
    """A durable as its leader reports it."""

    stream: str
    name: str
    pending: int
    """Messages not delivered yet."""
    ack_pending: int
    redelivered: int
    readers: int
    """Open requests for messages."""
    delivered_at: datetime | None
    """The time (UTC) of the last delivery; None: none since the server started."""
    floor: int
    """Every message of the stream up to this sequence is acknowledged."""
    max_ack_pending: int
    filters: tuple[str, ...]
    drift: Drift


@dataclass(frozen=True, slots=True)
class TriggerProgress:
    """The progress of a trigger's durable, as the leader of its stream reports it."""

    waiting: int
    """Events that are not delivered, or not acknowledged."""
    active_at: datetime
    """The time of its last acknowledgement, or of its creation."""
    observed_at: datetime
    """By the clock of the server that answered."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A value of a bucket. `ttl_s` is its life time; None: unlimited."""

    body: bytes
    time: datetime
    ttl_s: float | None


@dataclass(frozen=True, slots=True)
class LimitUsage:
    """A limit of the account. `tier` is empty unless limits depend on replicas."""

    tier: str
    resource: str
    used: int
    allowed: int


@dataclass(frozen=True, slots=True)
class MonitorReport:
    """A server's report at its monitoring endpoint."""

    flushes_every_write: bool
    store_dir: str | None
    failed_streams: tuple[str, ...] = ()
    """The streams that store nothing since a write failed, each with the reason; until the server is restarted."""


class ServerInspection(Protocol):
    """Inspects the servers of one installation.

    Every method may raise `LogUnavailable` if no server answers and `RequestRefused` if the server refuses.
    """

    versions: ServerVersions

    def server(self) -> ServerState:
        """Return the server that this client is connected to."""

    def stream_names(self) -> Sequence[str]:
        """Return the server's names of all streams, also of the buckets and the archive."""

    def stream_name(self, stream: Stream) -> str:
        """Return the server's name of a stream; of decisions, that of the stream of commits."""

    @property
    def webhook_stream_name(self) -> str:
        """The server's name of the stream of requests to webhooks, which need not exist."""

    def bucket_stream_name(self, bucket: Bucket) -> str:
        """Return the server's name of the stream that holds a bucket."""

    async def limits(self) -> Sequence[LimitUsage]:
        """Return the account's limits; an unlimited resource has none."""

    async def stream(self, name: str) -> StreamState | None:
        """Return a stream by the server's name; None if it does not exist."""

    async def durables(self, stream: Stream) -> list[DurableState]:
        """Return all durables of a stream, also durables that the installation does not know."""

    async def triggers(self, stream: str) -> Mapping[str, TriggerProgress] | None:
        """Return the progress of the triggers in a stream, by durable.

        The durables have the names of `ids.event_durable`. `stream`: the server's name of a stream, also of another program. None: it
        does not exist.
        """

    async def oldest_pending(self, durable: DurableState) -> datetime | None:
        """Return the time of a durable's oldest unacknowledged message."""

    async def oldest_after(self, source: str, filters: Sequence[str], sequence: int) -> datetime | None:
        """Return the time of the first message of a stream after a sequence.

        `stream` may be the log of commits. None: no message is after the sequence.
        """

    async def keys(self, bucket: Bucket) -> Mapping[str, StoredKey]:
        """Return the present keys of a bucket."""

    async def unheard(self, users: Sequence[str]) -> list[str]:
        """Return the users outside whose messages no screener hears."""

    async def monitor(self, url: str) -> MonitorReport | None:
        """Return the report of a monitoring endpoint; None if it does not answer."""
