"""Facts that a nats-server reports: its version, and its health over the HTTP monitoring endpoint."""

import http.client
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from nats.aio.client import Client
from pydantic_core import from_json
from typing_extensions import override

_TIMEOUT_S: Final = 2.0


class Version(NamedTuple):
    """A release of nats-server."""

    major: int
    minor: int
    patch: int

    @classmethod
    def of(cls, client: Client) -> "Version":
        """Return the version of the server that a client is, or was last, connected to."""
        version = client.connected_server_version
        return cls(version.major, version.minor, version.patch)

    @override
    def __str__(self) -> str:
        return ".".join(map(str, self))


OLDEST_SERVER: Final = Version(2, 12, 2)
"""The oldest nats-server that works. The tests run against it too.

Scheduled messages exist since 2.12.0. Before 2.12.1 a stream hangs if one of its schedules fires during a direct get.
"""
PURGES_SAFELY: Final = Version(2, 15, 1)
"""The oldest nats-server on which the archiver may delete messages.

In older versions, a purge of one subject moves every consumer with a filter for that subject past the purged messages, and
past unread messages that match its other filters. A reader of several subjects then misses them.
"""


def is_healthy(url: str) -> bool:
    """Return whether a server knows its cluster's leader and its streams are up to date."""
    return _get(url, "/healthz") is not None


def connected_peers(url: str) -> int | None:
    """Count the other nodes that a cluster's leader is connected to.

    None if this server does not lead or answer.
    """
    body = _get(url, "/jsz")
    cluster: dict[str, Any] = from_json(body).get("meta_cluster", {}) if body else {}
    replicas = cluster.get("replicas") or ()
    if "leader" not in cluster or cluster["leader"] in {replica["name"] for replica in replicas}:
        return None
    return sum(1 for replica in replicas if replica["current"] and not replica.get("offline"))


def server_variables(url: str) -> dict[str, Any] | None:
    """Return a server's configuration and state (`/varz`); None if it does not answer."""
    body = _get(url, "/varz")
    return from_json(body) if body else None


def _get(url: str, path: str) -> bytes | None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.read() if response.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
