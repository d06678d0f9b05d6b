"""The queues of Celery's tasks: the settings `task_routes` and `task_default_queue`."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from ...domain.definition import is_name
from .drafts import Draft
from .python_values import Values, assigned, given_as, is_static, setting_name, shown, source_of

_ROUTES: Final = frozenset({"task_routes", "CELERY_TASK_ROUTES", "CELERY_ROUTES"})
_DEFAULTS: Final = frozenset({"task_default_queue", "CELERY_TASK_DEFAULT_QUEUE", "CELERY_DEFAULT_QUEUE"})
_CHANGES: Final = frozenset({"update", "setdefault", "pop", "popitem", "clear", "append", "extend", "insert"})


class Routes:
    """The queue of each task, by the settings of a file."""

    def __init__(self, module: ast.Module, values: Values) -> None:
        self.unread: list[tuple[int, str]] = []
        """The settings that are not followed, each with its line and its source."""
        self._routers: list[dict[str, Any]] = []
        routes = [*_settings(module, _ROUTES)]
        if len(routes) != 1 or _is_change(routes[0]) or not self._read(values.of(routes[0])):
            # Of several it is not known which counts.
            self.unread += [(node.lineno, source_of(node)) for node in routes]
        defaults = [*_settings(module, _DEFAULTS)]
        default = values.of(defaults[0]) if len(defaults) == 1 else None
        self._default = default if isinstance(default, str) else None
        if self._default is None:
            self.unread += [(node.lineno, source_of(node)) for node in defaults]

    def _read(self, routes: Any) -> bool:  # noqa: ANN401 - a value of the file
        """Read a router, or a list of routers; return whether all can be read."""
        parts = routes if isinstance(routes, list) else [routes]
        routers = [router for part in parts if (router := _router(part)) is not None]
        is_read = len(routers) == len(parts)
        self._routers = routers if is_read else []
        return is_read

    def _route(self, task: str) -> Any:  # noqa: ANN401 - a value of the file
        """Return the route of the first router that has one; names go before patterns."""
        for router in self._routers:
            if task in router:
                return router[task]
            for pattern, route in router.items():
                if "*" in pattern and _begins_as(task, pattern):
                    return route
        return None

    def set_queue(self, draft: Draft, task: str) -> None:
        """Set the queue of a job whose entry names none."""
        route = self._route(task)
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


def _router(part: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a value of the file
    """Return the routes of a mapping, pairs, or a pair; None for others."""
    match part:
        case dict():
            return {str(name): route for name, route in part.items()}
        case [str() as name, route]:
            return {name: route}
        case [*pairs]:
            routers = [_router(pair) for pair in pairs if isinstance(pair, list)]
            if len(routers) == len(pairs) and all(router is not None for router in routers):
                return {name: route for router in routers if router for name, route in router.items()}
    return None


def _begins_as(task: str, pattern: str) -> bool:
    """Return whether a pattern of Celery matches: at the beginning, `*` for one character or more."""
    first, *rest = pattern.split("*")
    if not task.startswith(first):
        return False
    at = len(first)
    for part in rest:
        found = task.find(part, at + 1)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _settings(module: ast.Module, names: frozenset[str]) -> Iterator[ast.expr]:
    for node in ast.walk(module):
        yield from given_as(node, names)
        for target, value in assigned(node):
            if setting_name(target) in names:
                yield value
            elif isinstance(target, ast.Subscript) and setting_name(target.value) in names:
                yield target
        match node:
            case ast.AugAssign(target=target) if setting_name(target) in names:
                yield target
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if (
                method in _CHANGES and setting_name(owner) in names
            ):
                yield node
            case _:
                pass


def _is_change(node: ast.expr) -> bool:
    """Return whether an expression is a target, which sets a part of a setting."""
    return isinstance(getattr(node, "ctx", None), ast.Store)
