"""Blocks of a Python file, each with the names that it binds."""

import ast
from typing import TypeAlias

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
