"""The syntax tree of a compiled expression, read from its serialized form (`cel.expr.CheckedExpr`).

The library gives its tree away only as Protocol Buffers. The few fields that bounds need are read here, so that no
library for Protocol Buffers is required.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_MORE: Final = 0x80
"""The bit of a byte of a number after which another byte follows."""
_STRING_VALUE: Final = 6

_Fields: TypeAlias = dict[int, list[bytes]]
"""The fields of a message that have a length, by number: texts and messages."""


class Literal(msgspec.Struct, frozen=True):
    """A constant; `text` is None unless it is a text."""

    text: str | None = None


class Variable(msgspec.Struct, frozen=True):
    """A name: of an event's part, or of a macro's element."""

    name: str


class Select(msgspec.Struct, frozen=True):
    """A field of a value, such as `body.total`, or `has(body.total)`."""

    operand: "Node"


class Call(msgspec.Struct, frozen=True):
    """A function or an operator, with the value before its dot as the first argument."""

    function: str
    arguments: tuple["Node", ...] = ()


class Collection(msgspec.Struct, frozen=True):
    """A list or a map that is written out."""

    elements: tuple["Node", ...] = ()


class Macro(msgspec.Struct, frozen=True):
    """A loop over a list or the keys of a map, such as `exists`."""

    variable: str
    accumulator: str
    over: "Node"
    initial: "Node"
    body: tuple["Node", ...] = ()
    """What each element evaluates: the condition and the step."""
    result: "Node" = Literal()


Node: TypeAlias = Literal | Variable | Select | Call | Collection | Macro


def read(serialized: bytes) -> Node:
    """Return the tree of a serialized expression; raise ValueError for an unknown construct."""
    return _node(_one(_fields(_one(_fields(serialized), 2)), 4))


def _node(message: bytes) -> Node:
    fields = _fields(message)
    for number, make in _MAKERS.items():
        if number in fields:
            return make(_fields(fields[number][0]))
    raise ValueError("a construct that is not known")


def _literal(fields: _Fields) -> Node:
    return Literal(_text(fields, _STRING_VALUE) if _STRING_VALUE in fields else None)


def _call(fields: _Fields) -> Node:
    arguments = (*fields.get(1, ()), *fields.get(3, ()))
    return Call(_text(fields, 2), tuple(map(_node, arguments)))


def _map(fields: _Fields) -> Node:
    if 1 in fields:
        raise ValueError(f"a message of the type `{_text(fields, 1)}`")
    entries = (_fields(entry) for entry in fields.get(2, ()))
    return Collection(tuple(_node(_one(entry, number)) for entry in entries for number in (3, 4)))


def _macro(fields: _Fields) -> Node:
    over, initial, condition, step, result = (_node(_one(fields, number)) for number in (2, 4, 5, 6, 7))
    return Macro(_text(fields, 1), _text(fields, 3), over, initial, (condition, step), result)


_MAKERS: Final[Mapping[int, Callable[[_Fields], Node]]] = {
    3: _literal,
    4: lambda fields: Variable(_text(fields, 1)),
    5: lambda fields: Select(_node(_one(fields, 1))),
    6: _call,
    7: lambda fields: Collection(tuple(map(_node, fields.get(1, ())))),
    8: _map,
    9: _macro,
}
"""The maker of each kind of node, by its field in `cel.expr.Expr`."""


def _one(fields: _Fields, number: int) -> bytes:
    return fields[number][0] if number in fields else b""


def _text(fields: _Fields, number: int) -> str:
    return _one(fields, number).decode()


def _fields(message: bytes) -> _Fields:
    fields: _Fields = {}
    for number, value in _pairs(message):
        fields.setdefault(number, []).append(value)
    return fields


def _pairs(message: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        match kind:
            case _ if kind == _BYTES:
                length, position = _varint(message, position)
                yield number, message[position : position + length]
                position += length
            case _ if kind == _VARINT:
                _, position = _varint(message, position)
            case _ if kind in {_FIXED64, _FIXED32}:
                position += 8 if kind == _FIXED64 else 4
            case _:
                raise ValueError(f"a field of the wire type {kind}")


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & ~_MORE) << shift
        position, shift = position + 1, shift + 7
        if byte < _MORE:
            return value, position
