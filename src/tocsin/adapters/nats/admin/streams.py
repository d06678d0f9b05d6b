"""Creation and update of one stream."""

import json
from collections.abc import Mapping
from typing import Final

from ..client import wire
from ..client.connection import Connection, JetStreamError, Json
from .provision_report import Change, ProvisionError, differences

_FIXED: Final = frozenset({"storage", "retention"})
"""The server cannot change these fields of an existing stream."""


async def ensure_stream(connection: Connection, wanted: Json, replicas: int | None) -> Change:
    """Create or update a stream, and return the change; fields that `wanted` lacks stay unchanged.

    Raises:
        ProvisionError: the stream cannot be created or changed.
    """
    name: str = wanted["name"]
    if replicas is not None:
        wanted = wanted | {"num_replicas": replicas}
    stored = await _stored(connection, name)
    if stored is None:
        await _send(connection, "CREATE", {"num_replicas": 1} | wanted)
        return Change("stream", name, "created")
    changed = differences(stored, wanted)
    if not changed:
        return Change("stream", name, "unchanged")
    _check_changeable(name, changed)
    await _send(connection, "UPDATE", stored | wanted)
    return Change("stream", name, "updated", changed)


def _check_changeable(name: str, changed: Mapping[str, tuple[object, object]]) -> None:
    fixed = [f"{field} is {old} instead of {new}" for field, (old, new) in changed.items() if field in _FIXED]
    if fixed:
        raise ProvisionError(
            f"stream {name} cannot be changed: {'; '.join(fixed)}. "
            "Move its messages into a stream of the right kind, or choose another root."
        )


async def _send(connection: Connection, verb: str, config: Json) -> None:
    name: str = config["name"]
    try:
        await connection.manage(f"STREAM.{verb}.{name}", json.dumps(config).encode())
    except JetStreamError as error:
        if error.err_code == wire.SUBJECTS_OVERLAP:
            raise ProvisionError(await _overlap(connection, config)) from error
        what = "created" if verb == "CREATE" else "updated"
        raise ProvisionError(f"stream {name} cannot be {what}: {error.description}") from error


async def _stored(connection: Connection, name: str) -> Json | None:
    try:
        config: Json = (await connection.manage(f"STREAM.INFO.{name}"))["config"]
    except JetStreamError as error:
        if error.err_code == wire.STREAM_NOT_FOUND:
            return None
        raise ProvisionError(f"stream {name} cannot be read: {error.description}") from error
    return config


async def _overlap(connection: Connection, wanted: Json) -> str:
    """Describe the stream that captures some of our subjects."""
    for ours in wanted["subjects"]:
        reply = await connection.manage("STREAM.NAMES", json.dumps({"subject": ours}).encode())
        for other in reply["streams"] or ():
            if other == wanted["name"]:
                continue
            captured = ((await _stored(connection, other)) or {}).get("subjects", ())
            theirs = ", ".join(subject for subject in captured if overlaps(subject, ours))
            return (
                f"stream {other} captures {theirs}, which overlaps {ours} of {wanted['name']}: "
                "choose other prefixes, or a separate account for this installation"
            )
    return f"the subjects of stream {wanted['name']} overlap those of another stream: {', '.join(wanted['subjects'])}"


def overlaps(one: str, other: str) -> bool:
    """Return whether two filters match a common subject."""
    ours, theirs = one.split("."), other.split(".")
    for a, b in zip(ours, theirs, strict=False):
        if ">" in {a, b}:
            return True
        if a != b and "*" not in {a, b}:
            return False
    return len(ours) == len(theirs)
