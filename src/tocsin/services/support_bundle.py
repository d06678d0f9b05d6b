"""An archive of an installation's state that another person may read.

It holds no input, result, text of a person or secret: of the events, only what names and counts things is written.
"""

import asyncio
import io
import json
import os
import platform
import tarfile
import types
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from ..archive.stream_reader import decoded
from ..domain.errors import TocsinError
from ..domain.events import Message, as_model
from ..domain.text import utc_text
from ..ports import StoredLog, StoredMessage
from ..subjects import STREAMS, DecodeError, Stream

FORMAT: Final = 1
PATIENCE_S: Final = 30.0
"""Seconds that a part may take; the others are written without it."""
MAX_EVENTS: Final = 2_000
"""The newest events of each stream."""
MAX_LOG_BYTES: Final = 2_097_152
"""The end of each file of log lines."""
PACKAGES: Final = ("nats-py", "faststream", "croniter", "pydantic", "redis", "opentelemetry-sdk", "tzdata", "msgspec")
"""Packages whose versions are written."""

_NAMES: Final = frozenset(
    {
        *("active_execution_id", "agent", "agent_id", "code", "dead_letter", "durable", "execution_id", "function"),
        *("holder", "id", "job", "lease", "name", "occurrence", "queue", "replay_of", "resource", "shard", "shard_id"),
        *("step", "stream", "timezone", "version", "worker"),
    }
)
"""Fields of events whose text names something of the installation."""
_NAMED: Final = frozenset(
    {
        *("agent", "dead-letter", "enqueue", "execution", "ledger", "lock", "namespaces"),
        *("ownership", "policy", "queue", "repair", "shards", "silences"),
    }
)
"""The first tokens of subjects that hold names and ids alone. Others may hold proofs of workers, or ids that programs chose."""
_PLAIN: Final = frozenset({bool, int, float, datetime, timedelta, types.NoneType})

Part = Callable[[], Awaitable[bytes]]
"""The content of one file of the bundle."""


class BundleExists(TocsinError):
    """There is a file of that name already."""

    code = "file-exists"

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} exists already: choose another file with `--out`.")


@dataclass(frozen=True, slots=True)
class Content:
    """One file of a bundle: `body`, or the reason why it is missing."""

    name: str
    body: bytes | None
    error: str | None = None


async def collect(parts: Mapping[str, Part], *, within: float = PATIENCE_S) -> list[Content]:
    """Return each part, or the reason why it cannot be had; `within`: seconds for each."""

    async def one(name: str, read: Part) -> Content:
        try:
            async with asyncio.timeout(within):
                return Content(name, await read())
        except TimeoutError:
            return Content(name, None, f"no answer within {within:g} seconds")
        except Exception as error:  # noqa: BLE001 - a bundle is made when things are broken
            return Content(name, None, f"{type(error).__name__}: {error}")

    return [await one(name, read) for name, read in parts.items()]


def write(path: Path, contents: list[Content], *, at: datetime, tocsin: str) -> None:
    """Write a compressed archive that only its owner may read.

    Raises:
        BundleExists: there is such a file.
    """
    about = {
        "format": FORMAT,
        "at": utc_text(at),
        "tocsin": tocsin,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _installed(name) for name in PACKAGES},
        "files": {
            content.name: {"bytes": len(content.body)} if content.body is not None else {"missing": content.error}
            for content in contents
        },
    }
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise BundleExists(path) from None
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        _add(archive, "bundle.json", json.dumps(about, indent=2).encode(), at)
        for content in contents:
            if content.body is not None:
                _add(archive, content.name, content.body, at)


def _add(archive: tarfile.TarFile, name: str, body: bytes, at: datetime) -> None:
    entry = tarfile.TarInfo(f"tocsin-support/{name}")
    entry.size, entry.mtime, entry.mode = len(body), int(at.timestamp()), 0o600
    archive.addfile(entry, io.BytesIO(body))


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


async def events(log: StoredLog, stream: Stream) -> bytes:
    """Return the newest events of a stream as JSON lines, without what users wrote."""
    extent = await log.extent(stream)
    after = max(extent.last - MAX_EVENTS, extent.first - 1, 0)
    lines = [
        json.dumps(public(message)).encode()
        async for portion in log.messages(stream, after=after, upto=extent.last)
        for message in portion
    ]
    return b"".join(line + b"\n" for line in lines)


def event_parts(log: StoredLog) -> dict[str, Part]:
    return {f"events/{stream.value.lower()}.jsonl": partial(events, log, stream) for stream in STREAMS}


def public(stored: StoredMessage) -> dict[str, Any]:
    """Return the place, the time and some fields of a stored message.

    The fields are those that hold no data of users.
    """
    place = {
        "sequence": stored.sequence,
        "time": utc_text(stored.time),
        "subject": _shown(stored.subject),
        "bytes": len(stored.body),
    }
    try:
        message = decoded(stored).message
    except DecodeError:
        return {**place, "unreadable": True}
    return {**place, **_public_fields(message)}


def _shown(subject: str) -> str:
    first, *others = subject.split(".")
    return subject if first in _NAMED else ".".join([first, *others[:1]])


def _public_fields(message: Message) -> dict[str, Any]:
    model = as_model(message)
    dumped, fields = model.model_dump(mode="json", exclude_none=True), type(model).model_fields
    return {
        name: value
        for name, value in dumped.items()
        if name in fields and (is_plain(fields[name].annotation) or (name in _NAMES and isinstance(value, str)))
    }


def is_plain(annotation: Any) -> bool:  # noqa: ANN401 - a type
    """Return whether values of a type are numbers, times or words of a fixed list."""
    if get_origin(annotation) is Literal or annotation in _PLAIN:
        return True
    if get_origin(annotation) is Annotated:
        return is_plain(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        return all(map(is_plain, get_args(annotation)))
    return isinstance(annotation, type) and issubclass(annotation, Enum)


async def end_of(path: Path) -> bytes:
    return await asyncio.to_thread(_end_of, path)


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MAX_LOG_BYTES))
        return file.read(MAX_LOG_BYTES)
