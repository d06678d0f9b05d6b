"""Fields of a manifest; a value of the wrong type is a finding."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...domain.definition import show
from ...domain.duration import MAX_DURATION_S
from .drafts import Draft

MAX_REPORTED: Final = 30
"""Findings about fields of one part of a manifest."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One part of a manifest."""

    draft: Draft
    path: str

    def lose(self, name: str, value: object) -> None:
        """Report a field without an equivalent."""
        self.draft.add("field-not-supported", f"`{self.path}.{name}` is {show(value)}, which has no equivalent")

    def items(self, fields: Mapping[str, Any], name: str) -> list[Any]:
        """Return a list; an empty list if it is absent.

        A value of another type is a finding.
        """
        value = fields.get(name)
        if value is not None and not isinstance(value, list):
            self.lose(name, value)
        return list_of(value)

    def mappings(self, fields: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
        """Return the mappings of a list; each other item is a finding."""
        items = self.items(fields, name)
        wrong = [(number, item) for number, item in enumerate(items) if not isinstance(item, Mapping)]
        for number, item in wrong[:MAX_REPORTED]:
            self.lose(f"{name}[{number}]", item)
        if len(wrong) > MAX_REPORTED:
            self.draft.add(
                "field-not-supported",
                f"`{self.path}.{name}` has {len(wrong) - MAX_REPORTED:,} more items that are no mappings",
            )
        return [mapping_of(item) for item in items if isinstance(item, Mapping)]

    def seconds(self, fields: Mapping[str, Any], name: str) -> int | None:
        """Return a number of seconds; None: it is absent, or has no equivalent."""
        value = fields.get(name)
        if value is None:
            return None
        number = whole_number(value)
        if number is None or not 0 <= number <= MAX_DURATION_S:
            self.lose(name, value)
            return None
        return number


def mapping_of(value: object) -> Mapping[str, Any]:
    """Return a mapping with keys that are texts; an empty mapping for any other value."""
    if not isinstance(value, Mapping):
        return {}
    return {key: inner for key, inner in value.items() if isinstance(key, str)}


def list_of(value: object) -> list[Any]:
    """Return a list; an empty list for any other value."""
    return value if isinstance(value, list) else []


def text_of(value: object) -> str:
    """Return the text of a scalar; an empty text for any other value.

    A value with aliases can be small as YAML and huge as text, so only scalars have one.
    """
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return show(value)
        case _:
            return ""


def whole_number(value: object) -> int | None:
    """Return a whole number that is not negative; None: any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def report_rest(
    draft: Draft, path: str, fields: Mapping[str, Any], known: Collection[str], *, instead: str = "it has no equivalent"
) -> None:
    """Report the fields that nothing reads, and what to do instead."""
    rest = [name for name in fields if name not in known and fields[name] not in (None, {}, [])]
    for name in rest[:MAX_REPORTED]:
        draft.add("field-not-supported", f"`{path}.{name[:100]}` is {show(fields[name])}: {instead}")
    if len(rest) > MAX_REPORTED:
        draft.add("field-not-supported", f"`{path}` has {len(rest) - MAX_REPORTED:,} more fields: {instead}")
