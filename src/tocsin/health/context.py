"""What every check has at hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pydantic import JsonValue

from ..adapters.nats.admin.inspection import Inspection
from ..adapters.nats.client.connection import Json
from ..bootstrap import Installation
from .status import Status


@dataclass(frozen=True, slots=True)
class CheckContext:
    """An installation, what was seen of it, and what its servers say of themselves."""

    installation: Installation
    inspection: Inspection
    status: Status
    now: datetime
    """By the log's clock, where it could be asked."""
    monitors: dict[str, Json | None] = field(default_factory=dict)
    """By the URL of each monitoring endpoint that was named: what the server says there (`/varz`); None: nothing."""

    def age(self, at: datetime) -> timedelta:
        """How long ago something was, by the log's clock."""
        return self.now - at


def told(names: Sequence[str]) -> list[JsonValue]:
    """Names as details of a finding."""
    return list(names)
