"""Checks of an input by a JSON Schema, with bounded work.

An author of jobs chooses the schema, and the API and the planner check by it. Python's regular expressions may take exponential time,
and so may references that double with each level. So regular expressions run in linear time, by the engine of pydantic, and every
keyword that is applied counts.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from functools import cache, lru_cache, partial
from typing import Annotated, Any, Final, NamedTuple, NoReturn, TypeAlias, cast

from pydantic import JsonValue, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import SchemaError

from ..cel.regex import UnknownSize, program_size
from ..text import same_text
from .builtin_work import has_reference
from .errors import show
from .fields import size_of

MAX_WORK: Final = 100_000
"""Units of work of one check, each a few microseconds. To apply a keyword takes one."""
MAX_PROGRAM: Final = 100_000
"""The largest number of instructions of all regular expressions of a schema."""
MAX_VALUES: Final = 5_000
"""Values in a schema. The library takes a fifth of a millisecond to check whether one is valid."""
_REFERENCE: Final = 5
_EXPRESSION: Final = 100
"""Units to compile a regular expression."""
_STEP: Final = 1_000
"""Instructions of a regular expression, times characters, for one unit."""
_COMPILED_CLASS: Final = 500.0
_SEARCHED_CLASS: Final = 30.0
"""Instructions of a class of Unicode: in the program, and those that a character may reach."""
_CHARACTERS: Final = 16
"""Characters of a text, or items of a keyword, for one unit."""
_VALUES: Final = 4
"""Values at all levels, for one unit."""
_CLASS: Final = re.compile(r"\\[wWdDsS]")
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_COMPARISONS: Final = frozenset({"const", "enum"})
_DATA: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are no schemas."""
_NAMES: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords whose values have schemas under names that the author chooses."""
_UNBOUNDED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})

_UUID: Final = r"(?i)^(?:urn:uuid:|\{)?[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\}?$"
FORMATS: Final[Mapping[str, Any]] = {
    "date": date,
    "date-time": datetime,
    "time": time,
    "duration": timedelta,
    "uuid": Annotated[str, StringConstraints(pattern=_UUID)],
}
"""The formats of texts that the annotations of a function make, with the types that they are of."""

Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Iterable[Any] | None]
"""A function of jsonschema: the errors of an instance by the value of a keyword."""


class UnusableSchema(Exception):
    """A schema cannot be applied with bounded work."""


class _Search(NamedTuple):
    """A search by a regular expression in linear time."""

    adapter: TypeAdapter[str]
    size: float
    """Instructions that a character may need."""


@dataclass(slots=True)
class _Budget:
    """The work that is left, and the regular expressions that are compiled."""

    _bytes: int
    """The size of the schema."""
    _left: int = MAX_WORK
    _instructions: float = 0.0
    _searches: dict[str, _Search] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)
    """The number of values in each part of the schema that is compared, by identity."""

    def copy(self) -> "_Budget":
        return replace(self, _searches=dict(self._searches), _numbers={})

    def use(self, units: int) -> None:
        """Use units of work; raise UnusableSchema if none are left."""
        self._left -= units
        if self._left < 0:
            raise UnusableSchema(
                f"to check an input by it takes more than {MAX_WORK:,} steps: make the schema or the input smaller"
            )

    def use_comparison(self, data: JsonValue) -> None:
        """Use the work to compare a value with data of the schema."""
        if id(data) not in self._numbers:
            self._numbers[id(data)] = number_of_values(data)
        self.use(self._numbers[id(data)] // _VALUES)

    def use_reference(self, reference: str) -> None:
        """Use the work of a reference; for an anchor, the whole schema is searched."""
        is_pointer = reference == "#" or reference.startswith("#/")
        self.use(_REFERENCE + (0 if is_pointer else self._bytes // _CHARACTERS))

    def compile(self, pattern: str) -> None:
        """Compile a regular expression once; raise UnusableSchema if it needs too much work."""
        if pattern in self._searches:
            return
        self.use(_EXPRESSION)
        size = _size(pattern, _COMPILED_CLASS)
        self._instructions += size
        if self._instructions > MAX_PROGRAM:
            raise UnusableSchema(f"with {show(pattern)}, its regular expressions are too large: repeat less")
        self._searches[pattern] = _search_of(pattern)

    def is_found(self, pattern: str, text: str) -> bool:
        """Return whether a text has what a regular expression of the schema describes."""
        self.compile(pattern)  # a reference may lead to a part that `_check` took for data
        search = self._searches[pattern]
        self.use(1 + int(len(text) * search.size) // _STEP)
        try:
            search.adapter.validate_python(text)
        except ValidationError:
            return False
        return True


_budget: ContextVar[_Budget] = ContextVar("budget")


class _Prepared(NamedTuple):
    """A schema, and what is the same for all checks by it."""

    schema: Mapping[str, JsonValue]
    registry: Any
    budget: _Budget
    """The work that is left to each check."""


def errors_of(
    kind: Any,  # noqa: ANN401 - classes that jsonschema makes
    schema: str,
    instance: Mapping[str, JsonValue],
) -> Iterator[Any]:
    """Yield the errors of an instance by a valid schema, which is JSON text.

    `kind`: the validator of the draft of the schema. The formats in `FORMATS` are checked, and no others.

    Raises:
        UnusableSchema: it takes too much work, or has a keyword or regular expression whose work is not bounded.
    """
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - few jobs have a schema, and it takes long to import

    try:
        prepared = _prepared(kind, schema)
        token = _budget.set(prepared.budget.copy())
        try:
            validator = _bounded(kind)(prepared.schema, registry=prepared.registry, format_checker=_format_checker())
            errors = list(validator.iter_errors(instance))
        finally:
            _budget.reset(token)
    except Unresolvable:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # The schema is valid, but a reference may lead to a part that is no schema.
        raise UnusableSchema(f"a reference leads to a part that is no schema ({error})") from error
    yield from errors


@cache
def _format_checker() -> Any:  # noqa: ANN401
    """Return the check of formats, which accepts what a worker accepts.

    A text that refers to a secret is of every format: the worker resolves it first. Whether it may refer to it is checked apart.
    """
    import jsonschema  # noqa: PLC0415

    checker = jsonschema.FormatChecker(formats=())
    for name, type_ in FORMATS.items():
        checker.checks(name, raises=ValidationError)(partial(_is_of_format, TypeAdapter[Any](type_)))
    return checker


def _is_of_format(adapter: TypeAdapter[Any], value: object) -> bool:
    if isinstance(value, str) and not has_reference(value):
        adapter.validate_python(value)
    return True


@lru_cache(maxsize=64)
def _prepared(kind: Any, text: str) -> _Prepared:  # noqa: ANN401
    """Return a schema with its budget, and without its `$schema`.

    By a part that names its kind, the library would check with its own validator.
    """
    schema = {name: value for name, value in json.loads(text).items() if name != "$schema"}
    budget = _Budget(size_of(schema))
    _check(schema, budget)
    return _Prepared(schema, _registry_of(kind, schema), budget)


def _registry_of(kind: Any, schema: Mapping[str, JsonValue]) -> Any:  # noqa: ANN401
    """Return a registry of ids and anchors, without which each reference would search."""
    import referencing.jsonschema  # noqa: PLC0415

    specification = referencing.jsonschema.specification_with(kind.ID_OF(kind.META_SCHEMA))
    root = specification.create_resource(schema)
    return referencing.Registry().with_resource(root.id() or "", root).crawl()


def _check(schema: Mapping[str, JsonValue], budget: _Budget) -> None:
    """Raise `UnusableSchema` for parts whose work cannot be counted."""
    waiting: list[tuple[JsonValue | Mapping[str, JsonValue], bool]] = [(schema, False)]
    has_ids = has_dynamic_references = False
    while waiting:
        part, has_names = waiting.pop()
        if isinstance(part, list):
            waiting += ((item, False) for item in part)
        elif isinstance(part, Mapping):
            has_ids = has_ids or (part is not schema and isinstance(part.get("$id"), str))
            has_dynamic_references = has_dynamic_references or isinstance(part.get("$dynamicRef"), str)
            for name, value in part.items():
                if name in _UNBOUNDED and not has_names:
                    _refuse(name)
                _check_keyword(name, value, budget)
                if name not in _DATA:
                    waiting.append((value, name in _NAMES and not has_names))
    if has_ids and has_dynamic_references:  # each would search the whole schema for each id
        raise UnusableSchema("a schema with `$dynamicRef` may have one `$id`, that of the whole")


def _refuse(name: str) -> NoReturn:
    raise UnusableSchema(f"`{name}` is not supported: write `additionalProperties` or `items`")


def _check_keyword(name: str, value: JsonValue, budget: _Budget) -> None:
    if name == "$schema" and isinstance(value, str):
        raise UnusableSchema("only the whole schema may name its `$schema`")
    if name == "pattern" and isinstance(value, str):
        budget.compile(value)
    if name == "patternProperties" and isinstance(value, dict):
        for pattern in value:
            budget.compile(pattern)


@lru_cache(maxsize=16)
def _bounded(kind: Any) -> Any:  # noqa: ANN401
    """Return the validator with keywords that count, and that search in linear time."""
    import jsonschema  # noqa: PLC0415

    keywords = {name: _OWN.get(name, function) for name, function in kind.VALIDATORS.items()}
    counted = {name: _counted(name, cast("Keyword", function)) for name, function in keywords.items()}
    bounded = jsonschema.validators.extend(kind, counted)  # type: ignore[no-untyped-call]
    bounded.evolve = _counted_part(bounded.evolve)
    return bounded


def _counted_part(evolve: Callable[..., Any]) -> Callable[..., Any]:

    def counted(validator: Any, **changes: Any) -> Any:  # noqa: ANN401
        part = changes.get("schema")
        if isinstance(part, dict):
            if "$schema" in part:  # `_check` took it for data, or a reference leads to names of properties
                raise UnusableSchema("only the whole schema may name its `$schema`")
            _budget.get().use(1 + len(part) // _CHARACTERS)
        return evolve(validator, **changes)

    return counted


def _counted(name: str, function: Keyword) -> Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:  # noqa: ANN401
        budget = _budget.get()
        budget.use(1 + (len(value) // _CHARACTERS if isinstance(value, str | list | dict) else 0))
        if isinstance(instance, list | dict):
            budget.use(len(instance) // _CHARACTERS)
        if name in _REFERENCES:
            budget.use_reference(value)
        elif name in _COMPARISONS:
            budget.use_comparison(value)
        for error in function(validator, value, instance, schema) or ():
            budget.use(len(error.message) // _CHARACTERS)
            yield error

    return counted


def _search_of(pattern: str) -> _Search:
    try:
        adapter = TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])
    except SchemaError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UnusableSchema(f"the regular expression {show(pattern)} cannot be used: {lines[-1]}") from error
    return _Search(adapter, _size(pattern, _SEARCHED_CLASS))


def _size(pattern: str, of_class: float) -> float:
    try:
        return program_size(_CLASS.sub(r"\\pL", pattern), of_property=of_class)
    except UnknownSize as error:
        raise UnusableSchema(str(error)) from error


def _pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401
    if validator.is_type(instance, "string") and not _budget.get().is_found(pattern, instance):
        yield _error(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for name, value in instance.items():
            if _budget.get().is_found(pattern, name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:  # noqa: ANN401
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [
        name
        for name in instance
        if name not in known and not any(_budget.get().is_found(pattern, name) for pattern in patterns)
    ]
    if validator.is_type(allowed, "object"):
        for name in extra:
            yield from validator.descend(instance[name], allowed, path=name)
    elif not allowed and extra:
        names = ", ".join(map(repr, sorted(extra)))
        verb = "was" if len(extra) == 1 else "were"
        yield _error(f"Additional properties are not allowed ({names} {verb} unexpected)")


def _unique_items(validator: Any, is_wanted: Any, instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401
    if is_wanted and validator.is_type(instance, "array"):
        _budget.get().use(number_of_values(instance) // _VALUES)
        if len(set(map(same_text, instance))) < len(instance):
            yield _error(f"{instance!r} has non-unique elements")


def number_of_values(value: JsonValue) -> int:
    number, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        number += 1
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
    return number


def _error(message: str) -> Any:  # noqa: ANN401
    import jsonschema  # noqa: PLC0415

    return jsonschema.ValidationError(message)


def _unevaluated(name: str) -> Keyword:
    """Return a keyword that is refused where `_check` took its name for a property."""
    return lambda *_: _refuse(name)


_OWN: Final[Mapping[str, Keyword]] = {
    **{name: _unevaluated(name) for name in _UNBOUNDED},
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
"""Keywords whose functions in the library search by `re`, or compare each item with each other."""
