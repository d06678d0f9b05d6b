"""The entries of a Celery schedule, and the statements that change them later."""

import ast
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from .python_values import Call, Values

_SHORT: Final = frozenset({"s", "si"})
_LONG: Final = frozenset({"signature", "Signature", "subtask"})
_NOT_OPTIONS: Final = frozenset({"args", "kwargs", "options", "immutable"})


_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Blocks:
    """The module, its classes and its functions, with the names that each binds."""

    def __init__(self, module: ast.Module) -> None:
        self._module = module
        self._block_of: dict[int, ast.AST] = {}
        self._outer: dict[ast.AST, ast.AST] = {}
        self._bound: dict[ast.AST, set[str]] = {module: set()}
        self._declared: dict[ast.AST, set[str]] = {module: set()}
        """Names that `global` and `nonlocal` leave to outer blocks."""
        self._visit(module, module)

    def owner(self, name: ast.Name) -> ast.AST:
        """Return the block that binds a name; the module if none does."""
        block = self._block_of[id(name)]
        while block is not self._module and name.id not in self._bound[block] - self._declared[block]:
            block = self._outer[block]
        return block

    def _visit(self, node: ast.AST, block: ast.AST) -> None:
        match node:
            case ast.Name(id=name, ctx=context):
                self._block_of[id(node)] = block
                if isinstance(context, ast.Store):
                    self._bound[block].add(name)
            case ast.arg(arg=name):
                self._bound[block].add(name)
            case ast.alias(name=name, asname=other):
                self._bound[block].add(other or name.partition(".")[0])
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                self._declared[block].update(names)
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                if not isinstance(node, ast.Lambda):
                    self._bound[block].add(node.name)
                # A function does not see the names of a class around it.
                is_hidden = isinstance(block, ast.ClassDef) and isinstance(node, _Function)
                self._outer[node] = self._outer[block] if is_hidden else block
                self._bound[node], self._declared[node] = set(), set()
                block = node
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            self._visit(child, block)


class Signature(NamedTuple):
    """A task, and what it is called with."""

    task: Any
    """Its name, or the expression that cannot be read."""
    args: Any
    kwargs: Any
    options: dict[str, Any]


def signature_of(value: Any, values: Values) -> Signature:  # noqa: ANN401 - a value of the file
    """Return the task of a signature; another value is its own task."""
    options = dict[str, Any]()
    while isinstance(value, Call) and value.name == "set" and isinstance(value.node.func, ast.Attribute):
        options = {**value.keywords, **options}  # `task.s(…).set(queue="mail")`
        value = values.of(value.node.func.value)
    if isinstance(value, Call) and value.name in _SHORT:
        return Signature(value.full.rpartition(".")[0] or value, [*value.args], dict(value.keywords), options)
    if isinstance(value, Call) and value.name in _LONG:
        given = [*value.args]
        is_named = bool(given) and isinstance(given[0], str)
        task = given.pop(0) if is_named else value.full.rpartition(".")[0] or value
        named = dict(zip(("args", "kwargs", "options"), given, strict=False)) | dict(value.keywords)
        inner = named.get("options")
        own = {name: each for name, each in named.items() if name not in _NOT_OPTIONS}
        more = inner if isinstance(inner, dict) else {} if inner is None else {"options": inner}
        return Signature(task, named.get("args") or [], named.get("kwargs") or {}, {**more, **own, **options})
    return Signature(value, [], {}, options)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a schedule."""

    name: str
    value: Any
    line: int
    block: str
    """The statement that decides whether the entry exists; empty: it always does."""
    is_named: bool = True

    @property
    def key(self) -> str:
        """The name in Celery's schedule.

        Celery makes that of a nameless entry of its task and arguments.
        """
        return self.name if self.is_named else repr([self.value.get(part) for part in ("task", "args", "kwargs")])


class Entries:
    """The entries of a file, in order."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self.changes: dict[int, int] = {}
        """The line that changes or removes an entry, by the number of the entry."""
        self._numbers: dict[str, list[int]] = {}
        self._read: set[tuple[str, int]] = set()
        self._open: list[int] = []
        """The numbers of the entries that no change of a computed name has met."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def add(self, entry: Entry) -> None:
        """Add an entry, unless a schedule that has two names has it already."""
        read = entry.key, id(entry.value)
        if read not in self._read:
            self._read.add(read)
            self._numbers.setdefault(entry.key, []).append(len(self._entries))
            self._open.append(len(self._entries))
            self._entries.append(entry)

    def note_change(self, name: object, line: int, *, since: int = 0) -> None:
        """Note a change of the entries of a name that are known by now.

        All of them from the number `since` on are changed if the name is computed. An entry is visited once, however many statements
        change it: the first statement counts.
        """
        if isinstance(name, str):
            numbers = self._numbers.pop(name, [])
        else:
            first = bisect_left(self._open, since)
            numbers = self._open[first:]
            del self._open[first:]
        for number in numbers:
            self.changes.setdefault(number, line)
