"""Display of database URLs."""

from urllib.parse import urlsplit


def shown(url: str) -> str:
    """Return a URL without user and password."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme.partition('+')[0]}://{parts.hostname or ''}{port}{parts.path}"
