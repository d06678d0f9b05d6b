"""Versions of nats-server, and what needs which."""

from typing import Final, NamedTuple

from nats.aio.client import Client
from typing_extensions import override


class Version(NamedTuple):
    """One release."""

    major: int
    minor: int
    patch: int

    @classmethod
    def of(cls, client: Client) -> "Version":
        """That of the server that a client is, or was last, connected to."""
        found = client.connected_server_version
        return cls(found.major, found.minor, found.patch)

    @override
    def __str__(self) -> str:
        return ".".join(map(str, self))


OLDEST_SERVER: Final = Version(2, 12, 2)
"""The oldest nats-server that works, and that the tests run against.

Scheduled messages came with 2.12.0; but until 2.12.1 a stream hangs for ever when a schedule of it fires during a direct get.
"""
PURGES_SAFELY: Final = Version(2, 15, 1)
"""The oldest nats-server that archives. In those before, a purge of one kind of message moves every consumer that has a filter
for that kind behind it, over whatever its other filters match: a reader of several kinds never sees that."""
