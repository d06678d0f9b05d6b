"""Messages to bodies, and bodies to messages."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, Final, Literal, TypeVar, cast, get_args, get_origin

import msgspec
from pydantic import BaseModel

from ..definition.fields import STORED
from .types import Convert, Wire, wire_type

T = TypeVar("T")

_MAX_DEPTH: Final = 190
"""Opening brackets in a body that msgspec may read.

pydantic refuses more than about 200 levels, and msgspec reads more. Each level takes two bytes at least.
"""
MAX_PARTS: Final = 4_096
"""The number of parts that are kept."""
MAX_PART_BYTES: Final = 4_096
"""The size of the largest part that is kept."""
_REFUSALS: Final = (msgspec.MsgspecError, ValueError, RecursionError)
_ABSENT: Final = object()
"""Stands for a field that a body leaves out, if its value would be converted; a default is not validated."""
_HARMLESS: Final = frozenset({"_open_to_newer_versions", "_lose_no_trigger", "_names_its_builtin"})
"""Validators that change nothing in a stored body of known fields; a body with unknown fields is left to pydantic."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """The part of pydantic's `ValidationInfo` that validators use."""

    context: Mapping[str, bool]


class _NotReadable(ValueError):
    """msgspec cannot decide about a class as pydantic does."""


def read(model: type[T], body: bytes) -> T | None:
    """Return the message in a body; None: pydantic must read it.

    A returned message equals pydantic's, read with `context=STORED`. `model`: a struct, or a model.
    """
    reader = _reader(cast("Any", model))
    if reader is None or (len(body) > 2 * _MAX_DEPTH and body.count(b"[") + body.count(b"{") > _MAX_DEPTH):
        return None
    decode, make = reader
    try:
        message: T = make(decode(body))
    except _REFUSALS:
        return None
    return message


@cache
def _reader(model: Any) -> tuple[Callable[[bytes], Any], Convert] | None:  # noqa: ANN401 - a class of either kind
    if issubclass(model, msgspec.Struct):
        return _decoder(model).decode, lambda decoded: decoded
    try:
        struct, make = _part(model)
    except _NotReadable:
        return None
    return msgspec.json.Decoder(struct, dec_hook=_model).decode, make


@cache
def _part(model: type[BaseModel]) -> tuple[type[msgspec.Struct], Convert]:
    """Return the struct that msgspec decodes, and the function that makes a model of it."""
    fields, conversions = [], []
    for name, field in model.model_fields.items():
        wire = wire_type(field.annotation, tuple(field.metadata), model.model_config, _nested)
        default = msgspec.NODEFAULT if field.is_required() else field.get_default(call_default_factory=True)
        if wire.convert is not None:
            conversions.append((name, wire.convert, default, wire.is_nullable))
            default = default if default is None or default is msgspec.NODEFAULT else _ABSENT
        fields.append((name, wire.type, msgspec.field(default=default, name=field.alias or name)))
    is_whole = not getattr(model, "IS_PARTIAL", False)
    struct = msgspec.defstruct(model.__name__, fields, kw_only=True, forbid_unknown_fields=is_whole, gc=False)
    return struct, _maker(model, tuple(conversions), _checks(model))


@lru_cache(MAX_PARTS)
def _kept_part(kind: Any, body: bytes) -> Any:  # noqa: ANN401 - a part of any class
    return _decoder(kind).decode(body)


def part(kind: Any, body: msgspec.Raw) -> Any:  # noqa: ANN401 - a part of any class
    """Return a part of a message; equal small bodies are read as one object."""
    content = bytes(body)
    return (_kept_part if len(content) <= MAX_PART_BYTES else _kept_part.__wrapped__)(kind, content)


def _nested(model: Any) -> Wire:  # noqa: ANN401 - a class of either kind
    return Wire(model) if issubclass(model, msgspec.Struct) else Wire(*_part(model))


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401 - a struct
    return msgspec.json.Decoder(kind, dec_hook=_model)


def _model(kind: Any, value: object) -> object:  # noqa: ANN401 - a class of models in a struct
    struct, make = _part(kind)
    return make(msgspec.convert(value, struct))


def _checks(model: type[BaseModel]) -> tuple[Callable[[Any], object], ...]:
    checks = list[Callable[[Any], object]]()
    for decorator in model.__pydantic_decorators__.model_validators.values():
        if decorator.cls_var_name in _HARMLESS:
            continue
        if decorator.info.mode != "after":
            raise _NotReadable
        check: Any = decorator.func
        takes_info = len(inspect.signature(check).parameters) > 1
        checks.append(_with_context(check) if takes_info else check)
    return tuple(checks)


def _with_context(check: Callable[[Any, _Stored], object]) -> Callable[[Any], object]:
    return lambda made: check(made, _Stored(STORED))


# The descriptors take half as long as `object.__setattr__`, which looks each of them up.
_put_values, _put_given, _put_extra, _put_private = (
    vars(BaseModel)[slot].__set__
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


def filled(model: type[T], values: dict[str, Any], fields: set[str]) -> T:
    """Return a model of validated values; `fields` count as given."""
    message = object.__new__(model)
    _put_values(message, values)
    _put_given(message, fields)
    _put_extra(message, None)
    _put_private(message, None)
    return message


def _maker(
    model: type[BaseModel],
    conversions: tuple[tuple[str, Convert, Any, bool], ...],
    checks: tuple[Callable[[Any], object], ...],
) -> Convert:
    """Return the function that makes a model of a struct, without validating it again."""
    values_of = msgspec.structs.asdict
    fields = set(model.model_fields)  # pydantic copies it before it changes it

    def make(decoded: msgspec.Struct) -> BaseModel:
        values = values_of(decoded)
        for name, convert, default, is_nullable in conversions:
            value = values[name]
            if value is _ABSENT:
                values[name] = {} if default == {} else default
            elif value is not None or not is_nullable:
                values[name] = convert(value)
        message = filled(model, values, fields)
        for check in checks:
            check(message)
        return message

    return make


_VERSION: Final = "v"


def written(message: object) -> bytes:
    """Return the body of a message: JSON without absent fields and defaults."""
    return _encode(message)


@cache
def _writer(model: Any) -> Callable[[Any], object]:  # noqa: ANN401 - a class of either kind
    fields = list[tuple[str, Any, Any]]()
    compared = list[tuple[str, object]]()
    for name, field in model.model_fields.items():
        is_constant = get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
        is_kept = field.is_required() or name == _VERSION or is_constant
        default = msgspec.NODEFAULT if is_kept else field.get_default(call_default_factory=True)
        if not _is_recognized(default):
            compared.append((name, default))
            default = None
        fields.append((name, Any, msgspec.field(default=default, name=field.alias or name)))
    struct = msgspec.defstruct(model.__name__, fields, kw_only=True, omit_defaults=True, gc=False)

    if not compared:
        return lambda message: struct(**message.__dict__)

    def make(message: BaseModel) -> msgspec.Struct:
        values = message.__dict__.copy()
        for name, default in compared:
            if values[name] == default:
                values[name] = None
        return struct(**values)

    return make


def _is_recognized(default: object) -> bool:
    """Return whether msgspec recognizes a value as the default.

    It compares by identity, and an empty container by its type.
    """
    return default is msgspec.NODEFAULT or default is None or isinstance(default, bool) or default in ((), {}, [])


@cache
def _part_writer(kind: type) -> Callable[[Any], object]:
    if issubclass(kind, datetime):  # a class derived from it, which other libraries have
        return lambda time: datetime.combine(time.date(), time.timetz())
    if not issubclass(kind, BaseModel):
        raise TypeError(f"a {kind.__qualname__} is no JSON value")
    return _writer(kind)


def _encoded_part(value: Any) -> object:  # noqa: ANN401 - what msgspec does not know
    return _part_writer(value.__class__)(value)


_encode: Final = msgspec.json.Encoder(enc_hook=_encoded_part).encode
