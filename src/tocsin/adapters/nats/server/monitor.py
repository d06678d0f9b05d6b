"""What a nats-server says of itself over HTTP (its monitoring endpoint): whether it has caught up, and whom it sees."""

import http.client
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic_core import from_json

_TIMEOUT: Final = 2.0
_OK: Final = 200


def is_healthy(url: str) -> bool:
    """Whether a server knows the leader of its cluster, and all that it keeps is up to date."""
    return _get(url, "/healthz") is not None


def peers_in_sight(url: str) -> int | None:
    """How many other nodes the leader of a cluster sees; None: this server does not lead, or does not answer."""
    body = _get(url, "/jsz")
    cluster: dict[str, Any] = from_json(body).get("meta_cluster", {}) if body else {}
    replicas = cluster.get("replicas") or ()
    if "leader" not in cluster or cluster["leader"] in {replica["name"] for replica in replicas}:
        return None
    return len([replica for replica in replicas if replica["current"] and not replica.get("offline")])


def describes_itself(url: str) -> dict[str, Any] | None:
    """A server's configuration and state (`/varz`); None: it does not answer."""
    body = _get(url, "/varz")
    return from_json(body) if body else None


def _get(url: str, path: str) -> bytes | None:
    """The answer of a server that is well; None: any other, or none."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read() if answer.status == _OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
