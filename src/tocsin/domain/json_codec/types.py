"""The type of a pydantic field in msgspec.

msgspec decides what both decide in the same way: types, choices, bounds and lengths. Everything else is left to
pydantic's validator of the single field, and remembered for short scalars, which repeat (names, times, durations).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin

import msgspec
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import AwareDatetime, BaseModel, ConfigDict, JsonValue, Strict, create_model
from pydantic.fields import FieldInfo

from ..definition.fields import STORED

Convert: TypeAlias = Callable[[Any], Any]
"""Turns a decoded value into a field's value; raises ValueError where pydantic refuses."""

_KEPT: Final = 4_096
"""The number of scalars that are remembered for each type."""
_MAX_SCALAR: Final = 128
"""The length of the longest text that is remembered."""
_BOUNDS: Final = {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt", MinLen: "min_length", MaxLen: "max_length"}
_SCALARS: Final = (str, int, float, bool)


@dataclass(frozen=True, slots=True)
class Wire:
    """The type that msgspec decodes, and the conversion that follows."""

    type: Any
    convert: Convert | None = None
    is_nullable: bool = False
    """True: None is a value of the field, and is not converted."""


def wire_type(
    annotation: Any,  # noqa: ANN401 - a type as annotated
    metadata: tuple[object, ...],
    config: ConfigDict,
    part: Callable[[Any], Wire],
) -> Wire:
    """Return the type of a field in a model of this configuration.

    `part` returns the type of a nested model.
    """
    while get_origin(annotation) is Annotated:
        annotation, *extra = get_args(annotation)
        metadata = (*extra, *metadata)
    metadata = tuple(_flat(metadata))
    if not all(type(bound) in _BOUNDS or isinstance(bound, Strict) for bound in metadata):
        return _by_pydantic(annotation, metadata, config)
    if annotation in _SCALARS:
        bounds = {
            _BOUNDS[type(bound)]: getattr(bound, _BOUNDS[type(bound)]) for bound in metadata if type(bound) in _BOUNDS
        }
        return Wire(Annotated[annotation, msgspec.Meta(**bounds)] if bounds else annotation)
    if metadata:
        return _by_pydantic(annotation, metadata, config)
    if annotation is JsonValue:
        return Wire(Any)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel | msgspec.Struct):
        return part(annotation)
    return _composed(annotation, config, part)


def _composed(annotation: Any, config: ConfigDict, part: Callable[[Any], Wire]) -> Wire:  # noqa: ANN401
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return Wire(annotation)
    if origin is dict and arguments == (str, JsonValue):
        return Wire(dict[str, Any])
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:  # noqa: PLR2004 - tuple[X, ...]
        element = wire_type(arguments[0], (), config, part)
        return Wire(tuple[element.type, ...], _each(element))  # type: ignore[name-defined]
    if origin in {Union, UnionType}:
        members = [wire_type(member, (), config, part) for member in arguments if member is not NoneType]
        if len(members) == len(arguments) - 1 == 1:
            return Wire(members[0].type | None, members[0].convert, is_nullable=True)
    return _by_pydantic(annotation, (), config)


def _by_pydantic(annotation: Any, metadata: tuple[object, ...], config: ConfigDict) -> Wire:  # noqa: ANN401
    """Return a type that pydantic validates after msgspec has decoded it."""
    # A model of one field, because nested types inherit the configuration of their model.
    kind: Any = Annotated[annotation, *metadata] if metadata else annotation
    single = create_model("Single", __config__=config, value=(kind, ...))

    def validate(value: object) -> object:
        return vars(single.model_validate({"value": value}, context=STORED))["value"]

    if annotation in {datetime, AwareDatetime}:
        return Wire(str, validate if metadata else _time_reader(validate))
    if annotation not in _SCALARS:
        return Wire(Any, validate)
    cached = lru_cache(_KEPT)(validate)
    if annotation is not str:
        return Wire(annotation, cached)
    return Wire(str, lambda text: cached(text) if len(text) <= _MAX_SCALAR else validate(text))


_UTC_TIME: Final = re.compile(r"[12]\d{3}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d{6})?Z", re.ASCII)
"""The form in which times are written here."""


def _time_reader(validate: Convert) -> Convert:
    """Return a reader of times that leaves every unusual form to pydantic.

    Most times occur in a few messages, so that remembering them would not pay.
    """
    is_usual, read = _UTC_TIME.fullmatch, datetime.fromisoformat
    return lambda text: read(text) if is_usual(text) else validate(text)


def _flat(metadata: tuple[object, ...]) -> list[object]:
    """Return the constraints of `Field(…)` inside `Annotated` beside all others."""
    return [inner for item in metadata for inner in (item.metadata if isinstance(item, FieldInfo) else (item,))]


def _each(element: Wire) -> Convert | None:
    convert = element.convert
    if convert is None:
        return None
    if element.is_nullable:
        return lambda values: tuple([None if value is None else convert(value) for value in values])
    return lambda values: tuple([convert(value) for value in values])
