"""What provisioning did, or could not do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ....domain.errors import TocsinError
from ..client.connection import Json


class ProvisionError(TocsinError):
    """The server cannot be brought into the state that is needed; the text says what to do."""

    code = "provisioning-failed"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing on the server, and what became of it; `fields` holds what changed, from old to new."""

    kind: Literal["stream", "consumer", "key"]
    name: str
    action: Literal["created", "updated", "unchanged"]
    fields: Mapping[str, tuple[object, object]] = field(default_factory=dict)

    def line(self) -> str:
        """One line for a terminal."""
        changed = ", ".join(f"{name} {old} → {new}" for name, (old, new) in self.fields.items())
        return f"{self.kind} {self.name}: {self.action}" + (f" ({changed})" if changed else "")


def differences(stored: Json, wanted: Json) -> dict[str, tuple[object, object]]:
    """The fields of `wanted` that are stored otherwise: (stored, wanted). The order of subjects does not matter."""
    return {
        name: (stored.get(name), value) for name, value in wanted.items() if _plain(stored.get(name)) != _plain(value)
    }


def with_filters(config: Json) -> Json:
    """A durable's configuration with its filters in one place: the server tells a single one in another field."""
    one = config.get("filter_subject")
    return {**config, "filter_subjects": [one]} if one else config


def _plain(value: object) -> object:
    # The server leaves out what is false, zero or empty.
    if isinstance(value, list):
        return sorted(value) or None
    return value or None
