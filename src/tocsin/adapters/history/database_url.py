"""The URL of a database as it may be shown."""

from urllib.parse import urlsplit


def shown(url: str) -> str:
    """A URL without user and password."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme.partition('+')[0]}://{parts.hostname or ''}{port}{parts.path}"
