"""Checks of inputs: of definitions, steps and triggers."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from pydantic import JsonValue

from ..secret_reference import SecretReferenceError, find_references, reference
from . import schema_check
from .errors import DefinitionError, DefinitionProblem, excess, shorten, show
from .fields import MAX_INPUT_BYTES, json_problem, size_of

_COMPLETED_BY_KEYS: Final = frozenset(
    {
        *("required", "minProperties", "dependentRequired", "dependencies", "dependentSchemas"),
        *("anyOf", "oneOf", "if", "not"),
    }
)
"""Rules on an input as a whole that more keys may satisfy."""
_TYPE: Final = frozenset({"type"})
_LITERALS: Final = frozenset({"const", "enum"})
_SENTENCE: Final = 200  # characters; schema validators quote whole values


def input_problems(
    input: Mapping[str, JsonValue],  # noqa: A002 - the name of the field
    args: Sequence[JsonValue],
    schema: dict[str, JsonValue] | None = None,
    *,
    is_partial: bool = False,
) -> Iterator[DefinitionProblem]:
    """Yield the problems of an input and its positional arguments.

    `schema` applies to the input alone. `is_partial`: a trigger may add keys, so keys may be missing.
    """
    for field, value in (("input", input), ("args", args)):
        if reason := json_problem(value):
            yield DefinitionProblem(reason, field=field, code="not-plain-json")
            return
        try:
            find_references(value if isinstance(value, dict) else list(value))
        except SecretReferenceError as error:
            yield DefinitionProblem(str(error), field=field, code="malformed-secret-reference")
    size = sum(size_of(value) for value in (input, args) if value)
    yield from excess(size, "bytes of JSON", MAX_INPUT_BYTES, "input", "keep large data in a store and refer to it")
    if schema is not None:
        yield from _schema_problems(schema, input, is_partial=is_partial)


def reference_problems(written: JsonValue) -> Iterator[DefinitionProblem]:
    """Yield a problem if a trigger's input or args refer to a secret."""
    if names := find_references(written):
        quoted = ", ".join(f"`{reference(name)}`" for name in names)
        reason = f"it refers to {quoted}, and only a definition may refer to a secret; write $${{ for a literal ${{"
        yield DefinitionProblem(reason, field="input", code="secret-reference-not-allowed")


def check_replay_input(job: str, input: Mapping[str, JsonValue], written: Mapping[str, JsonValue]) -> None:  # noqa: A002 - the name of the field
    """Check the input of a replay of a job that is not registered.

    `written`: the keys of it that the requester wrote.

    Raises:
        DefinitionError: it is not plain JSON, or too large, or what the requester wrote refers to secrets.
    """
    problems = tuple(input_problems(input, ())) or tuple(reference_problems({**written}))
    if problems:
        raise DefinitionError(*(replace(problem, job=f"job `{job}`") for problem in problems))


def _schema_problems(
    schema: dict[str, JsonValue], instance: Mapping[str, JsonValue], *, is_partial: bool
) -> Iterator[DefinitionProblem]:
    import jsonschema  # noqa: PLC0415 - few jobs have a schema, and it takes long to import
    import referencing.exceptions  # noqa: PLC0415

    number, most = schema_check.number_of_values(schema), schema_check.MAX_VALUES
    if too_large := excess(number, "values at all levels", most, "input_schema", "make it smaller"):
        yield from too_large
        return
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        text = json.dumps(schema)
        _check_schema(kind, text)
        if outside := [reference for reference in _schema_references(schema) if not reference.startswith("#")]:
            # A lookup would let the author of a job choose what the scheduler fetches.
            field, value = "input_schema.$ref", show(outside[0])
            reason = "a schema may refer to its own parts only"
            yield DefinitionProblem(reason, field=field, value=value, code="invalid-json-schema")
            return
        for error in schema_check.errors_of(kind, text, instance):
            if is_partial and not error.absolute_path and error.validator in _COMPLETED_BY_KEYS:
                continue
            for cause in _causes(error, schema):
                path = ".".join(("input", *(str(part) for part in cause.absolute_path)))
                yield DefinitionProblem(shorten(cause.message, _SENTENCE), field=path, code="schema-mismatch")
    except jsonschema.SchemaError as error:
        path = ".".join(("input_schema", *(str(part) for part in error.absolute_path)))
        reason = f"no valid JSON Schema: {shorten(error.message, _SENTENCE)}"
        yield DefinitionProblem(reason, field=path, code="invalid-json-schema")
    except RecursionError:
        reason = "no usable JSON Schema: its references form a circle"
        yield DefinitionProblem(reason, field="input_schema", code="invalid-json-schema")
    except (referencing.exceptions.Unresolvable, schema_check.UnusableSchema) as error:
        reason = f"no usable JSON Schema: {shorten(str(error), _SENTENCE)}"
        yield DefinitionProblem(reason, field="input_schema", code="invalid-json-schema")


def _causes(error: Any, schema: dict[str, JsonValue]) -> Iterator[Any]:  # noqa: ANN401 - classes that jsonschema makes
    """Yield the errors of the alternative of `schema` that a value is meant for.

    A value of another type is meant for another alternative. If several remain, those of other literals and with another tag are left
    out, too. If several still remain, or none, yield the error itself.
    """
    alternatives: dict[int, list[Any]] = {}
    for cause in error.context if error.validator in {"anyOf", "oneOf"} else ():
        if cause.relative_schema_path:  # the error of the alternative `false` has none, and no value is meant for it
            alternatives.setdefault(cause.relative_schema_path[0], []).append(cause)
    meant = {index: causes for index, causes in alternatives.items() if not _fails(causes, _TYPE)}
    if len(meant) > 1:
        meant = {index: causes for index, causes in meant.items() if not _fails(causes, _LITERALS)}
    if len(meant) > 1:
        tags = frozenset.intersection(*(_literal_keys(error.validator_value[index], schema) for index in meant))
        meant = {
            index: causes for index, causes in meant.items() if not any(_fails(causes, _LITERALS, tag) for tag in tags)
        }
    if len(meant) != 1:
        yield error
        return
    for cause in next(iter(meant.values())):
        yield from _causes(cause, schema)


def _fails(causes: Iterable[Any], keywords: frozenset[str], *path: str) -> bool:
    return any(cause.validator in keywords and tuple(cause.relative_path) == path for cause in causes)


def _literal_keys(alternative: JsonValue, schema: dict[str, JsonValue]) -> frozenset[str]:
    """Return the keys whose values an alternative restricts to literals.

    A key that each alternative restricts is their tag. In only some of them, it is a choice like any other.
    """
    match alternative:
        case {"$ref": str(reference)}:
            alternative = schema
            for name in reference.removeprefix("#/").split("/"):
                alternative = alternative.get(name) if isinstance(alternative, dict) else None
    match alternative:
        case {"properties": dict(properties)}:
            return frozenset(
                key for key, part in properties.items() if isinstance(part, dict) and _LITERALS & part.keys()
            )
    return frozenset()


@lru_cache(maxsize=64)
def _check_schema(kind: Any, text: str) -> None:  # noqa: ANN401 - classes that jsonschema makes
    """Check a schema, which takes much longer than to check most inputs by it."""
    kind.check_schema(json.loads(text))


def _schema_references(schema: JsonValue | Mapping[str, JsonValue]) -> Iterator[str]:
    match schema:
        case Mapping():
            for key, value in schema.items():
                if key in {"$ref", "$dynamicRef", "$recursiveRef"} and isinstance(value, str):
                    yield value
                yield from _schema_references(value)
        case list():
            for value in schema:
                yield from _schema_references(value)
