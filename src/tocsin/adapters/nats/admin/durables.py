"""Creation and update of durables."""

import json
from collections.abc import Iterable

from ....ports import DurableSpec
from ....subjects import Bucket, cursor
from ..client import wire
from ..client.connection import Connection, JetStreamError, Json
from ..client.names import Names
from ..log.projections import NatsProjections
from .desired_state import MAX_WAITING, consumer_config, durable_specs
from .provision_report import Change, ProvisionError, differences, with_filters


async def ensure_consumer(
    connection: Connection, projections: NatsProjections, spec: DurableSpec, stream: str, wanted: Json
) -> Change:
    """Create or update a durable, and return the change.

    A new durable starts after its cursor, or with all messages if it has none.

    Raises:
        ProvisionError: the server rejected the durable.
    """
    name = f"{stream}/{spec.name}"
    stored = await _stored(connection, stream, spec.name)
    if stored is None:
        start = await _start(projections, spec)
        await _send(connection, stream, "create", wanted | start | {"max_waiting": MAX_WAITING})
        return Change("consumer", name, "created")
    changed = differences(stored, wanted)
    if not changed:
        return Change("consumer", name, "unchanged")
    rest = {field: value for field, value in stored.items() if field != "filter_subject"}
    await _send(connection, stream, "update", rest | wanted)
    return Change("consumer", name, "updated", changed)


async def _start(projections: NatsProjections, spec: DurableSpec) -> Json:
    if not spec.starts_after_cursor:
        return {"deliver_policy": "all"}
    for key in (cursor(spec.stream, spec.name), cursor(spec.stream)):
        if found := await projections.get(Bucket.CURSORS, key):
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(found[0]) + 1}
    return {"deliver_policy": "all"}


async def _stored(connection: Connection, stream: str, name: str) -> Json | None:
    try:
        config: Json = (await connection.manage(f"CONSUMER.INFO.{stream}.{name}"))["config"]
    except JetStreamError as error:
        if error.err_code == wire.CONSUMER_NOT_FOUND:
            return None
        if error.err_code == wire.STREAM_NOT_FOUND:
            raise ProvisionError(f"there is no stream {stream} on this NATS: run `tocsin init` first") from error
        raise ProvisionError(f"durable {name} of stream {stream} cannot be read: {error.description}") from error
    return with_filters(config)


async def _send(connection: Connection, stream: str, action: str, config: Json) -> None:
    name: str = config["durable_name"]
    request = {"stream_name": stream, "config": {"name": name} | config, "action": action}
    try:
        await connection.manage(f"CONSUMER.CREATE.{stream}.{name}", json.dumps(request).encode())
    except JetStreamError as error:
        raise ProvisionError(f"durable {name} of stream {stream}: {error.description}") from error


async def ensure_executors(connection: Connection, names: Names, queues: Iterable[str], *, ack_wait: float) -> None:
    """Create the missing durables of queues, with an acknowledgement wait of `ack_wait` seconds.

    Raises:
        ProvisionError: they cannot be created; the usual reason is that `tocsin init` has not run.
    """
    projections = NatsProjections(connection, names)
    for spec in durable_specs(queues, (), bridge=False, task_ack_wait=ack_wait):
        await ensure_consumer(connection, projections, spec, names.stream(spec.stream), consumer_config(spec, names))
