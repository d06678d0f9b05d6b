"""Values in a Python file, read from its syntax tree without execution."""

import ast
import operator
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from textwrap import dedent
from types import MappingProxyType
from typing import Any, Final

from ...domain.definition import DefinitionError, DefinitionProblem, shorten

MAX_LENGTH: Final = 65_536
"""The length of a text or a list that arithmetic makes, and the number of parts of a static value."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that is computed at run time."""

    text: str
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """The call of a function that this module does not know.

    Attributes:
        name: the last part of the function's name.
        full: the whole name, dotted.
        text: the source.
    """

    name: str
    full: str
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    text: str
    line: int
    node: ast.Call = field(repr=False, kw_only=True)


def parse(text: str) -> ast.Module:
    r"""Return the syntax tree of a Python file.

    Python warns of escapes such as `"\\d"`, which say nothing about a schedule.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text)
    except SyntaxError as error:
        reason = f"not Python: {error.msg}"
        raise DefinitionError(
            DefinitionProblem(reason, source=f":{error.lineno or 1}", code="invalid-python")
        ) from None
    except (RecursionError, MemoryError):
        raise too_deep() from None
    except ValueError as error:
        raise DefinitionError(DefinitionProblem(f"not Python: {error}", code="invalid-python")) from None


def too_deep() -> DefinitionError:
    """Return the error for a file that nests too deeply."""
    return DefinitionError(DefinitionProblem("nested too deep", code="nested-too-deep"))


def dotted(node: ast.expr) -> str:
    """Return a dotted name; an empty text for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else ""


def last_name(node: ast.AST) -> str:
    """Return the last part of the name of a function, also of a called one."""
    name = node.func if isinstance(node, ast.Call) else node
    return dotted(name).rpartition(".")[2] if isinstance(name, ast.expr) else ""


def is_main(statement: ast.AST) -> bool:
    """Return whether a block runs only if the file is the program."""
    return isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test)


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of an assignment, each with its value."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value


def given_as(node: ast.AST, names: Container[str]) -> Iterator[ast.expr]:
    """Yield the values that keywords or keys of a mapping give to settings."""
    match node:
        case ast.keyword(arg=str() as name, value=value) if name in names:
            yield value
        case ast.Dict(keys=keys, values=members):
            parts = zip(keys, members, strict=True)
            yield from (value for key, value in parts if isinstance(key, ast.Constant) and key.value in names)


def constant_keys(node: ast.Dict) -> dict[Any, ast.expr]:
    """Return the values of a mapping by its constant keys."""
    parts = zip(node.keys, node.values, strict=True)
    return {key.value: value for key, value in parts if isinstance(key, ast.Constant)}


def setting_name(node: ast.expr) -> str:
    """Return the last part of a name, or the key of `conf["beat_schedule"]`."""
    match node:
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str() as name)):
            return name
        case _:
            return dotted(node).rpartition(".")[2]


def source_of(node: ast.AST) -> str:
    try:
        return shorten(" ".join(ast.unparse(node).split()), 120)
    except (RecursionError, ValueError):
        return "an expression"


def is_static(value: Any) -> bool:  # noqa: ANN401
    """Return whether a value is plain data, without parts that are computed at run time."""
    stack, count = [value], 0
    while stack:
        current = stack.pop()
        count += 1
        if count > MAX_LENGTH:
            return False
        match current:
            case dict():
                stack.extend(current.values())
            case list() | tuple():
                stack.extend(current)
            case None | bool() | int() | float() | str():
                pass
            case _:
                return False
    return True


def shown(value: Any) -> str:  # noqa: ANN401
    """Return a short text for a value, for a finding."""
    match value:
        case Unknown() | Call():
            return f"`{value.text}`"
        case dict() | list():
            return f"`{shorten(repr(value), 80)}`" if is_static(value) and len(value) < 50 else "a collection"  # noqa: PLR2004
        case _:
            return f"`{shorten(str(value), 120)}`"


MAX_BITS: Final = 64
_MAX_CHAIN: Final = 200
_MAX_RANGE: Final = 1_000

_BINARY: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDERS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_Number = int | float
_CHANGES: Final = frozenset(
    {
        *("append", "extend", "insert", "remove", "pop", "clear", "update", "setdefault", "add", "discard", "sort"),
        *("reverse",),
    }
)
"""Methods that change a value after its assignment."""


class Values:
    """The values of the expressions of a file."""

    def __init__(
        self, assigned: Mapping[str, ast.expr | None], bound: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self._assigned = assigned
        self._bound = bound
        self._known: dict[int, Any] = {}
        self._chain = 0

    @classmethod
    def in_module(cls, module: ast.Module) -> "Values":
        """Return the values of a file: names that are assigned once have one."""
        assigned: dict[str, ast.expr | None] = {}
        for node in ast.walk(module):
            for name, value in _bindings(node):
                assigned[name] = None if name in assigned else value
        for name, value in _constants(module):
            assigned[name] = None if name in assigned else value
        return cls(assigned)

    def expression(self, node: ast.expr) -> ast.expr:
        """Return the expression that a name is assigned, or the expression itself."""
        for _ in range(_MAX_CHAIN):
            if not isinstance(node, ast.Name) or (assigned := self._assigned.get(node.id)) is None:
                break
            node = assigned
        return node

    def bound(self, names: Mapping[str, Any]) -> "Values":
        """Return the values inside a loop, with the values of its variables."""
        return Values(self._assigned, {**self._bound, **names})

    def of(self, node: ast.expr | None) -> Any:  # noqa: ANN401 - a value of the file
        if node is None:
            return None
        if id(node) not in self._known:
            self._chain += 1
            self._known[id(node)] = Unknown(source_of(node), node.lineno)  # its own value, if it refers to itself
            if self._chain < _MAX_CHAIN:
                self._known[id(node)] = self._value(node)
            self._chain -= 1
        return self._known[id(node)]

    def _value(self, node: ast.expr) -> Any:  # noqa: ANN401 - a case for each kind of expression
        unknown = Unknown(source_of(node), node.lineno)
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str()):
                return node.value
            case ast.List() | ast.Tuple() | ast.Set():
                return (
                    unknown if any(isinstance(each, ast.Starred) for each in node.elts) else [*map(self.of, node.elts)]
                )
            case ast.Dict():
                return self._dict(node)
            case ast.Name() if node.id in self._bound:
                return self._bound[node.id]
            case ast.Name():
                value = self._assigned.get(node.id)
                return unknown if value is None else self.of(value)
            case ast.expr():
                return self._computed(node, unknown)

    def _computed(self, node: ast.expr, unknown: Unknown) -> Any:  # noqa: ANN401, PLR0911 - a case for each kind of expression
        match node:
            case ast.Compare(left=left, ops=[order], comparators=[right]):
                return _compared(order, self.of(left), self.of(right), unknown)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.of(operand)
                return -value if isinstance(value, int | float | timedelta) else unknown
            case ast.BinOp():
                return _combined(node, self.of(node.left), self.of(node.right))
            case ast.JoinedStr():
                return self._text(node)
            case ast.Subscript():
                value, key = self.of(node.value), self.of(node.slice)
                try:
                    return value[key] if isinstance(value, dict | list) else unknown
                except (KeyError, IndexError, TypeError):
                    return unknown
            case ast.Call():
                return self._call(node)
            case ast.Attribute() if (constant := self._assigned.get(dotted(node))) is not None:
                return self.of(constant)
            case _:
                return unknown

    def _dict(self, node: ast.Dict) -> Any:  # noqa: ANN401
        values: dict[Any, Any] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            key, value = self.of(key_node), self.of(value_node)
            if key_node is None and isinstance(value, dict):
                values |= value
            elif isinstance(key, str | int) and key_node is not None:
                values[key] = value
            else:
                return Unknown(source_of(node), node.lineno)
        return values

    def _text(self, node: ast.JoinedStr) -> Any:  # noqa: ANN401
        parts = [self.of(each.value if isinstance(each, ast.FormattedValue) else each) for each in node.values]
        has_format = any(isinstance(each, ast.FormattedValue) and each.format_spec for each in node.values)
        if has_format or not all(isinstance(part, str | int | float) for part in parts):
            return Unknown(source_of(node), node.lineno)
        text = "".join(map(str, parts))
        return text if len(text) <= MAX_LENGTH else Unknown(source_of(node), node.lineno)

    def _call(self, node: ast.Call) -> Any:  # noqa: ANN401
        full = dotted(node.func) or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        name = full.rpartition(".")[2]
        unknown = Unknown(source_of(node), node.lineno)
        if any(isinstance(each, ast.Starred) for each in node.args) or not name:
            return unknown
        args = tuple(map(self.of, node.args))
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.of(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, dict):
                keywords |= {str(key): each for key, each in value.items()}
            else:
                keywords["**"] = value
        call = Call(name, full, args, keywords, unknown.text, node.lineno, node=node)
        return _evaluated(call)


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:  # noqa: C901 - a case for each kind of binding
    """Yield the names that a node binds, each with its expression if it is known."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, value
                elif isinstance(target, ast.Subscript):
                    yield dotted(target.value), None
                elif isinstance(target, ast.Attribute):
                    yield dotted(target), None
                else:
                    names = (each for each in ast.walk(target) if isinstance(each, ast.Name))
                    yield from ((each.id, None) for each in names if isinstance(each.ctx, ast.Store))
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            yield name, value
        case ast.AugAssign(target=target) | ast.For(target=target) | ast.comprehension(target=target):
            yield from ((each.id, None) for each in ast.walk(target) if isinstance(each, ast.Name))
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in _CHANGES:
            yield name, None
        case ast.NamedExpr(target=target):
            yield target.id, None
        case ast.arg(arg=name):
            yield name, None


def _constants(module: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield `CLASS.NAME` for each assignment in a plain class of the file, with its expression.

    A class with bases or decorators may compute its attributes.
    """
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            bases = {*map(dotted, node.bases)} - {"object"}
            is_plain = not (bases or node.keywords or node.decorator_list)
            for each in ast.walk(node):
                for name, value in _bindings(each):
                    yield f"{node.name}.{name}", value if is_plain and each in node.body else None


def _evaluated(call: Call) -> Any:  # noqa: ANN401, PLR0911 - a case for each function
    """Return the value of a harmless function; for others the call itself."""
    match call:
        case Call(name="timedelta") | Call(full="duration" | "pendulum.duration"):
            names = ("days", "seconds", "microseconds", "milliseconds", "minutes", "hours", "weeks")
            values = dict(zip(names, call.args, strict=False)) | dict(call.keywords)
            if all(isinstance(value, _Number) and not isinstance(value, bool) for value in values.values()):
                try:
                    return timedelta(**values)
                except (OverflowError, TypeError, ValueError):
                    pass
            return Unknown(call.text, call.line)
        case Call(full="dict", args=()) if "**" not in call.keywords:
            return dict(call.keywords)
        case Call(full="str", args=(str() | int() | float() as value,)) if not isinstance(value, bool):
            return str(value)
        case Call(full="int", args=(int() as value,)):
            return int(value)
        case Call(name="dedent", args=(str() as text,)):
            return dedent(text)
        case _:
            return _listed(call)


def _listed(call: Call) -> Any:  # noqa: ANN401
    """Return the list of a call that makes one; for others the call itself."""
    match call:
        case Call(full="list" | "tuple" | "set" | "frozenset", args=(list() as values,)):
            return values
        case Call(full="enumerate", args=(list() as values,)):
            return [[number, value] for number, value in enumerate(values)]
        case Call(full="range", args=args) if args and all(isinstance(arg, int) for arg in args):
            try:
                numbers = range(*args)
            except (TypeError, ValueError):
                return Unknown(call.text, call.line)
            return [*numbers] if len(numbers) <= _MAX_RANGE else Unknown(call.text, call.line)
        case _:
            return call


def _combined(node: ast.BinOp, left: Any, right: Any) -> Any:  # noqa: ANN401
    unknown = Unknown(source_of(node), node.lineno)
    numbers = (int, float, timedelta)
    is_joining = isinstance(node.op, ast.Add) and (
        (isinstance(left, str) and isinstance(right, str)) or (isinstance(left, list) and isinstance(right, list))
    )
    if isinstance(node.op, ast.BitOr) and isinstance(left, dict) and isinstance(right, dict):
        return {**left, **right}
    if is_joining:
        return left + right if len(left) + len(right) <= MAX_LENGTH else unknown
    if type(node.op) not in _BINARY or not (isinstance(left, numbers) and isinstance(right, numbers)):
        return unknown
    try:
        value = _BINARY[type(node.op)](left, right)
    except (ArithmeticError, TypeError):
        return unknown
    return unknown if isinstance(value, int) and value.bit_length() > MAX_BITS else value


def _compared(order: ast.cmpop, left: Any, right: Any, unknown: Unknown) -> Any:  # noqa: ANN401
    are_numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if type(order) in _ORDERS and (are_numbers or (isinstance(left, str) and isinstance(right, str))):
        return _ORDERS[type(order)](left, right)
    return unknown
