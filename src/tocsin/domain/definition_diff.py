"""In which fields two definitions of a job differ."""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from .definition import JobDefinition


@dataclass(frozen=True, slots=True)
class DefinitionDiff:
    """One field that an update changes: dotted where it is nested, `dag.<step>.<field>` for steps; None: absent."""

    field: str
    before: JsonValue
    after: JsonValue


def changed_fields(before: JobDefinition, after: JobDefinition) -> Iterator[DefinitionDiff]:
    """The fields in which two definitions of a job differ."""
    yield from _differing("", _comparable(before), _comparable(after))


def _comparable(definition: JobDefinition) -> JsonValue:
    """A definition as nested mappings; its steps by name, so that inserting one does not change all behind it."""
    dumped = definition.model_dump(mode="json", exclude_none=True)
    return {**dumped, "dag": {step.name: step.model_dump(mode="json", exclude_none=True) for step in definition.dag}}


def _differing(field: str, before: JsonValue, after: JsonValue) -> Iterator[DefinitionDiff]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            yield from _differing(f"{field}.{name}" if field else name, before.get(name), after.get(name))
    elif before != after:
        yield DefinitionDiff(field, before, after)
