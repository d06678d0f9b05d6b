"""The construction of deliberate bugs.

A mutation replaces a few words in the source of a function, where they must occur exactly once, and gives the function the compiled
result for as long as it is active. If the product changes so that the words are gone, the mutation fails and must be rewritten: a
table whose bugs can no longer be made would prove nothing.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Edit:
    """Replacement words in the source of a function. `names`: further names that the new words use."""

    function: Callable[..., Any]
    old: str
    new: str
    names: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A bug, in a few words."""

    name: str
    edits: tuple[Edit, ...]


def bug(name: str, function: Callable[..., Any], old: str, new: str, **names: object) -> Mutation:
    """Return a bug of one edit."""
    return Mutation(name, (Edit(function, old, new, names),))


@contextmanager
def made(mutation: Mutation) -> Iterator[None]:
    """Have the bug, for as long as the block lasts.

    Raises:
        LookupError: the words that it replaces are not in the source, or more than once.
    """
    with ExitStack() as stack:
        for edit in mutation.edits:
            function = cast("FunctionType", edit.function)
            code, names = _mutated(function, edit), function.__globals__
            stack.callback(setattr, function, "__code__", function.__code__)
            stack.callback(names.update, {name: names[name] for name in edit.names if name in names})
            for name in edit.names:
                stack.callback(names.pop, name, None)
            names.update(edit.names)
            function.__code__ = code
        yield


def _mutated(function: FunctionType, edit: Edit) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(edit.old) != 1:
        raise LookupError(f"{function.__qualname__} has {source.count(edit.old)} times {edit.old!r}")
    tree = ast.parse(source.replace(edit.old, edit.new))
    defined = tree.body[0]
    assert isinstance(defined, ast.FunctionDef | ast.AsyncFunctionDef)
    defined.decorator_list.clear()
    scope = {**function.__globals__}
    exec(compile(tree, function.__code__.co_filename, "exec"), scope)  # noqa: S102 - the source is the product's
    return cast("FunctionType", scope[function.__name__]).__code__
