"""Settings without their secrets, and the origin of each value."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from pydantic import JsonValue

from .root import FieldPath, Settings

DEFAULT: Final = "default"
"""Origin of a field that is not set."""

MASK: Final = "******"


def origins(settings: Settings) -> dict[str, str]:
    """Return the origin of each field: `default`, `command line`, a file or a variable."""
    return {".".join(path): settings._origins.get(path, DEFAULT) for path, _ in _dumped(settings)}  # noqa: SLF001


def shown(settings: Settings) -> dict[str, JsonValue]:
    """Return each field's value for display: readable durations, masked secrets."""
    return {".".join(path): _masked(path, value) for path, value in _dumped(settings)}


def _dumped(settings: Settings) -> Iterator[tuple[FieldPath, JsonValue]]:
    def leaves(values: Mapping[str, JsonValue], path: FieldPath) -> Iterator[tuple[FieldPath, JsonValue]]:
        for name, value in values.items():
            if isinstance(value, dict) and value:
                yield from leaves(value, (*path, name))
            else:
                yield (*path, name), value

    return leaves(settings.model_dump(mode="json"), ())


def _masked(path: FieldPath, value: JsonValue) -> JsonValue:
    if not isinstance(value, str):
        return value
    if is_secret(path):
        return MASK
    return ",".join(without_password(url) for url in value.split(",")) if path[-1].endswith("url") else value


def without_password(url: str) -> str:
    """Mask the password or token of a URL."""
    parts = urlsplit(url)
    if parts.password is None and not (parts.username and parts.scheme in {"nats", "tls", "ws", "wss"}):
        return url
    # In a URL of NATS, a user without a password is a token.
    hidden = f"{parts.username}:{MASK}" if parts.password is not None else MASK
    return url.replace(parts.netloc, f"{hidden}@{parts.netloc.rpartition('@')[2]}", 1)


def is_secret(path: Sequence[str]) -> bool:
    """Return whether a field holds a secret."""
    return path[-1:] in {("password",), ("token",)}
