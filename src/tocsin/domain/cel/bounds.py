"""The bound on the work of an expression, found before it runs.

Each node of the syntax tree is charged for the largest event, in nanoseconds of a slow machine. A macro repeats its body at most
`MAX_ITERATIONS` times, because the library stops all macros of an evaluation together there. A macro that compares its elements
reads each once; one that reads the whole event for each element exceeds the limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .regex import program_size
from .syntax_tree import Call, Collection, Literal, Macro, Node, Select, Variable

MAX_EVENT_BYTES: Final = 65_536
"""Bytes of the body of an event to which expressions are applied, as of the input of a job."""
MAX_ITERATIONS: Final = 10_000
"""Elements that all macros of an evaluation visit together; the library fails an evaluation that exceeds it."""
MAX_WORK_NS: Final = 250_000_000.0
"""The most work that an expression may cost for the worst event, in nanoseconds."""

_VISIT_NS: Final = 200.0
"""The cost of a node."""
_COPY_NS: Final = 1.0
"""The cost of a byte that is copied, counted or converted."""
_COMPARE_NS: Final = 500.0
"""The cost of a byte in a comparison, which may be one of nested values of few bytes each."""
_ORDER_NS: Final = 0.1
"""The cost of a byte in a comparison of order, which only scalars have."""
_REGEX_NS: Final = 100.0
"""The cost of a byte in a search for a regular expression, without backtracking."""
_INSTRUCTION_NS: Final = 2.5
"""The cost of a byte for each instruction of a large regular expression."""
_COMPILE_NS: Final = 500.0
"""The cost of an instruction when a regular expression is compiled, which the library does at each visit."""
_COMPILED_PROPERTY: Final = 2_500.0
"""Instructions of a class of Unicode before equal parts are joined."""
_SEARCHED_PROPERTY: Final = 20.0
_SCALAR: Final = 32.0
"""Bytes of a number, a truth value or a time."""
_UNLIKELY_NEEDLE: Final = 1_000.0
"""By how much a search for a text of the event is dearer than one for a literal."""

_COMPARED: Final = frozenset({"_==_", "_!=_", "@in"})
_ORDERED: Final = frozenset({"_<_", "_<=_", "_>_", "_>=_"})
_COPIED: Final = frozenset({"_+_", "size", "string", "int", "uint", "double", "timestamp", "duration"})
_PREFIXES: Final = frozenset({"startsWith", "endsWith"})
_CHEAP: Final = frozenset(
    {
        *("_&&_", "_||_", "!_", "-_", "_-_", "_*_", "_/_", "_%_", "_[_]", "_?_:_", "@not_strictly_false", "dyn"),
        *("getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMilliseconds"),
        *("getMinutes", "getMonth", "getSeconds"),
    }
)
_PART_OF_FIRST: Final = frozenset({"_[_]", "dyn"})
_MAX_REGEX: Final = 200


class TooMuchWork(ValueError):
    """An expression may cost more than is allowed, or uses what is not allowed."""


@dataclass(frozen=True, slots=True)
class _Size:
    """The bytes of a value: at most `peak` at a visit, `total` over all."""

    peak: float
    total: float

    def __add__(self, other: "_Size") -> "_Size":
        return _Size(self.peak + other.peak, self.total + other.total)


@dataclass(frozen=True, slots=True)
class _Bound:
    """A variable of a macro: the bytes that it iterates over, and its depth."""

    peak: float
    depth: int


class _Estimate:
    """The work of one expression, added up over its nodes."""

    def __init__(self) -> None:
        self.work = 0.0
        self.patterns: list[str] = []

    def size(self, node: Node, names: Mapping[str, _Bound], depth: int = 0) -> _Size:
        """Charge a node and all below it; return the size of its value."""
        self.work += _VISIT_NS * _visits(depth)
        match node:
            case Literal(text):
                return _same(_SCALAR if text is None else 4.0 * len(text), depth)
            case Variable(name):
                return _variable(names.get(name), depth)
            case Select(operand):
                return self.size(operand, names, depth)
            case Collection(elements):
                return sum((self.size(each, names, depth) for each in elements), _same(_SCALAR, depth))
            case Call():
                return self._call(node, [self.size(each, names, depth) for each in node.arguments], depth)
            case Macro():
                return self._macro(node, names, depth)

    def _macro(self, macro: Macro, names: Mapping[str, _Bound], depth: int) -> _Size:
        if not isinstance(macro.initial, Literal):
            raise TooMuchWork(
                "`map` and `filter` build lists, which costs too much: use `exists`, `all` or `exists_one`"
            )
        over = self.size(macro.over, names, depth)
        inner = {**names, macro.variable: _Bound(over.peak, depth + 1), macro.accumulator: _Bound(_SCALAR, 0)}
        for part in macro.body:
            self.size(part, inner, depth + 1)
        self.size(macro.result, inner, depth)
        return _same(_SCALAR, depth)

    def _call(self, call: Call, sizes: list[_Size], depth: int) -> _Size:
        name, scalar = call.function, _same(_SCALAR, depth)
        if name in _COMPARED:
            bytes_ = sizes[1].total if name == "@in" else min(size.total for size in sizes)
            self.work += _COMPARE_NS * bytes_
        elif name in _ORDERED:
            self.work += _ORDER_NS * min(size.total for size in sizes)
        elif name in _COPIED:
            self.work += _COPY_NS * sum(size.total for size in sizes)
            return sum(sizes, scalar) if name in {"_+_", "string"} else scalar
        elif name in _PREFIXES:
            self.work += _COPY_NS * min(size.total for size in sizes)
        elif name == "contains":
            needle = 1.0 if isinstance(call.arguments[1], Literal) else _UNLIKELY_NEEDLE
            self.work += _COPY_NS * needle * sizes[0].total
        elif name == "matches":
            pattern = _check_regex(call.arguments[1])
            self.patterns.append(pattern)
            self.work += _COMPILE_NS * program_size(pattern, of_property=_COMPILED_PROPERTY) * _visits(depth)
            searched = _INSTRUCTION_NS * program_size(pattern, of_property=_SEARCHED_PROPERTY)
            self.work += max(_REGEX_NS, searched) * sizes[0].total
        elif name not in _CHEAP:
            raise TooMuchWork(f"the function `{name}` is not available here")
        if name in _PART_OF_FIRST:
            return sizes[0]
        return sum(sizes[1:], scalar) if name == "_?_:_" else scalar


def check(root: Node) -> tuple[str, ...]:
    """Check what an expression may cost for any event, and return its regular expressions.

    Raises:
        TooMuchWork: it can, or it uses what is not available.
    """
    estimate = _Estimate()
    result = estimate.size(root, {})
    work = estimate.work + _COMPARE_NS * result.total / 2
    if work > MAX_WORK_NS:
        raise TooMuchWork(
            f"may take {work / 1e9:,.1f} s for a large event, more than {MAX_WORK_NS / 1e9} s: let macros compare "
            "fields of their own elements only, build no texts in them, and repeat less in regular expressions"
        )
    return tuple(estimate.patterns)


def _visits(depth: int) -> float:
    return MAX_ITERATIONS if depth else 1


def _same(bytes_: float, depth: int) -> _Size:
    return _Size(bytes_, bytes_ * _visits(depth))


def _variable(bound: _Bound | None, depth: int) -> _Size:
    if bound is None:
        return _same(MAX_EVENT_BYTES, depth)
    if bound.depth == depth == 1:
        return _Size(bound.peak, bound.peak)  # all elements together are the list
    return _same(bound.peak, depth)


def _check_regex(pattern: Node) -> str:
    if not isinstance(pattern, Literal) or pattern.text is None:
        raise TooMuchWork("the regular expression of `matches` must be written out, in quotes")
    if len(pattern.text) > _MAX_REGEX:
        raise TooMuchWork(f"a regular expression has at most {_MAX_REGEX} characters")
    return pattern.text
