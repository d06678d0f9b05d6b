"""Creation and update of streams and durables, and the report of each change."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from ....ports import DurableSpec
from ....subjects import Bucket, covers, cursor, overlap
from ..client import wire
from ..client.connection import Connection, Json
from ..client.wire import JetStreamError
from ..log.projections import NatsProjections
from .desired_state import MAX_WAITING
from .provision_errors import ProvisionError, StreamRejected, StreamUnchangeable, SubjectsOverlap

_SECOND: Final = 1_000_000_000
MAX_NAMED: Final = 5
"""Subjects that a warning names."""
_FIXED: Final = frozenset({"storage", "retention"})
"""The server cannot change these fields of an existing stream."""
_LASTING: Final = frozenset({"deny_delete"})
"""The server can set these fields of an existing stream, and cannot unset them."""

_RESERVED: Final = (
    ". Streams of inputs, output and notifications reserve their limit: lower `archive.max_input_bytes`, `output.max_bytes`, "
    "`notifications.max_bytes` or `triggers.max_bytes`, or give JetStream more disk."
)


@dataclass(frozen=True, slots=True)
class Change:
    """An object on the server and its change.

    `fields` maps changed fields to old and new values. `loss` says which stored messages the change removes; None: none.
    `warning` says which later messages are stored no more.
    """

    kind: Literal["stream", "consumer", "key"]
    name: str
    action: Literal["created", "updated", "unchanged"]
    fields: Mapping[str, tuple[object, object]] = field(default_factory=dict)
    loss: str | None = None
    warning: str | None = None

    def line(self, *, is_plan: bool = False) -> str:
        """Return the change, or the planned change, as a line for a terminal."""
        changed = ", ".join(f"{name} {old} → {new}" for name, (old, new) in self.fields.items())
        action = f"to be {self.action}" if is_plan else self.action
        return (
            f"{self.kind} {self.name}: {action}"
            + (f" ({changed})" if changed else "")
            + (f"; {self.loss}" if self.loss else "")
            + (f"; {self.warning}" if self.warning else "")
        )


def differences(stored: Json, wanted: Json) -> dict[str, tuple[object, object]]:
    """Return the fields of `wanted` whose stored value differs: (stored, wanted).

    The order of subjects does not matter, nor do metadata of others: the server adds some.
    """
    keys = wanted.get("metadata") or {}
    common = {key: value for key, value in (stored.get("metadata") or {}).items() if key in keys}
    comparable = stored | {"metadata": common}
    return {
        name: (comparable.get(name), value)
        for name, value in wanted.items()
        if _plain(comparable.get(name)) != _plain(value)
    }


def with_filters(config: Json) -> Json:
    """Return a durable's configuration with its filters in one field."""
    subject = config.get("filter_subject")  # the server reports a single filter there
    return {**config, "filter_subjects": [subject]} if subject else config


def _plain(value: object) -> object:
    # The server omits false, zero and empty values.
    if isinstance(value, list):
        return sorted(value) or None
    return value or None


async def ensure_stream(connection: Connection, wanted: Json, replicas: int | None, *, is_plan: bool) -> Change:
    """Create or update a stream, and return the change; fields that `wanted` lacks stay unchanged.

    `is_plan`: change nothing, and return the change that would be made.
    """
    name: str = wanted["name"]
    if replicas is not None:
        wanted = wanted | {"num_replicas": replicas}
    info = await _stream_info(connection, name)
    if info is None:
        if is_plan:
            error = await _overlap(connection, wanted)
            if error.other is not None:
                raise error
        else:
            await _send_stream(connection, "CREATE", {"num_replicas": 1} | wanted)
        return Change("stream", name, "created")
    stored: Json = info["config"]
    changed = differences(stored, wanted)
    if not changed:
        return Change("stream", name, "unchanged")
    _check_changeable(name, changed)
    loss = loss_by(info, wanted)
    if not is_plan:
        metadata = (stored.get("metadata") or {}) | (wanted.get("metadata") or {})
        await _send_stream(connection, "UPDATE", stored | wanted | {"metadata": metadata})
    return Change("stream", name, "updated", changed, loss, _warning(stored, wanted))


def _warning(stored: Json, wanted: Json) -> str | None:
    """Return a warning about subjects that a stream captures no more."""
    kept = wanted.get("subjects")
    if kept is None:
        return None
    gone = [each for each in stored.get("subjects") or () if not any(covers(other, each) for other in kept)]
    if not gone:
        return None
    named = ", ".join(gone[:MAX_NAMED]) + (f" and {len(gone) - MAX_NAMED} more" if len(gone) > MAX_NAMED else "")
    return f"messages on {named} are lost from then on, unless another stream captures them; triggers of jobs on them hear nothing"


def loss_by(info: Json, wanted: Json) -> str | None:
    """Return in words which stored messages lower limits would remove; None: none.

    A stream that refuses new messages when it is full keeps the stored messages, unless they are too old or too many for their subject.
    """
    stored, state = info["config"], info["state"]
    losses = [
        f"{name} {limit} removes the oldest of {state[held]} {held}"
        for name, held in (("max_bytes", "bytes"), ("max_msgs", "messages"))
        if (limit := _lowered(name, stored, wanted)) and wanted.get("discard") == "old" and state[held] > limit
    ]
    if (limit := _lowered("max_msgs_per_subject", stored, wanted)) and state["messages"] > limit:
        losses.append(f"max_msgs_per_subject {limit} can remove some of {state['messages']} messages")
    if (limit := _lowered("max_age", stored, wanted)) and state["messages"]:
        age = datetime.fromisoformat(info["ts"]) - datetime.fromisoformat(state["first_ts"])
        if age.total_seconds() * _SECOND > limit:
            losses.append(f"max_age {limit // _SECOND} s removes messages, the oldest of {age.days} days")
    return "; ".join(losses) or None


def _lowered(name: str, stored: Json, wanted: Json) -> int | None:
    """Return the new limit if it is lower; zero and negative numbers are no limit."""
    before, after = int(stored.get(name) or 0), int(wanted.get(name) or 0)
    return after if after > 0 and (before <= 0 or after < before) else None


def unchangeable(changed: Mapping[str, tuple[object, object]]) -> dict[str, tuple[object, object]]:
    """Return the differences that the server refuses to remove."""
    return {
        field: (old, new) for field, (old, new) in changed.items() if field in _FIXED or (field in _LASTING and not new)
    }


def _check_changeable(name: str, changed: Mapping[str, tuple[object, object]]) -> None:
    if fixed := unchangeable(changed):
        lines = [f"{field} is {old} instead of {new}" for field, (old, new) in fixed.items()]
        # nats-server makes no backup of a stream in memory.
        restore = "" if "storage" in fixed else "restore a backup of the installation into an empty NATS, or "
        raise StreamUnchangeable(
            f"stream {name} cannot be changed: {'; '.join(lines)}: {restore}choose another root",
            stream=name,
            fields=fixed,
        )


async def _send_stream(connection: Connection, verb: str, config: Json) -> None:
    name: str = config["name"]
    try:
        await connection.manage(f"STREAM.{verb}.{name}", json.dumps(config).encode())
    except JetStreamError as error:
        if error.err_code == wire.SUBJECTS_OVERLAP:
            raise await _overlap(connection, config) from error
        action = "created" if verb == "CREATE" else "updated"
        advice = _RESERVED if error.err_code in wire.NO_STORAGE else ""
        text = f"stream {name} cannot be {action}: {error.description}{advice}"
        raise StreamRejected(text, stream=name, reason=error.description) from error


async def _stream_info(connection: Connection, name: str) -> Json | None:
    try:
        info: Json = await connection.manage(f"STREAM.INFO.{name}")
    except JetStreamError as error:
        if error.err_code == wire.STREAM_NOT_FOUND:
            return None
        text = f"stream {name} cannot be read: {error.description}"
        raise StreamRejected(text, stream=name, reason=error.description) from error
    return info


async def _overlap(connection: Connection, wanted: Json) -> SubjectsOverlap:
    """Return the error of a stream; `other`: a stream that captures its subjects."""
    for own_subject in wanted["subjects"]:
        reply = await connection.manage("STREAM.NAMES", json.dumps({"subject": own_subject}).encode())
        for other in reply["streams"] or ():
            if other == wanted["name"]:
                continue
            info = await _stream_info(connection, other)
            captured = info["config"].get("subjects", ()) if info else ()
            overlapping = ", ".join(subject for subject in captured if overlap(subject, own_subject))
            return SubjectsOverlap(
                f"stream {other} captures {overlapping}, which overlaps {own_subject} of {wanted['name']}: "
                "choose other prefixes, or a separate account for this installation",
                stream=wanted["name"],
                other=other,
                subject=own_subject,
            )
    return SubjectsOverlap(
        f"the subjects of stream {wanted['name']} overlap those of another stream: {', '.join(wanted['subjects'])}",
        stream=wanted["name"],
    )


async def ensure_consumer(
    connection: Connection, projections: NatsProjections, spec: DurableSpec, stream: str, wanted: Json, *, is_plan: bool
) -> Change:
    """Create or update a durable, and return the change, as `ensure_stream` does.

    A new durable starts after its cursor, or with all messages if it has none.
    """
    name = f"{stream}/{spec.name}"
    stored = await _stored_durable(connection, stream, spec.name, is_plan=is_plan)
    if stored is None and is_plan:
        return Change("consumer", name, "created")
    if stored is None:
        start = await _start(projections, spec)
        await _send_durable(connection, stream, "create", wanted | start | {"max_waiting": MAX_WAITING})
        return Change("consumer", name, "created")
    changed = differences(stored, wanted)
    if not changed:
        return Change("consumer", name, "unchanged")
    if not is_plan:
        rest = {field: value for field, value in stored.items() if field != "filter_subject"}
        await _send_durable(connection, stream, "update", rest | wanted)
    return Change("consumer", name, "updated", changed)


async def create_durable(connection: Connection, stream: str, config: Json, *, after: int) -> None:
    """Create a durable that starts after a sequence, or raise `ProvisionError`."""
    start = {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
    await _send_durable(connection, stream, "create", config | start)


async def _start(projections: NatsProjections, spec: DurableSpec) -> Json:
    for key in (cursor(spec.stream, spec.name), cursor(spec.stream)):
        if value := await projections.get(Bucket.CURSORS, key):
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(value[0]) + 1}
    return {"deliver_policy": "all"}


async def _stored_durable(connection: Connection, stream: str, name: str, *, is_plan: bool) -> Json | None:
    try:
        config: Json = (await connection.manage(f"CONSUMER.INFO.{stream}.{name}"))["config"]
    except JetStreamError as error:
        if error.err_code == wire.CONSUMER_NOT_FOUND or (is_plan and error.err_code == wire.STREAM_NOT_FOUND):
            return None
        if error.err_code == wire.STREAM_NOT_FOUND:
            raise ProvisionError(f"there is no stream {stream} on this NATS: run `tocsin init` first") from error
        raise ProvisionError(f"durable {name} of stream {stream} cannot be read: {error.description}") from error
    return with_filters(config)


async def _send_durable(connection: Connection, stream: str, action: str, config: Json) -> None:
    name: str = config["durable_name"]
    request = {"stream_name": stream, "config": {"name": name} | config, "action": action}
    try:
        await connection.manage(f"CONSUMER.CREATE.{stream}.{name}", json.dumps(request).encode())
    except JetStreamError as error:
        raise ProvisionError(f"durable {name} of stream {stream}: {error.description}") from error
