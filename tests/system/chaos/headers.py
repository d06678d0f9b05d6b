"""The headers of hostile messages: commands to the stream that stores a message."""

from collections.abc import Mapping, Sequence
from typing import Final

from tests.security.test_outside_accounts import HEADERS

STOPS_REPLICAS: Final = "Nats-Expected-Last-Msg-Id"
"""A wrong value of this header stops a stream of several replicas on nats-server 2.15.1 ("critical write error")."""


def headers_for(replicas: int) -> Sequence[Mapping[str, str]]:
    """Return the headers that no stream of so many replicas may be stopped or changed by."""
    return [headers for headers in HEADERS if replicas == 1 or STOPS_REPLICAS not in headers]
