"""The changes that an installation needs in NATS, and the removal of stored messages.

A second provisioning changes nothing, and one after an upgrade changes what the upgrade needs. It removes only
the durables of queues that workers do not read any more.
"""

import json
import secrets
from collections.abc import Iterable
from enum import Enum, auto
from functools import partial
from typing import Final

from nats.aio.client import Client

from .... import subjects
from ....ports import DurableSpec, LogUnavailable, NotAllowed, SequenceConflict
from ....settings import Settings
from ....subjects import INSTALLATION_KEY, Bucket, Stream
from ..client.connection import Connection
from ..client.jetstream_wait import silence_of
from ..client.names import Names
from ..client.wire import JetStreamError
from ..log.projections import NatsProjections
from ..server.process import OLDEST_SERVER, PURGES_SAFELY, Version
from .desired_state import all_streams, consumer_config, require_layout, wanted_streams
from .provision_errors import MessagesAtRisk, ProvisionError, ServerTooOld
from .resources import Change, ensure_consumer, ensure_stream

__all__ = ["Change", "Mode", "ProvisionError", "provision"]

_KEY_BYTES: Final = 32


LEAST_PAYLOAD: Final = 1_000_000
"""Bytes of a message that a server must accept (`max_payload`; 1 MiB by default)."""


class Mode(Enum):
    """The treatment of the changes that an installation needs."""

    PLAN = auto()
    """Make none, and return them."""
    KEEP_MESSAGES = auto()
    """Make none if any would remove stored messages, else all."""
    APPLY = auto()
    """Make all."""


async def provision(
    connection: Connection,
    names: Names,
    settings: Settings,
    *,
    durables: Iterable[DurableSpec] = (),
    mode: Mode = Mode.APPLY,
) -> list[Change]:
    """Create or update streams, buckets, durables and the installation's key.

    Raises:
        MessagesAtRisk: the mode is `KEEP_MESSAGES`, and messages would be removed; nothing is changed.
        ProvisionError: the server cannot be brought into that state; the text says what to do.
        UnsupportedLayout: there are streams of another layout; nothing is changed, and the text lists the steps.
    """
    _check_version(connection.client)
    try:
        await _check_jetstream(connection)
        await require_layout(connection, names, all_streams(names))
        _check_payload(connection.client)
        ensure = partial(_ensure, connection, names, settings, tuple(durables))
        if mode is Mode.PLAN:
            return await ensure(is_plan=True)
        if mode is Mode.KEEP_MESSAGES:
            planned = await ensure(is_plan=True)
            if losses := {change.name: change.loss for change in planned if change.loss is not None}:
                raise MessagesAtRisk(losses)
        return await ensure(is_plan=False)
    except NotAllowed:
        raise
    except LogUnavailable as error:
        if not connection.client.is_connected:
            raise
        raise silence_of(connection, error) from error


async def _ensure(
    connection: Connection, names: Names, settings: Settings, specs: Iterable[DurableSpec], *, is_plan: bool
) -> list[Change]:
    configs = wanted_streams(names, settings)
    changes = [await ensure_stream(connection, config, settings.replicas, is_plan=is_plan) for config in configs]
    projections = NatsProjections(connection, names)
    for spec in specs:
        stream, config = names.stream(spec.stream), consumer_config(spec, names)
        changes.append(await ensure_consumer(connection, projections, spec, stream, config, is_plan=is_plan))
    created = {change.name for change in changes if change.action == "created"}
    if is_plan and names.bucket_stream(Bucket.INSTALLATION) in created:
        return [*changes, Change("key", _key_name(names), "created")]
    return [*changes, await _ensure_key(projections, names, is_plan=is_plan)]


def _check_version(client: Client) -> None:
    version = Version.of(client)
    if version < OLDEST_SERVER:
        raise ServerTooOld(
            f"nats-server {version} is too old for scheduled messages and lifetimes of keys. "
            f"Upgrade it to {OLDEST_SERVER} or newer.",
            version=str(version),
            needed=str(OLDEST_SERVER),
        )


def _check_payload(client: Client) -> None:
    if client.max_payload < LEAST_PAYLOAD:
        raise ProvisionError(
            f"nats-server accepts messages of {client.max_payload:,} bytes, and a commit may need {LEAST_PAYLOAD:,}."
            f" Set `max_payload` to at least {LEAST_PAYLOAD:,}."
        )


async def _check_jetstream(connection: Connection) -> None:
    try:
        await connection.manage("INFO")
    except JetStreamError as error:
        raise ProvisionError(f"JetStream cannot be used: {error.description}") from error


async def _ensure_key(projections: NatsProjections, names: Names, *, is_plan: bool) -> Change:
    if await projections.get(Bucket.INSTALLATION, INSTALLATION_KEY) is not None:
        return Change("key", _key_name(names), "unchanged")
    if not is_plan:
        key = secrets.token_hex(_KEY_BYTES).encode()
        try:
            await projections.put(Bucket.INSTALLATION, INSTALLATION_KEY, key, expect=0)
        except SequenceConflict:  # another provisioning created the key first, and its key is as good
            return Change("key", _key_name(names), "unchanged")
    return Change("key", _key_name(names), "created")


def _key_name(names: Names) -> str:
    return f"{names.bucket(Bucket.INSTALLATION)}/{INSTALLATION_KEY}"


class NatsStreamPurge:
    """Implement `ports.StreamPurge`."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names

    async def decided(self, stream: Stream) -> int:
        """Return the sequence up to which every acknowledging consumer of a stream is done.

        Foreign consumers count too. A consumer without a backlog is done up to the end that the stream had before the query.
        """
        name = self._names.stream(stream)
        end: int = (await self._connection.manage(f"STREAM.INFO.{name}"))["state"]["last_seq"]
        floors = [end]
        async for page in self._connection.pages(f"CONSUMER.LIST.{name}"):
            for consumer in page.get("consumers") or ():
                is_idle = not consumer["num_pending"] and not consumer["num_ack_pending"]
                if consumer["config"]["ack_policy"] != "none" and not is_idle:
                    floors.append(consumer["ack_floor"]["stream_seq"])
        return min(floors)

    def obstacle(self) -> str | None:
        version = Version.of(self._connection.client)
        if version >= PURGES_SAFELY:
            return None
        return (
            f"nats-server {version} would also hide unread messages from other consumers: "
            f"the archive needs {PURGES_SAFELY} or newer"
        )

    async def purge(self, subject: str, *, upto: int) -> None:
        name = self._names.stream(subjects.stream_of(subject))
        request = json.dumps({"filter": self._names.to_wire(subject), "seq": upto + 1})
        await self._connection.manage(f"STREAM.PURGE.{name}", request.encode())
