"""Calls that a Python file makes when it is loaded, and that cannot be followed."""

import ast
import builtins
import sys
from collections.abc import Container, Iterator
from typing import Final

from .drafts import Draftings
from .python_values import dotted, is_main, last_name, source_of

MOST: Final = 20
"""Calls that are named; more are counted."""
_QUIET: Final = sys.stdlib_module_names | {
    *("airflow", "celery", "kombu", "django", "environ", "dotenv", "pendulum", "pytz", "dateutil", "sentry_sdk"),
}
"""Packages whose functions make no jobs, or are read by the importers."""
_EXECUTED: Final = frozenset({"dag", "connect"})
"""Decorators of functions that are called when the file is loaded."""


def report_unfollowed(
    module: ast.Module, drafted: Draftings, *, read: Container[ast.AST], lines: Container[int]
) -> None:
    """Add a finding for each call that is neither read nor on a reported line."""
    calls = [call for call in _Walk(module, read).calls if call.lineno not in lines]
    for call in calls[:MOST]:
        said = f"`{source_of(call)}` is not followed: write by hand what it schedules"
        drafted.add("call-not-followed", said, call.lineno)
    if len(calls) > MOST:
        said = f"{len(calls) - MOST:,} more calls are not followed: write by hand what they schedule"
        drafted.add("call-not-followed", said)


class _Walk:
    """A walk through the statements that run when a file is loaded."""

    def __init__(self, module: ast.Module, read: Container[ast.AST]) -> None:
        self.calls: list[ast.Call] = []
        self._read = read
        self._packages: dict[str, str] = {}
        self._functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self._bound: set[str] = {*dir(builtins)}
        self._made_by: dict[str, str] = {}
        """The function whose result a variable is."""
        self._dags: set[str] = set()
        """The classes of this file that derive from a DAG."""
        self._seen: set[str] = set()
        for node in ast.walk(module):
            self._note(node)
        self._run(module.body)

    def _note(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=names):
                for each in names:
                    package = each.name.partition(".")[0]
                    self._packages[each.asname or package] = package
            case ast.ImportFrom(names=names):
                package = "." if node.level else (node.module or ".").partition(".")[0]
                self._packages.update({each.asname or each.name: package for each in names})
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._functions[node.name] = node
                self._bound.add(node.name)
            case ast.ClassDef(name=name, bases=bases):
                self._bound.add(name)
                if any(last_name(each).lower().endswith("dag") for each in bases):
                    self._dags.add(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                self._bound.add(name)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made_by = dotted(node.value.func).partition(".")[0]
            self._made_by.update({each.id: made_by for each in node.targets if isinstance(each, ast.Name)})

    def _run(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            if statement in self._read or isinstance(statement, ast.ClassDef) or is_main(statement):
                continue
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._run_parts(statement)
            elif any(last_name(each) in _EXECUTED for each in statement.decorator_list):
                self._enter(statement.name)

    def _run_parts(self, statement: ast.stmt) -> None:
        for name, part in ast.iter_fields(statement):
            match name:
                case "body" | "orelse" | "finalbody":
                    self._run(part)
                case "handlers" | "cases":
                    for each in part:
                        self._run(each.body)
                case "items":
                    for each in part:
                        self._evaluate(each.context_expr)
                case "value" | "iter":
                    self._evaluate(part)

    def _enter(self, name: str) -> None:
        if name not in self._seen:
            self._seen.add(name)
            self._run(self._functions[name].body)

    def _evaluate(self, node: ast.expr | None) -> None:
        match node:
            case ast.Call():
                self._call(node)
            case ast.Name() | ast.Constant() | ast.Lambda() | ast.Compare() | ast.JoinedStr() | None:
                pass
            case _:
                for each in _parts(node):
                    self._evaluate(each)

    def _call(self, node: ast.Call) -> None:
        if node in self._read:
            return
        name = dotted(node.func)
        root = name.partition(".")[0]
        if name in self._functions:
            self._enter(name)
        elif name in self._dags or self._is_unknown(root):
            self.calls.append(node)
        elif not name:  # `globals().update(…)`
            for each in (node.func, *node.args):
                self._evaluate(each)
        elif root in dir(builtins) or root == "functools":  # `list(map(make, names))`
            for argument in (*node.args, *(each.value for each in node.keywords)):
                if isinstance(argument, ast.Name) and name in {"map", "filter"}:
                    self._call(ast.copy_location(ast.Call(argument, [], []), node))
                else:
                    self._evaluate(argument)

    def _is_unknown(self, root: str) -> bool:
        """Return whether a name stands for something of a package that is not known."""
        for _ in range(10):  # a variable may come from another
            if root in self._packages:
                return self._packages[root] not in _QUIET
            if root not in self._made_by or root in self._functions:
                break
            root = self._made_by[root]
        return bool(root) and root not in self._bound


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.expr):
            yield each
        elif isinstance(each, ast.comprehension):
            yield each.iter
