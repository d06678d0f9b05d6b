"""The URL of a database, as errors may show it."""

from urllib.parse import urlsplit


def without_credentials(url: str) -> str:
    """Return a database URL without user and password."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme.partition('+')[0]}://{parts.hostname or ''}{port}{parts.path}"
