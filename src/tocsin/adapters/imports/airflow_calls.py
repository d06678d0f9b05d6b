"""Calls in a file with DAGs: operators, DAGs and labels, by their names."""

import ast
from collections.abc import Iterator

from .python_syntax import dotted


def is_label(node: ast.expr) -> bool:
    """Return whether an expression is the label of a link."""
    return isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "Label"


def is_main(statement: ast.If) -> bool:
    """Return whether a block runs only if the file is the program."""
    return "__name__" in ast.dump(statement.test)


def is_dag(name: str) -> bool:
    """Return whether a name is that of `DAG`, or of a class derived from it."""
    return name.rpartition(".")[2][:1].isupper() and name.lower().endswith("dag")


def calls_of(call: ast.Call) -> Iterator[ast.Call]:
    """Yield the calls before the last in `partial(…).expand(…)`."""
    base = call.func
    while isinstance(base, ast.Attribute | ast.Call):
        if isinstance(base, ast.Call):
            yield base
        base = base.func if isinstance(base, ast.Call) else base.value


def is_operator(name: str) -> bool:
    """Return whether a function is the class of an operator."""
    return name.rpartition(".")[2].endswith(("Operator", "Sensor", "SensorAsync", "OperatorAsync"))


def is_task(node: ast.AST) -> bool:
    """Return whether a node makes a task or a DAG."""
    return isinstance(node, ast.Call) and (
        is_operator(dotted(node.func))
        or dotted(node.func).rpartition(".")[2] == "DAG"
        or any(each.arg == "task_id" for each in node.keywords)
    )
