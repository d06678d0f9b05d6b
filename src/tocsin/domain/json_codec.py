"""Read and write the JSON bodies of messages with msgspec.

The class of a message is its only declaration: a struct of msgspec, of which a pydantic model is derived (`OwnMessage`), or a pydantic
model (`CheckedMessage`, and definitions). Models are read by pydantic, and so is a body that a struct does not accept: pydantic
decides and explains. So a struct may refuse too much, but never accept too much. One exception is harmless: of a key that stands
twice, the last value counts, and the first is not read, so that an integer too long for pydantic may stand there.
"""

from datetime import datetime
from functools import cache, lru_cache
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
from pydantic import BaseModel

from .definition.fields import STORED

T = TypeVar("T")

_MAX_DEPTH: Final = 190
"""Opening brackets in a body that msgspec may read.

pydantic refuses more than about 200 levels, and msgspec reads more. Each level takes two bytes at least.
"""
MAX_PARTS: Final = 4_096
"""The number of parts that are kept."""
MAX_PART_BYTES: Final = 4_096
"""The size of the largest part that is kept."""


def read(kind: type[T], body: bytes) -> T | None:
    """Return the struct in a body; None: pydantic must read it.

    A returned message equals pydantic's, read with `context=STORED`.
    """
    may_be_deep = len(body) > 2 * _MAX_DEPTH and body.count(b"[") + body.count(b"{") > _MAX_DEPTH
    if may_be_deep or not issubclass(kind, msgspec.Struct):
        return None
    try:
        message: T = _decoder(kind).decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return message


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401 - a struct
    return msgspec.json.Decoder(kind, dec_hook=_model)


def _model(kind: Any, value: object) -> object:  # noqa: ANN401 - a model in a struct
    return kind.__pydantic_validator__.validate_python(value, context=STORED)


@lru_cache(MAX_PARTS)
def _kept_part(kind: Any, body: bytes) -> Any:  # noqa: ANN401 - a part of any class
    return _decoder(kind).decode(body)


def part(kind: Any, body: msgspec.Raw) -> Any:  # noqa: ANN401 - a part of any class
    """Return a part of a message; equal small bodies are read as one object."""
    content = bytes(body)
    return (_kept_part if len(content) <= MAX_PART_BYTES else _kept_part.__wrapped__)(kind, content)


def _plain(value: Any) -> object:  # noqa: ANN401 - what msgspec does not know
    if isinstance(value, datetime):  # of a class derived from it, which other libraries have
        return datetime.combine(value.date(), value.timetz())
    fields = _fields(value.__class__)
    values = value.__dict__
    return {
        shown: part
        for name, shown, default in fields
        if (part := values[name]) is not None and (default is msgspec.NODEFAULT or part != default)
    }


@cache
def _fields(kind: Any) -> tuple[tuple[str, str, Any], ...]:  # noqa: ANN401 - a class of any value
    """Return the name, the name in a body, and the default of each field."""
    if not issubclass(kind, BaseModel):
        raise TypeError(f"a {kind.__qualname__} is no JSON value")
    kept, fields = msgspec.NODEFAULT, list[tuple[str, str, Any]]()
    for name, field in kind.model_fields.items():
        is_constant = get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
        default = kept if field.is_required() or is_constant else field.get_default(call_default_factory=True)
        fields.append((name, field.alias or name, default))
    return tuple(fields)


written: Final = msgspec.json.Encoder(enc_hook=_plain).encode
"""Return the body of a message: JSON without absent fields and defaults."""
