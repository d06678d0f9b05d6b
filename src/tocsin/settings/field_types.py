"""The types of settings by path, also inside mappings and sections with a `type`."""

from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr

from .root import FieldPath, Settings

TAG: Final = "type"
"""The field that decides on the other fields of its section."""
_KEY: Final = "[key]"
"""The last part of a place, if a name in a mapping is wrong."""


def is_secret(path: Sequence[str]) -> bool:
    """Return whether a field holds a secret: also a section or a mapping with one."""
    return any(map(_has_secret, _types_at(path)))


def may_be_null(path: Sequence[str]) -> bool:
    """Return whether a field may be null."""
    return NoneType in _types_at(path)


def tags_at(path: Sequence[str]) -> Sequence[str]:
    """Return the values of `type` that a section may have."""
    return tuple(tag for kind in _types_at(path) for tag in _tags_of(kind))


def resolve(place: Sequence[object]) -> tuple[FieldPath, Mapping[str, Any]]:
    """Return the path of a place that pydantic names, and the fields beside it.

    Where a `type` decides on the fields, pydantic inserts it into the place.
    """
    kinds: tuple[Any, ...] = (Settings,)
    siblings: Mapping[str, Any] = {}
    path = list[str]()
    for part in map(str, place):
        if part == _KEY:
            break
        if tagged := tuple(kind for kind in kinds if part in _tags_of(kind)):
            kinds = tagged
            continue
        siblings = _fields_in(kinds)
        kinds = tuple(_inside(kinds, part))
        path.append(part)
    return tuple(path), siblings


def _types_at(path: Sequence[str]) -> tuple[Any, ...]:
    kinds: tuple[Any, ...] = (Settings,)
    for name in path:
        kinds = tuple(_inside(kinds, name))
    return kinds


def _inside(kinds: Sequence[Any], name: str) -> Iterator[Any]:
    for kind in kinds:
        if get_origin(kind) is dict:
            yield from _alternatives(get_args(kind)[1])
        elif (field := _fields_in((kind,)).get(name)) is not None:
            yield from _alternatives(field.annotation)


def _alternatives(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 - a type
    """Yield the types that a value may have."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _alternatives(arguments[0])
    elif origin in {Union, UnionType}:
        for argument in arguments:
            yield from _alternatives(argument)
    else:
        yield annotation


def _fields_in(kinds: Sequence[Any]) -> Mapping[str, Any]:
    sections = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return {name: field for section in sections for name, field in section.model_fields.items()}


def _tags_of(kind: Any) -> Sequence[str]:  # noqa: ANN401 - a type
    field = _fields_in((kind,)).get(TAG)
    return () if field is None else get_args(field.annotation)


def _has_secret(kind: Any) -> bool:  # noqa: ANN401 - a type
    if get_origin(kind) is dict:
        return any(map(_has_secret, _alternatives(get_args(kind)[1])))
    fields = _fields_in((kind,)).values()
    return kind is SecretStr or any(_has_secret(inner) for each in fields for inner in _alternatives(each.annotation))
