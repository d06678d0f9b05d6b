"""Celery's signatures: a task with its arguments and options, as `add_periodic_task` takes them."""

import ast
from typing import Any, Final, NamedTuple

from .python_syntax import Call
from .python_values import Values

_SHORT: Final = frozenset({"s", "si"})
_LONG: Final = frozenset({"signature", "Signature", "subtask"})
_NOT_OPTIONS: Final = frozenset({"args", "kwargs", "options", "immutable"})


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
