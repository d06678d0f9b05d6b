"""Parts of a Python file: its syntax tree, values that are not known, and calls."""

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
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
        args, keywords: the arguments.
        text: the source.
        line: the line.
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

    Raises:
        DefinitionError: the file is not Python; the problem's source is `:line`.
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
