"""The changes of a provisioning, and its error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ....domain.errors import TocsinError
from ..client.connection import Json


class ProvisionError(TocsinError):
    """The server cannot be brought into the needed state; the text says what to do."""

    code = "provisioning-failed"


@dataclass(frozen=True, slots=True)
class Change:
    """An object on the server and its change.

    `fields` maps changed fields to old and new values.
    """

    kind: Literal["stream", "consumer", "key"]
    name: str
    action: Literal["created", "updated", "unchanged"]
    fields: Mapping[str, tuple[object, object]] = field(default_factory=dict)

    def line(self) -> str:
        """Return the change as a line for a terminal."""
        changed = ", ".join(f"{name} {old} → {new}" for name, (old, new) in self.fields.items())
        return f"{self.kind} {self.name}: {self.action}" + (f" ({changed})" if changed else "")


def differences(stored: Json, wanted: Json) -> dict[str, tuple[object, object]]:
    """Return the fields of `wanted` whose stored value differs: (stored, wanted).

    The order of subjects does not matter.
    """
    return {
        name: (stored.get(name), value) for name, value in wanted.items() if _plain(stored.get(name)) != _plain(value)
    }


def with_filters(config: Json) -> Json:
    """Return a durable's configuration with its filters in one field.

    The server reports a single filter in another field.
    """
    one = config.get("filter_subject")
    return {**config, "filter_subjects": [one]} if one else config


def _plain(value: object) -> object:
    # The server omits false, zero and empty values.
    if isinstance(value, list):
        return sorted(value) or None
    return value or None
