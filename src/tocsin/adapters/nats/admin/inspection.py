"""Inspect the streams, durables and limits of an installation on nats-server."""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from ....ports import DurableSpec
from ....ports.server_inspection import (
    DurableState,
    LimitUsage,
    MonitorReport,
    Peer,
    ServerState,
    ServerVersions,
    StoredKey,
    StreamState,
    TriggerProgress,
)
from ....settings import Settings
from ....subjects import COMMITS, DECISION_STREAMS, Bucket, Stream
from ..client import wire
from ..client.connection import Connection, Json
from ..client.names import PROBE, Names
from ..core_messages import is_heard
from ..log.direct_get import DirectGet
from ..log.projections import is_marker
from ..server.process import OLDEST_SERVER, PURGES_SAFELY, STOPS_AT_HEADERS, server_health, server_variables
from .desired_state import consumer_config, layout_of, wanted_streams
from .resources import differences, loss_by, unchangeable, with_filters

_LIMITS: Final = (
    ("max_storage", "storage", "bytes of disk"),
    ("max_memory", "memory", "bytes of memory"),
    ("max_streams", "streams", "streams"),
    ("max_consumers", "consumers", "consumers"),
)
_UNLIMITED: Final = -1
_PROBE_TIMEOUT_S: Final = 0.5
"""Seconds within which the server says that no process listens."""


class NatsInspection:
    """Implement `ports.ServerInspection` by JetStream's API."""

    versions = ServerVersions(OLDEST_SERVER, PURGES_SAFELY, STOPS_AT_HEADERS)

    def __init__(
        self, connection: Connection, names: Names, settings: Settings, durables: Iterable[DurableSpec] = ()
    ) -> None:
        """Compare with the streams that the settings need, and with `durables`."""
        self._connection = connection
        self._names = names
        self._wanted_streams = {config["name"]: config for config in wanted_streams(names, settings)}
        self._wanted_durables = {
            (names.stream(spec.stream), spec.name): consumer_config(spec, names) for spec in durables
        }

    def server(self) -> ServerState:
        client, greeting = self._connection.client, self._connection.greeting
        return ServerState(
            url=f"{client.connected_url.hostname}:{client.connected_url.port}" if client.connected_url else "",
            name=greeting.get("server_name", ""),
            version=greeting.get("version", ""),
            cluster=greeting.get("cluster"),
            known=tuple(sorted(greeting.get("connect_urls") or ())),
        )

    def stream_names(self) -> Sequence[str]:
        return tuple(self._wanted_streams)

    def stream_name(self, stream: Stream) -> str:
        return self._names.commits_stream if stream in DECISION_STREAMS else self._names.stream(stream)

    @property
    def webhook_stream_name(self) -> str:
        return self._names.webhook_stream

    def bucket_stream_name(self, bucket: Bucket) -> str:
        return self._names.bucket_stream(bucket)

    async def limits(self) -> Sequence[LimitUsage]:
        account = await self._connection.manage("INFO")
        tiers: dict[str, Json] = account.get("tiers") or {"": account}
        return [
            LimitUsage(name, resource, tier.get(usage, 0), allowed)
            for name, tier in tiers.items()
            for limit, usage, resource in _LIMITS
            if (allowed := tier.get("limits", {}).get(limit, _UNLIMITED)) > 0
        ]

    async def stream(self, name: str) -> StreamState | None:
        info = await self._connection.find(f"STREAM.INFO.{name}", absent=wire.STREAM_NOT_FOUND, by_leader=False)
        if info is None:
            return None
        state, cluster = info["state"], info.get("cluster") or {}
        wanted = self._wanted_streams.get(name, {})
        drift = differences(info["config"], wanted)
        return StreamState(
            name=name,
            messages=state["messages"],
            bytes=state["bytes"],
            max_bytes=info["config"].get("max_bytes", _UNLIMITED),
            max_messages=info["config"].get("max_msgs", _UNLIMITED),
            subjects=state.get("num_subjects", 0),
            last_sequence=state["last_seq"],
            replicas=info["config"]["num_replicas"],
            leader=cluster.get("leader"),
            peers=tuple(
                Peer(p["name"], p.get("current", False), p.get("offline", False), p.get("lag", 0))
                for p in cluster.get("replicas") or ()
            ),
            layout=layout_of(info["config"]),
            drift=drift,
            observed_at=datetime.fromisoformat(info["ts"]),
            unchangeable=unchangeable(drift),
            loss=loss_by(info, wanted),
            is_work_queue=info["config"].get("retention") == "workqueue",
        )

    async def durables(self, stream: Stream) -> list[DurableState]:
        name = self._names.stream(stream)
        pages = self._connection.pages(f"CONSUMER.LIST.{name}")
        consumers = [info async for page in pages for info in page.get("consumers") or ()]
        return [self._durable(name, info) for info in consumers if info["config"].get("durable_name")]

    async def triggers(self, stream: str) -> Mapping[str, TriggerProgress] | None:
        pages = [page async for page in self._connection.pages(f"CONSUMER.LIST.{stream}")]
        prefix = self._names.trigger_durable("")
        if not pages:
            return None
        return {
            info["name"].removeprefix(prefix): TriggerProgress(
                info["num_pending"] + info["num_ack_pending"],
                datetime.fromisoformat(info["ack_floor"].get("last_active") or info["created"]),
                datetime.fromisoformat(info["ts"]),
            )
            for page in pages
            for info in page.get("consumers") or ()
            if info["name"].startswith(prefix)
        }

    async def oldest_after(self, source: str, filters: Sequence[str], sequence: int) -> datetime | None:
        names = self._names
        stream = names.commits_stream if source == COMMITS else names.stream(Stream(source))
        wired = [f"{names.commits_prefix}.*"] if source == COMMITS else [*map(names.to_wire, filters)]
        requests = [json.dumps({"seq": sequence + 1, "next_by_subj": one}).encode() for one in wired]
        verb = f"STREAM.MSG.GET.{stream}"
        answers = [await self._connection.find(verb, one, absent=wire.NO_MESSAGE_FOUND) for one in requests]
        times = (datetime.fromisoformat(answer["message"]["time"]) for answer in answers if answer is not None)
        return min(times, default=None)

    async def oldest_pending(self, durable: DurableState) -> datetime | None:
        direct = DirectGet(self._connection, durable.stream)
        scans = [await direct.scan(pattern, after=durable.floor, limit=1) for pattern in durable.filters or (">",)]
        return min((messages[0].time for messages in scans if messages), default=None)

    async def keys(self, bucket: Bucket) -> Mapping[str, StoredKey]:
        prefix = self._names.key(bucket, "")
        messages = await DirectGet(self._connection, self._names.bucket_stream(bucket)).last_of_each([f"{prefix}>"])
        return {
            stored.subject[len(prefix) :]: StoredKey(stored.body, stored.time, _ttl(stored.headers.get(wire.TTL)))
            for stored in messages
            if not is_marker(stored)
        }

    async def unheard(self, users: Sequence[str]) -> list[str]:
        probes = (self._names.unscreened(user, PROBE) for user in users)
        heard = await asyncio.gather(*(is_heard(self._connection, probe, wait=_PROBE_TIMEOUT_S) for probe in probes))
        return [user for user, has_screener in zip(users, heard, strict=True) if not has_screener]

    async def monitor(self, url: str) -> MonitorReport | None:
        variables, health = await asyncio.gather(
            asyncio.to_thread(server_variables, url), asyncio.to_thread(server_health, url)
        )
        if variables is None:
            return None
        config = variables.get("jetstream", {}).get("config") or {}
        failed = tuple(error["error"] for error in health if error.get("type") == "STREAM" and "error" in error)
        return MonitorReport(bool(config.get("sync_always")), config.get("store_dir"), failed)

    def _durable(self, stream: str, info: Json) -> DurableState:
        config = with_filters(info["config"])
        name = config["durable_name"]
        return DurableState(
            stream=stream,
            name=name,
            pending=info["num_pending"],
            ack_pending=info["num_ack_pending"],
            redelivered=info["num_redelivered"],
            readers=info["num_waiting"],
            delivered_at=datetime.fromisoformat(delivered)
            if (delivered := info["delivered"].get("last_active"))
            else None,
            floor=info["ack_floor"]["stream_seq"],
            max_ack_pending=config.get("max_ack_pending", 0),
            filters=tuple(config.get("filter_subjects") or ()),
            drift=differences(config, self._wanted_durables.get((stream, name), {})),
        )


def _ttl(header: str | None) -> float | None:
    return None if header is None else float(header.removesuffix("s"))
