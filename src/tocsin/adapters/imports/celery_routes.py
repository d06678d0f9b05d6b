"""The queues of Celery's tasks: the settings `task_routes` and `task_default_queue`."""

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from ...domain.definition import is_name
from .drafts import Draft
from .python_syntax import dotted, is_static, shown, source_of
from .python_values import Values

_ROUTES: Final = frozenset({"task_routes", "CELERY_TASK_ROUTES", "CELERY_ROUTES"})
_DEFAULTS: Final = frozenset({"task_default_queue", "CELERY_TASK_DEFAULT_QUEUE", "CELERY_DEFAULT_QUEUE"})
_CHANGES: Final = frozenset({"update", "setdefault", "pop", "popitem", "clear", "append", "extend", "insert"})


class Routes:
    """The queue of each task, by the settings of a file."""

    def __init__(self, module: ast.Module, values: Values) -> None:
        self.unread: list[tuple[int, str]] = []
        """The settings that are not followed, each with its line and its source."""
        self._exact: dict[str, Any] = {}
        self._patterns: dict[str, Any] = {}
        routes = [*_settings(module, _ROUTES)]
        if len(routes) != 1 or _is_change(routes[0]) or not self._read(values.of(routes[0])):
            self.unread += [
                (node.lineno, source_of(node)) for node in routes
            ]  # of several it is not known which counts
        defaults = [*_settings(module, _DEFAULTS)]
        names = {str(values.of(node)) for node in defaults if isinstance(values.of(node), str)}
        self._default = names.pop() if len(names) == 1 else None
        if names or self._default is None:
            self.unread += [(node.lineno, source_of(node)) for node in defaults]

    def _read(self, routes: Any) -> bool:  # noqa: ANN401 - a value of the file
        """Read a mapping, or a list of mappings and pairs; return whether it is one."""
        pairs: list[Any] = []
        for part in [routes] if isinstance(routes, dict) else routes if isinstance(routes, list) else [None]:
            match part:
                case dict():
                    pairs += part.items()
                case [str() as name, route]:
                    pairs.append((name, route))
                case _:
                    return False
        for name, route in pairs:
            (self._patterns if "*" in str(name) else self._exact).setdefault(str(name), route)
        return True

    def set_queue(self, draft: Draft, task: str) -> None:
        """Set the queue of a job whose entry names none."""
        route = self._exact.get(task)
        if route is None:
            found = (route for pattern, route in self._patterns.items() if fnmatchcase(task, pattern))
            route = next(found, None)
        if isinstance(route, dict):
            for name in route.keys() - {"queue"}:
                said = f"`{name}` of the task's route is {shown(route[name])}, which has no equivalent"
                draft.add("field-not-supported", said)
        queue = route.get("queue") if isinstance(route, dict) else route
        queue = self._default if queue is None else queue
        if isinstance(queue, str) and is_name(queue):
            draft.fields["queue"] = queue
        elif queue is not None:
            code = "field-not-supported" if is_static(queue) else "computed-at-run-time"
            draft.add(code, f"the queue of the task's route is {shown(queue)}: write `queue`")


def _settings(module: ast.Module, names: frozenset[str]) -> Iterator[ast.expr]:
    """Yield the expressions of a setting, and those that change it."""
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _assigned(target, value, names)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from _assigned(target, value, names)
            case ast.AugAssign(target=target) if _name(target) in names:
                yield target
            case ast.keyword(arg=name, value=value) if name in names:
                yield value
            case ast.Dict(keys=keys, values=members):
                pairs = zip(keys, members, strict=True)
                yield from (value for key, value in pairs if isinstance(key, ast.Constant) and key.value in names)
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _CHANGES and _name(owner) in names:
                yield node
            case _:
                pass


def _assigned(target: ast.expr, value: ast.expr, names: frozenset[str]) -> Iterator[ast.expr]:
    if _name(target) in names:
        yield value
    elif isinstance(target, ast.Subscript) and _name(target.value) in names:
        yield target


def _is_change(node: ast.expr) -> bool:
    """Return whether an expression is a target, which sets a part of a setting."""
    return isinstance(getattr(node, "ctx", None), ast.Store)


def _name(node: ast.expr) -> str:
    """Return the last part of a name, or the key of `conf["task_routes"]`."""
    match node:
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str() as name)):
            return name
        case _:
            return dotted(node).rpartition(".")[2]
