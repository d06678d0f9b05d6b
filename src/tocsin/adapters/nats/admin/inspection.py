"""What a server says of an installation: its streams, its durables, who asks for messages, what lies there unacknowledged."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ....ports import LogUnavailable
from ....subjects import Bucket, Stream
from ..client import wire
from ..client.connection import Connection, Json
from ..client.names import Names
from ..log.direct_get import DirectGet, Stored
from .provision_report import with_filters

PAGES: Final = 5
"""Portions of a list of subjects (100,000 each) that are read before that is given up."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """The server that this client is connected to."""

    url: str
    name: str
    version: str
    cluster: str | None
    known: tuple[str, ...]
    """The servers of the cluster that a client may turn to."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that keeps a stream beside its leader."""

    name: str
    is_current: bool
    is_offline: bool
    lag: int
    """Operations that it is behind."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream, as its leader tells it, or a replica where it has none. `replicas` are those that it is configured with."""

    name: str
    messages: int
    bytes: int
    subjects: int
    last_sequence: int
    replicas: int
    leader: str | None
    peers: tuple[Peer, ...]
    config: Json
    told_at: datetime
    """The time by the clock of the server that answered."""


@dataclass(frozen=True, slots=True)
class DurableState:
    """A durable, as its leader tells it."""

    stream: str
    name: str
    pending: int
    """Messages that nobody was given yet."""
    ack_pending: int
    redelivered: int
    readers: int
    """Requests for messages that are open at this moment."""
    floor: int
    """Up to this sequence of the stream nothing is left to be done."""
    max_ack_pending: int
    config: Json


class Inspection:
    """Asks about one installation. Every method raises `LogUnavailable` when nobody answers."""

    def __init__(self, connection: Connection, names: Names) -> None:
        """Nothing is asked yet."""
        self._connection = connection
        self._names = names

    def server(self) -> ServerState:
        """Whom this client talks to."""
        client, said = self._connection.client, self._connection.greeting
        return ServerState(
            url=f"{client.connected_url.hostname}:{client.connected_url.port}" if client.connected_url else "",
            name=said.get("server_name", ""),
            version=said.get("version", ""),
            cluster=said.get("cluster"),
            known=tuple(sorted(said.get("connect_urls") or ())),
        )

    async def account(self) -> Json:
        """What JetStream grants this account, and what is used of it.

        Raises:
            RefusedError: JetStream is not enabled for it.
        """
        return await self._connection.manage("INFO")

    async def stream(self, name: str) -> StreamState | None:
        """A stream by its name on the wire; None: there is none.

        Raises:
            RefusedError: the server cannot tell.
        """
        told = await self._connection.look_up(f"STREAM.INFO.{name}", absent=wire.STREAM_NOT_FOUND, by_leader=False)
        if told is None:
            return None
        state, cluster = told["state"], told.get("cluster") or {}
        return StreamState(
            name=name,
            messages=state["messages"],
            bytes=state["bytes"],
            subjects=state.get("num_subjects", 0),
            last_sequence=state["last_seq"],
            replicas=told["config"]["num_replicas"],
            leader=cluster.get("leader"),
            peers=tuple(
                Peer(p["name"], p.get("current", False), p.get("offline", False), p.get("lag", 0))
                for p in cluster.get("replicas") or ()
            ),
            config=told["config"],
            told_at=datetime.fromisoformat(told["ts"]),
        )

    async def durables(self, stream: Stream) -> list[DurableState]:
        """The durables of a stream, those of others too.

        Raises:
            RefusedError: there is no such stream.
        """
        name, found, total = self._names.stream(stream), list[Json](), 1
        while len(found) < total:
            request = json.dumps({"offset": len(found)}).encode()
            told = await self._connection.manage(f"CONSUMER.LIST.{name}", request)
            total = told["total"]
            if not told["consumers"]:
                break
            found += told["consumers"]
        return [_durable(name, one) for one in found if one["config"].get("durable_name")]

    async def oldest_behind(self, durable: DurableState) -> datetime | None:
        """When the oldest message was stored that a durable has not dealt with; None: there is none."""
        filters = durable.config.get("filter_subjects") or [">"]
        direct = DirectGet(self._connection, durable.stream)
        found = [await direct.scan(one, after=durable.floor, limit=1) for one in filters]
        return min((stored[0].time for stored in found if stored), default=None)

    async def keys(self, bucket: Bucket) -> dict[str, Stored]:
        """Every key of a bucket with when, and for how long, its value was stored; marks of what is gone left out."""
        prefix = self._names.key(bucket, "")
        found = await DirectGet(self._connection, self._names.bucket_stream(bucket)).last_of_each([f"{prefix}>"])
        return {
            stored.subject[len(prefix) :]: stored
            for stored in found
            if wire.KV_OPERATION not in stored.headers and wire.MARKER_REASON not in stored.headers
        }

    async def schedules(self, limit: int) -> list[tuple[str, datetime]]:
        """Timers that the log keeps: their relative subjects and when they are to fire; so many, the oldest first."""
        log = DirectGet(self._connection, self._names.stream(Stream.LOG))
        found = await log.scan(self._names.to_wire("delay.>"), limit=limit)
        timers = []
        for stored in found:
            with suppress(ValueError):  # another way to say when, of whoever stored that
                at = datetime.fromisoformat(stored.headers.get(wire.SCHEDULE, "").removeprefix("@at "))
                timers.append((self._names.from_wire(stored.subject), at))
        return timers

    async def subjects(self, stream: Stream, relative: str) -> list[str]:
        """The subjects (relative) that are stored under a filter; some of them, where there are very many."""
        verb, found = f"STREAM.INFO.{self._names.stream(stream)}", list[str]()
        for _ in range(PAGES):
            request = {"subjects_filter": self._names.to_wire(relative), "offset": len(found)}
            told = await self._connection.manage(verb, json.dumps(request).encode())
            page = told["state"].get("subjects") or {}
            found += page
            if not page or len(found) >= told.get("total", 0):
                break
        return [self._names.from_wire(subject) for subject in found]


def lifetime(stored: Stored) -> float | None:
    """Seconds for which a key was stored; None: for good."""
    ttl = stored.headers.get(wire.TTL)
    return None if ttl is None else float(ttl.removesuffix("s"))


def _durable(stream: str, told: Json) -> DurableState:
    config = with_filters(told["config"])
    return DurableState(
        stream=stream,
        name=config["durable_name"],
        pending=told["num_pending"],
        ack_pending=told["num_ack_pending"],
        redelivered=told["num_redelivered"],
        readers=told["num_waiting"],
        floor=told["ack_floor"]["stream_seq"],
        max_ack_pending=config.get("max_ack_pending", 0),
        config=config,
    )


def names_of_streams(names: Names, *, bridge: bool) -> Sequence[str]:
    """Every stream that an installation has, those behind its buckets and its archive too."""
    streams = [names.stream(stream) for stream in Stream if bridge or stream is not Stream.MQ]
    return [*streams, *(names.bucket_stream(bucket) for bucket in Bucket), names.archive_stream]


__all__ = [
    "DurableState",
    "Inspection",
    "LogUnavailable",
    "Peer",
    "ServerState",
    "StreamState",
    "lifetime",
    "names_of_streams",
]
