"""Messages to bodies."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, Literal, get_args, get_origin

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .types import EncodedParts, is_shared

_VERSION: Final = "v"


def written(message: BaseModel) -> bytes:
    """Return the body of a message: JSON without absent fields and defaults.

    Discriminators (`v`, `type` and every other constant) are always written. A class that declares `WRITES_DEFAULTS`
    leaves out absent fields alone.
    """
    return _encode(_struct_of(message))


@cache
def _writer(model: type[BaseModel]) -> Callable[[BaseModel], object]:
    """Return the function that makes what msgspec encodes of a model."""
    fields = list[tuple[str, Any, Any]]()
    compared = list[tuple[str, object]]()
    writes_defaults = bool(getattr(model, "WRITES_DEFAULTS", False))
    for name, field in model.model_fields.items():
        default = msgspec.NODEFAULT if _is_always_written(name, field) else field.get_default(call_default_factory=True)
        if writes_defaults and default is not None:
            default = msgspec.NODEFAULT
        if not _is_recognized(default):
            compared.append((name, default))
            default = None
        fields.append((name, Any, msgspec.field(default=default, name=field.alias or name)))
    struct = msgspec.defstruct(model.__name__, fields, kw_only=True, omit_defaults=True, gc=False)

    def make(message: BaseModel) -> msgspec.Struct:
        values = message.__dict__.copy()
        for name, default in compared:
            if values[name] == default:
                values[name] = None
        return struct(**values)

    return make


def _is_always_written(name: str, field: FieldInfo) -> bool:
    constant = get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
    return field.is_required() or name == _VERSION or constant


def _is_recognized(default: object) -> bool:
    """Return whether msgspec recognizes a value as the default.

    It compares by identity, and an empty container by its type.
    """
    return default is msgspec.NODEFAULT or default is None or isinstance(default, bool) or default in ((), {}, [])


def _struct_of(message: BaseModel) -> object:
    return _writer(type(message))(message)


def _encoded_part(value: object) -> object:
    if not isinstance(value, BaseModel):
        raise TypeError
    return _PARTS(value) if is_shared(type(value)) else _struct_of(value)


_encode: Final = msgspec.json.Encoder(enc_hook=_encoded_part).encode
_PARTS: Final = EncodedParts(written)
